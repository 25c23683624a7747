"""The tables of an export and what each column means: docs/export.md says the same, by a test."""

from dataclasses import dataclass
from typing import Final

import polars as pl

# Raised when a column goes, or changes its meaning, unit or type; a new column does not count.
EXPORT_SCHEMA_VERSION: Final = 2

# Rank of a process that did not tell its own.
UNKNOWN_RANK: Final = -1

GPU_NS: Final = "ns, GPU globaltimer"
HOST_NS: Final = "ns, CLOCK_MONOTONIC"
NO_UNIT: Final = "-"


@dataclass(frozen=True)
class Column:
    """Type, unit (`-`: none) and meaning of a column; null stands for what is not known."""

    dtype: type[pl.DataType] | pl.DataType
    unit: str
    meaning: str


Columns = dict[str, Column]

_CONTEXT: Final[Columns] = {
    "process_id": Column(pl.UInt32, NO_UNIT, "process that launched"),
    "context_index": Column(pl.UInt16, NO_UNIT, "CUDA context within the process, from 0"),
}
_EVENT: Final[Columns] = {
    **_CONTEXT,
    "sequence": Column(
        pl.UInt64, NO_UNIT, "place among all events of the context, drops and stores included"
    ),
    "launch_index": Column(
        pl.UInt32, NO_UNIT, "`launches.launch_index` it was joined to; null: no launch has it"
    ),
    "matched": Column(
        pl.Boolean,
        NO_UNIT,
        "entry: the first of a block that its launch has; store: its block entered",
    ),
}
_OWNER: Final[Columns] = {
    "row": Column(pl.UInt32, NO_UNIT, "row of the batch; null where the kernel's are not known"),
    "owner": Column(
        pl.String, NO_UNIT, "whose the row is: `owned`, `padding`, `dummy`, `draft`, `unknown`"
    ),
    "request_id": Column(pl.String, NO_UNIT, "the engine's id of the request that owns the row"),
    "owner_request_index": Column(
        pl.UInt32, NO_UNIT, "`requests.request_index` of that request; null if kvtrace sent no such"
    ),
    "position": Column(
        pl.UInt32, "tokens", "the row's token position, from 0; see `steps.positions_exact`"
    ),
}
_STEP_KEY: Final[Columns] = {
    "step_stamp": Column(pl.UInt32, NO_UNIT, "engine step, from 1; 0: the launch has none"),
    "step_kind": Column(pl.String, NO_UNIT, "`forward`, `dummy` or `draft`; null: not recorded"),
}
_DERIVED: Final[Columns] = {
    "layer_index": Column(
        pl.UInt32, NO_UNIT, "derived: rank of the launch in its replay or step, from 0"
    ),
    "decode_step": Column(
        pl.UInt32, NO_UNIT, "derived: rank of the replay in the measured request, from 1"
    ),
    "request_index": Column(
        pl.UInt32, NO_UNIT, "the measured request that alone was under way at the launch"
    ),
}
_KERNEL: Final[Columns] = {
    "kernel_slot": Column(
        pl.UInt32, NO_UNIT, "the injector's number for the function; null: not known"
    ),
    "kernel": Column(pl.String, NO_UNIT, "its base name; null if no journal names it"),
    "is_graph_node": Column(pl.Boolean, NO_UNIT, "node of a graph, or a plain launch"),
    "graph_exec": Column(pl.UInt64, "address", "CUgraphExec; 0: a plain launch"),
    "exec_generation": Column(
        pl.UInt32, NO_UNIT, "number of the graph exec in the process, from 1; addresses come back"
    ),
    "graph_node": Column(pl.UInt64, "address", "CUgraphNode; 0: a plain launch"),
    "launch_id": Column(pl.UInt32, NO_UNIT, "replay of the graph exec, from 1"),
}

BLOCK_EVENTS: Final[Columns] = {
    **_EVENT,
    "gpu_globaltimer_ns": Column(pl.UInt64, GPU_NS, "when the block entered"),
    "block_idx_x": Column(pl.UInt32, "blocks", "block index in the grid, x"),
    "block_idx_y": Column(pl.UInt16, "blocks", "block index in the grid, y"),
    "block_idx_z": Column(pl.UInt16, "blocks", "block index in the grid, z"),
    "sm_id": Column(pl.UInt16, NO_UNIT, "multiprocessor it ran on"),
    "pc": Column(pl.UInt64, "address", "program counter of the kernel's entry"),
    "grid_id": Column(pl.UInt64, NO_UNIT, "grid id; of a graph node unique in one replay only"),
    "launch_stamp": Column(pl.UInt32, NO_UNIT, "number that was bound to the replay; 0: none"),
    **_KERNEL,
    **_STEP_KEY,
    **_DERIVED,
    **_OWNER,
}

STORES: Final[Columns] = {
    **_EVENT,
    "gpu_globaltimer_ns": Column(pl.UInt64, GPU_NS, "when the thread stored"),
    "pc": Column(pl.UInt64, "address", "program counter of the instruction"),
    "thread_index": Column(pl.UInt16, NO_UNIT, "linear thread index in the block"),
    "address": Column(pl.UInt64, "address", "first byte that was written"),
    "access_size": Column(pl.UInt8, "bytes", "how much was written"),
    **_STEP_KEY,
    **_OWNER,
    "in_kv_tensor": Column(
        pl.Boolean, NO_UNIT, "inside a KV tensor; null: the layout was not recorded"
    ),
    "layer_index": Column(pl.UInt32, NO_UNIT, "layer of the KV tensor, from 0"),
    "kv_group": Column(pl.UInt16, NO_UNIT, "KV-cache group of the tensor, from 0"),
    "part": Column(pl.String, NO_UNIT, "`K`, `V`, `KV` (one latent), `K scale`, `V scale`"),
    "kv_block_id": Column(pl.UInt32, NO_UNIT, "KV block, as the scheduler counts"),
    "offset": Column(pl.UInt32, "tokens", "token within the KV block, from 0"),
    "head": Column(pl.UInt32, NO_UNIT, "KV head, from 0"),
    "written_slot": Column(pl.Int64, "tokens", "KV slot that was written"),
    "expected_slot": Column(
        pl.Int64, "tokens", "KV slot that the scheduler assigned to the row; null: not known"
    ),
}

LAUNCHES: Final[Columns] = {
    **_CONTEXT,
    "launch_index": Column(pl.UInt32, NO_UNIT, "number of the launch in the run, from 0"),
    **_KERNEL,
    "first_of_exec": Column(
        pl.UInt32, NO_UNIT, "first `launch_index` of the graph exec: names it in the run"
    ),
    "first_of_replay": Column(
        pl.UInt32, NO_UNIT, "first `launch_index` of the replay: names it in the run"
    ),
    "grid_id": Column(pl.UInt64, NO_UNIT, "grid id; of a graph node unique in one replay only"),
    "launch_stamp": Column(pl.UInt32, NO_UNIT, "number that was bound to the replay; 0: none"),
    "stream": Column(pl.UInt64, "address", "CUstream that the kernel runs on; 0: the default"),
    "api_stream": Column(pl.UInt64, "address", "CUstream given to the graph launch"),
    "device_ordinal": Column(pl.UInt16, NO_UNIT, "CUdevice"),
    "thread_id": Column(pl.UInt32, NO_UNIT, "Linux thread that launched"),
    "host_monotonic_ns": Column(pl.UInt64, HOST_NS, "when it was submitted"),
    "grid_dim_x": Column(pl.UInt32, "blocks", "grid, x"),
    "grid_dim_y": Column(pl.UInt16, "blocks", "grid, y"),
    "grid_dim_z": Column(pl.UInt16, "blocks", "grid, z"),
    "block_dim_x": Column(pl.UInt16, "threads", "thread block, x"),
    "block_dim_y": Column(pl.UInt16, "threads", "thread block, y"),
    "block_dim_z": Column(pl.UInt16, "threads", "thread block, z"),
    "row_axis": Column(pl.String, NO_UNIT, "which block index is the row: `x`, `y`"),
    **_STEP_KEY,
    **_DERIVED,
    "layer_rank_source": Column(
        pl.String, NO_UNIT, "what `layer_index` is the rank in: `replay` or `step`"
    ),
    "is_measured": Column(pl.Boolean, NO_UNIT, "submitted while measured requests were under way"),
    "measured_stretch": Column(
        pl.UInt32, NO_UNIT, "which stretch of overlapping measured requests, from 0"
    ),
    "is_patched": Column(pl.Boolean, NO_UNIT, "its module was patched, so its blocks leave events"),
    "is_stamped": Column(pl.Boolean, NO_UNIT, "its events carry `launch_stamp`"),
    "shares_join_key": Column(
        pl.Boolean, NO_UNIT, "another launch has its grid id and stamp: told apart by counting"
    ),
    "expected_blocks": Column(pl.UInt64, "blocks", "blocks of its grid"),
    "matched_blocks": Column(pl.UInt64, "blocks", "of those, how many entered"),
    "unexpected_blocks": Column(
        pl.UInt64, "blocks", "entries of blocks that entered before or are outside of its grid"
    ),
    "first_sequence": Column(pl.UInt64, NO_UNIT, "lowest sequence of its entries"),
    "last_sequence": Column(pl.UInt64, NO_UNIT, "highest sequence of its entries"),
    "first_globaltimer_ns": Column(pl.UInt64, GPU_NS, "first block entry"),
    "last_globaltimer_ns": Column(pl.UInt64, GPU_NS, "last block entry; says nothing of its end"),
    "stores": Column(pl.UInt64, "stores", "recorded stores of its blocks"),
    "first_store_sequence": Column(pl.UInt64, NO_UNIT, "lowest sequence of its stores"),
    "last_store_sequence": Column(pl.UInt64, NO_UNIT, "highest sequence of its stores"),
}

STEPS: Final[Columns] = {
    "process_id": Column(pl.UInt32, NO_UNIT, "process that ran the step"),
    "step_stamp": Column(pl.UInt32, NO_UNIT, "engine step, from 1"),
    "step_kind": Column(pl.String, NO_UNIT, "`forward`, `dummy` or `draft`"),
    "host_monotonic_ns": Column(pl.UInt64, HOST_NS, "when the engine plug-in wrote it"),
    "rows": Column(pl.UInt32, "rows", "rows of requests; of a dummy step, rows it runs"),
    "padded_rows": Column(pl.UInt32, "rows", "rows that the kernels are launched with"),
    "graph_mode": Column(pl.String, NO_UNIT, "`FULL`, `PIECEWISE` or `NONE`"),
    "requests": Column(pl.UInt32, "requests", "requests with rows in it"),
    "positions_exact": Column(
        pl.Boolean, NO_UNIT, "false: positions and expected slots are upper bounds"
    ),
    "launches": Column(pl.UInt32, "launches", "recorded launches that carry its stamp"),
    "expected_blocks": Column(pl.UInt64, "blocks", "blocks of their grids"),
    "matched_blocks": Column(pl.UInt64, "blocks", "of those, how many entered"),
    "first_globaltimer_ns": Column(pl.UInt64, GPU_NS, "their first block entry"),
    "last_globaltimer_ns": Column(pl.UInt64, GPU_NS, "their last block entry"),
}

REQUESTS: Final[Columns] = {
    "request_index": Column(pl.UInt32, NO_UNIT, "order in which it was sent, from 0"),
    "request_id": Column(pl.String, NO_UNIT, "the id that was sent; the engine's contains it"),
    "role": Column(pl.String, NO_UNIT, "`warmup` or `measured`"),
    "prompt_tokens": Column(pl.UInt32, "tokens", "tokens of the prompt"),
    "max_tokens": Column(pl.UInt64, "tokens", "tokens that were asked for"),
    "returned_tokens": Column(pl.UInt32, "tokens", "tokens that came back"),
    "http_status": Column(pl.UInt16, NO_UNIT, "HTTP status; null without an answer"),
    "error": Column(pl.String, NO_UNIT, "why it failed; null if it did not"),
    "host_monotonic_begin_ns": Column(pl.UInt64, HOST_NS, "when it was sent"),
    "host_monotonic_end_ns": Column(pl.UInt64, HOST_NS, "when its answer ended"),
    "token_host_monotonic_ns": Column(
        pl.List(pl.UInt64), HOST_NS, "when each token came; null unless it was streamed"
    ),
}

TABLES: Final[dict[str, Columns]] = {
    "block_events": BLOCK_EVENTS,
    "stores": STORES,
    "launches": LAUNCHES,
    "steps": STEPS,
    "requests": REQUESTS,
}


def schema_of(columns: Columns) -> dict[str, type[pl.DataType] | pl.DataType]:
    """Return column name -> polars type."""
    return {name: column.dtype for name, column in columns.items()}


def type_name(column: Column) -> str:
    """Return the type as documents write it, such as `UInt64` or `List(UInt64)`."""
    return str(column.dtype) if isinstance(column.dtype, pl.DataType) else column.dtype.__name__
