"""Launch records with what follows from them: populations, steps, replays, layers, decode steps."""

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from kvtrace_cli.analysis.measured import STRETCH, ForeignStretches, with_stretches
from kvtrace_cli.analysis.steps import STEP_KEY, STEP_KIND, STEP_STAMP
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.schema import (
    CONTEXT_INDEX,
    DECODE_STEP,
    LAUNCH_INDEX,
    LAYER_INDEX,
    PROCESS_ID,
    REQUEST_INDEX,
    Dump,
    record_schema,
)

EXEC_KEY: Final = (PROCESS_ID, CONTEXT_INDEX, "graph_exec", "exec_generation")
REPLAY_KEY: Final = (*EXEC_KEY, "launch_id")
JOIN_KEY: Final = (PROCESS_ID, CONTEXT_INDEX, "grid_id", "join_stamp")

_RANK_SOURCES: Final = pl.Enum(["replay", "step"])
IS_MEASURED: Final = "is_measured"
# Plain launches of one kernel in one step, which are ranked to give the layer.
_STEP_RANK_KEY: Final = (PROCESS_ID, CONTEXT_INDEX, STEP_STAMP, "kernel_slot")


def launch_frame(
    dumps: Sequence[Dump],
    requests: Sequence[dict[str, Any]],
    steps: pl.DataFrame,
    foreign: ForeignStretches,
) -> pl.DataFrame:
    """Put the launch records of all processes in one frame and derive what they imply.

    Args:
        dumps: launch files, one per process, records in publish order.
        requests: lines of requests.jsonl.
        steps: from `step_frame`.
        foreign: of the processes whose host times are on another clock than the requests'.

    Returns:
        One row per record: the ABI's columns, `process_id`, and derived: `launch_index` (row
        number), `expected_blocks`, `is_graph_node`, `is_patched`, `is_stamped`, `join_stamp` (what
        its events carry), `shares_join_key` (telling it from others needs counting),
        `measured_stretch` and `is_measured` (submitted while measured requests were under way),
        `request_index` (of the measured request if it alone was under way in its stretch),
        `first_of_exec` and `first_of_replay` (a `launch_index` that names exec and replay; null
        for plain launches), `step_kind` (of the step that `step_stamp` names; null if none is
        known), `layer_index` from 0 and `layer_rank_source` (`replay`: rank of a graph node in its
        replay; `step`: rank of a plain launch among the same kernel's of its step; else null), and
        `decode_step` from 1 (rank of its replay in the measured request).

    Units: `host_monotonic_ns` in ns of CLOCK_MONOTONIC, as in `requests`. Assumes: a replay's
    records are published in the order of its nodes, and a step's in the order of layers. Source:
    dump ABI v1, kvtrace_launch_record.
    """
    empty = pl.DataFrame(schema=record_schema(abi.LAUNCHES_STRUCT) | {PROCESS_ID: pl.UInt32})
    frames = [
        dump.records.with_columns(pl.lit(dump.header.process_id, pl.UInt32).alias(PROCESS_ID))
        for dump in dumps
    ]
    launches = pl.concat([empty, *frames]).with_row_index(LAUNCH_INDEX)
    launches = with_stretches(_with_geometry(launches), requests, foreign).with_columns(
        pl.col(STRETCH).is_not_null().alias(IS_MEASURED)
    )
    if steps.is_empty():
        # A column of one value takes no memory, one that a join makes does.
        return _with_replays(launches.with_columns(pl.lit(None, pl.String).alias(STEP_KIND)))
    kinds = launches.select(STEP_KEY).join(
        steps.select(*STEP_KEY, STEP_KIND),
        on=STEP_KEY,
        how="left",
        maintain_order="left",
        validate="m:1",
    )
    return _with_replays(launches.with_columns(kinds[STEP_KIND]))


def _with_geometry(launches: pl.DataFrame) -> pl.DataFrame:
    flags = pl.col("launch_flags")
    dims = [pl.col(f"grid_dim_{axis}").cast(pl.UInt64) for axis in "xyz"]
    is_stamped = flags & abi.constant("KVTRACE_LAUNCH_STAMPED") != 0
    return launches.with_columns(
        (dims[0] * dims[1] * dims[2]).alias("expected_blocks"),
        (pl.col("launch_kind") == abi.constant("KVTRACE_LAUNCH_GRAPH_NODE")).alias("is_graph_node"),
        (flags & abi.constant("KVTRACE_LAUNCH_PATCHED") != 0).alias("is_patched"),
        is_stamped.alias("is_stamped"),
        pl.when(is_stamped).then("launch_stamp").otherwise(0).cast(pl.UInt32).alias("join_stamp"),
    )


def _with_replays(launches: pl.DataFrame) -> pl.DataFrame:
    index = pl.col(LAUNCH_INDEX)
    number = pl.int_range(pl.len(), dtype=pl.UInt32)
    is_graph_node = pl.col("is_graph_node")
    request_key = (PROCESS_ID, CONTEXT_INDEX, REQUEST_INDEX)
    in_step = ~is_graph_node & pl.col(STEP_KIND).is_not_null()
    in_request = is_graph_node & pl.col(REQUEST_INDEX).is_not_null()
    return (
        launches.with_columns(
            (pl.len().over(*JOIN_KEY, "is_patched") > 1).alias("shares_join_key"),
            pl.when(is_graph_node).then(index.min().over(*EXEC_KEY)).alias("first_of_exec"),
            pl.when(is_graph_node).then(index.min().over(*REPLAY_KEY)).alias("first_of_replay"),
        )
        .with_columns(
            pl.when(is_graph_node)
            .then(number.over("first_of_replay"))
            .when(in_step)
            .then(number.over(*_STEP_RANK_KEY, "is_graph_node"))
            .alias(LAYER_INDEX),
            pl.when(is_graph_node)
            .then(pl.lit("replay"))
            .when(in_step)
            .then(pl.lit("step"))
            .cast(_RANK_SOURCES)
            .alias("layer_rank_source"),
            pl.when(in_request).then("first_of_replay").alias("replay_in_request"),
        )
        .with_columns(
            pl.col("replay_in_request").rank("dense").over(*request_key).alias(DECODE_STEP)
        )
        .drop("replay_in_request")
    )
