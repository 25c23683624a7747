"""Make recordings by name, byte for byte through the real ABI: no engine and no GPU needed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvtrace_cli.analysis.attribution import attribute
from kvtrace_cli.analysis.model import Attribution, Reconciliation
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.dumps.schema import Recording

PROCESS_ID = 4711
PC = 0x7F0000001000
TARGET = "reshape_and_cache_flash_kernel"
GRAPH_EXEC = 0x5000
STREAM = 0x77
FIRST_NODE_GRID_ID = 1000
# Where the KV tensor of the first layer is.
KV_ADDRESS = 0x7F2000000000
# One step of the host clock per launch, one of the GPU clock per block.
HOST_STEP_NS = 1_000
GPU_STEP_NS = 200_000


def struct_bytes(struct: str, **values: Any) -> bytes:
    """Return the bytes of one structure; fields that are not named are zero."""
    ffi = abi.ffi()
    return bytes(ffi.buffer(ffi.new(f"{struct} *", values)))


def header_bytes(kind: str, record_count: int, **changes: Any) -> bytes:
    """Return a valid header of an `events` or `launches` file, with some fields changed."""
    struct = abi.EVENTS_STRUCT if kind == "events" else abi.LAUNCHES_STRUCT
    values = {
        "magic": abi.constant(f"KVTRACE_{kind.upper()}_MAGIC"),
        "abi_version": abi.constant("KVTRACE_ABI_VERSION"),
        "record_size": abi.size_of(struct),
        "record_count": record_count,
        "capacity": 1 << 20,
        "process_id": PROCESS_ID,
        "flags": flags("CLOSED", "PATCHED"),
    }
    return struct_bytes(abi.HEADER_STRUCT, **(values | changes))


def flags(*names: str) -> int:
    """Return the file flags of these short names."""
    return sum(abi.constant(f"KVTRACE_FILE_{name}") for name in names)


@dataclass(frozen=True)
class Launch:
    """One launch record; `blocks` are the block indices that will enter, in order."""

    values: dict[str, int]
    blocks: tuple[tuple[int, int, int], ...]

    def with_values(self, **changes: int) -> "Launch":
        return replace(self, values=self.values | changes)


@dataclass
class Trace:
    """Launch records and block events of one context, built up launch by launch."""

    process_id: int = PROCESS_ID
    context_index: int = 0
    capacity: int = 1 << 20
    stamps: bool = True
    launches: list[Launch] = field(default_factory=list)
    events: list[dict[str, int]] = field(default_factory=list)
    dropped: int = 0
    stores_dropped: int = 0
    launches_dropped: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    _sequence: int = 0

    def plain(self, grid: tuple[int, int, int] = (1, 1, 1), **changes: int) -> Launch:
        """Record a plain launch; no block has entered yet."""
        values = {
            "grid_id": 1_000_000 + len(self.launches),
            "launch_kind": abi.constant("KVTRACE_LAUNCH_PLAIN"),
            "launch_flags": abi.constant("KVTRACE_LAUNCH_PATCHED"),
        }
        return self._launch(grid, values | changes)

    def node(
        self, node: int, launch_id: int, grid: tuple[int, int, int] = (1, 1, 1), **changes: int
    ) -> Launch:
        """Record one graph node in one replay; no block has entered yet."""
        stamped = abi.constant("KVTRACE_LAUNCH_STAMPED") if self.stamps else 0
        values = {
            "graph_exec": GRAPH_EXEC,
            "exec_generation": 1,
            "graph_node": 0x9000 + node,
            "grid_id": FIRST_NODE_GRID_ID + node,
            "launch_id": launch_id,
            "launch_stamp": launch_id if self.stamps else 0,
            "api_stream": STREAM,
            "launch_kind": abi.constant("KVTRACE_LAUNCH_GRAPH_NODE"),
            "launch_flags": abi.constant("KVTRACE_LAUNCH_PATCHED") + stamped,
        }
        return self._launch(grid, values | changes)

    def enter(
        self, launch: Launch, block: tuple[int, int, int] = (0, 0, 0), **changes: int
    ) -> None:
        """Let one block of a launch enter: the next event."""
        stamp = launch.values["launch_stamp"]
        x, y, z = block
        values = {
            "gpu_globaltimer_ns": 1_700_000_000_000_000_000 + self._sequence * GPU_STEP_NS,
            "block_idx_x": x,
            "block_idx_y": y,
            "block_idx_z": z,
            "pc": PC,
            "launch_stamp": stamp,
            "grid_id": launch.values["grid_id"],
            "kernel_slot": abi.constant("KVTRACE_KERNEL_SLOT_FROM_PC") if stamp else 0,
            "event_kind": abi.constant("KVTRACE_EVENT_BLOCK_ENTER"),
            "sequence_low": self._sequence % 65536,
        }
        tag = (1 + self._sequence // self.capacity) % 65536
        tags = {f"tag{part}": tag for part in range(4)}
        self.events.append(values | tags | changes)
        self._sequence += 1

    def store(
        self,
        launch: Launch,
        block: tuple[int, int, int] = (0, 0, 0),
        address: int = KV_ADDRESS,
        **changes: int,
    ) -> None:
        """Let the first thread of a block store to memory: the next event."""
        kind = abi.constant("KVTRACE_EVENT_GLOBAL_STORE")
        pc = PC + 0x80
        values = {"event_kind": kind, "pc": pc, "address": address, "access_size": 16}
        self.enter(launch, block, **(values | changes))

    def enter_all(self, launch: Launch) -> None:
        """Let every block of a launch enter, in the order of block indices."""
        for block in launch.blocks:
            self.enter(launch, block)

    def drop_stores(self, stores: int = 1) -> None:
        """Let stores happen that found no space."""
        self.drop(stores)
        self.stores_dropped += stores

    def drop(self, blocks: int = 1) -> None:
        """Let blocks enter that found no space: they take a sequence and leave no event."""
        self._sequence += blocks
        self.dropped += blocks

    def lose(self, position: int) -> None:
        """Take an event out as if its block had never entered: later sequences close up."""
        del self.events[position]
        for sequence, event in enumerate(self.events):
            event["sequence_low"] = sequence % 65536

    def event_file(self, **changes: Any) -> bytes:
        """Return the bytes of the event file."""
        header = header_bytes(
            "events",
            **(
                self._header(len(self.events), self.dropped)
                | {"context_index": self.context_index}
                | changes
            ),
        )
        return header + b"".join(struct_bytes(abi.EVENTS_STRUCT, **event) for event in self.events)

    def launch_file(self, **changes: Any) -> bytes:
        """Return the bytes of the launch file."""
        header = header_bytes(
            "launches",
            **(self._header(len(self.launches), self.launches_dropped) | changes),
        )
        records = (struct_bytes(abi.LAUNCHES_STRUCT, **launch.values) for launch in self.launches)
        return header + b"".join(records)

    def _header(self, records: int, dropped: int) -> dict[str, int]:
        return {
            "record_count": records,
            "dropped_count": dropped,
            "process_id": self.process_id,
            "capacity": self.capacity,
        } | self.changes

    def _launch(self, grid: tuple[int, int, int], changes: dict[str, int]) -> Launch:
        values = {
            "stream": STREAM,
            "host_monotonic_ns": HOST_STEP_NS * (1 + len(self.launches)),
            "launch_stamp": 0,
            "context_index": self.context_index,
            **dict(zip(("grid_dim_x", "grid_dim_y", "grid_dim_z"), grid, strict=True)),
        }
        dim_x, dim_y, dim_z = grid
        blocks = tuple((x, y, z) for z in range(dim_z) for y in range(dim_y) for x in range(dim_x))
        launch = Launch(values | changes, blocks)
        self.launches.append(launch)
        return launch


def replays(
    nodes: int = 40, count: int = 7, grid: tuple[int, int, int] = (1, 1, 1), *, stamps: bool = True
) -> Trace:
    """Return replays of one graph, each node's blocks entering in order."""
    trace = Trace(stamps=stamps)
    for launch_id in range(1, count + 1):
        for node in range(nodes):
            trace.enter_all(trace.node(node, launch_id, grid))
    return trace


def seven_replays(nodes: int = 40) -> Trace:
    """Return the article's measured request: 7 replays of 40 nodes of one block, 280 in all."""
    return replays(nodes, 7)


def request(index: int = 0, role: str = "measured", **changes: Any) -> dict[str, Any]:
    """Return a line of requests.jsonl that takes in all launches of a trace."""
    return {
        "request_index": index,
        "request_id": f"kvtrace-{index}",
        "role": role,
        "prompt_token_ids": [1, 2, 3],
        "max_tokens": 8,
        "http_status": 200,
        "returned_token_ids": list(range(8)),
        "host_monotonic_begin_ns": 1,
        "host_monotonic_end_ns": 1 << 62,
        "error": None,
    } | changes


def journal(**changes: Any) -> list[dict[str, Any]]:
    """Return a process's journal: attached, context created, target bound."""
    bound = {
        "event": "function_bound",
        "context_index": 0,
        "kernel_slot": 0,
        "name": TARGET,
        "target": True,
        "pc": PC,
    }
    return [
        {"event": "attached", "abi_version": abi.constant("KVTRACE_ABI_VERSION")},
        {"event": "context_created", "context_index": 0, "device": 0},
        bound | changes,
    ]


def started(**changes: Any) -> dict[str, Any]:
    """Return the first line of a process's steps: one KV group of 16 tokens a block."""
    return {
        "event": "started",
        "schema_version": 1,
        "engine": "vllm",
        "engine_version": "0.26.0",
        "model_runner": "v2",
        "ranks": {"tensor": 0, "world": 0},
        "stamped": True,
        "block_sizes": [16],
    } | changes


def step(
    stamp: int, kind: str = "forward", requests: Iterable[Any] = (), **fields: Any
) -> dict[str, Any]:
    """Return a step's line; `rows` of a forward step follow from its requests."""
    line = {"event": "step", "step_stamp": stamp, "kind": kind, "host_monotonic_ns": stamp}
    if requests:
        line |= {"requests": list(requests), "rows": sum(part[1] for part in requests)}
    return line | fields


def layout(
    layers: int = 2,
    block_size: int = 16,
    heads: int = 2,
    dim: int = 8,
    num_blocks: int = 32,
    **changes: Any,
) -> dict[str, Any]:
    """Return a layout as vLLM 0.26 has: K and V in one row, heads within the token (NHD)."""
    row = 2 * dim
    token = heads * row
    size = num_blocks * block_size * token * 2
    tensors = [
        {
            "layer_name": f"layers.{index}",
            "layer_index": index,
            "group": 0,
            "role": "kv",
            "address": KV_ADDRESS + index * size,
            "shape": [num_blocks, heads, block_size, row],
            "stride": [block_size * token, row, token, 1],
            "axes": ["block", "head", "offset", "kv_dim"],
            "dtype": "bfloat16",
            "element_size": 2,
        }
        for index in range(layers)
    ]
    group = {
        "block_size": block_size,
        "kernel_block_size": block_size,
        "layer_names": [tensor["layer_name"] for tensor in tensors],
    }
    return {
        "schema_version": 1,
        "num_blocks": num_blocks,
        "null_block": 0,
        "groups": [group],
        "tensors": tensors,
    } | changes


def kv_address(
    kv_slot: int, layer: int = 0, part: str = "K", head: int = 0, shape: Any = None
) -> int:
    """Return where a slot's K or V of a layer is in `layout`."""
    tensor = (shape or layout())["tensors"][layer]
    block, offset = divmod(kv_slot, tensor["shape"][2])
    stride = tensor["stride"]
    half = tensor["shape"][3] // 2 if part == "V" else 0
    element = block * stride[0] + head * stride[1] + offset * stride[2] + half
    return tensor["address"] + element * tensor["element_size"]


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_run(
    path: Path,
    *traces: Trace,
    requests: Iterable[dict[str, Any]] | None = None,
    journal_lines: Iterable[dict[str, Any]] | None = None,
    manifest: dict[str, Any] | None = None,
    complete: bool = True,
    steps: Iterable[dict[str, Any]] | None = None,
    layout: dict[str, Any] | None = None,
) -> Path:
    """Write a whole run directory; traces of one process must share a launch list to be right."""
    (path / "raw").mkdir(parents=True)
    (path / ("COMPLETE" if complete else "INCOMPLETE")).touch()
    (path / "manifest.json").write_text(json.dumps(manifest or {"engine": "vllm"}))
    write_lines(path / "requests.jsonl", [request()] if requests is None else requests)
    for trace in traces:
        pid = trace.process_id
        (path / f"raw/{pid}-{trace.context_index}.events.kvt").write_bytes(trace.event_file())
        (path / f"raw/{pid}.launches.kvt").write_bytes(trace.launch_file())
        lines = journal() if journal_lines is None else journal_lines
        write_lines(path / f"raw/{pid}.journal.jsonl", lines)
        if steps is not None:
            write_lines(path / f"raw/{pid}.steps.jsonl", steps)
        if layout is not None:
            (path / f"raw/{pid}.layout.json").write_text(json.dumps(layout))
    return path


def recorded(path: Path, *traces: Trace, **options: Any) -> Recording:
    """Write a run and read it back."""
    run = write_run(path / "run", *traces, **options)
    return read_recording(open_run_dir(run, allow_incomplete=True))


def reconciled(path: Path, *traces: Trace, **options: Any) -> Reconciliation:
    """Write a run, read it back and reconcile it, as the command does."""
    return reconcile(recorded(path, *traces, **options))


def attributed(path: Path, *traces: Trace, **options: Any) -> tuple[Reconciliation, Attribution]:
    """Do the same and give the rows to their requests."""
    recording = recorded(path, *traces, **options)
    result = reconcile(recording)
    return result, attribute(result, recording, step_tables(recording))
