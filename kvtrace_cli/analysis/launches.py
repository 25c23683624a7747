"""Launch records with what follows from them alone: populations, replays, layers, decode steps."""

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

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

_MAX_UINT64: Final = (1 << 64) - 1


def launch_frame(dumps: Sequence[Dump], requests: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Put the launch records of all processes in one frame and derive what they imply.

    Args:
        dumps: launch files, one per process, records in publish order.
        requests: lines of requests.jsonl.

    Returns:
        One row per record: the ABI's columns, `process_id`, and derived: `launch_index` (row
        number), `expected_blocks`, `is_graph_node`, `is_patched`, `is_stamped`, `join_stamp` (what
        its events carry), `shares_join_key` (telling it from others needs counting),
        `request_index` (of the measured request, else null), `first_of_exec` and
        `first_of_replay` (a `launch_index` that names exec and replay; null for plain launches),
        `layer_index` from 0 (rank in its replay) and `decode_step` from 1 (rank of its replay in
        the measured request).

    Units: `host_monotonic_ns` in ns of CLOCK_MONOTONIC, as in `requests`. Assumes: a replay's
    records are published in the order of its nodes. Source: dump ABI v1, kvtrace_launch_record.
    """
    empty = pl.DataFrame(schema=record_schema(abi.LAUNCHES_STRUCT) | {PROCESS_ID: pl.UInt32})
    frames = [
        dump.records.with_columns(pl.lit(dump.header.process_id, pl.UInt32).alias(PROCESS_ID))
        for dump in dumps
    ]
    launches = pl.concat([empty, *frames]).with_row_index(LAUNCH_INDEX)
    return _with_replays(_with_geometry(launches).with_columns(_request_index(requests)))


def measured_windows(requests: Sequence[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """Return (request_index, begin, end) of each measured request, ns of CLOCK_MONOTONIC.

    A request that never ended has an end in the far future.
    """
    return [
        (
            request["request_index"],
            request["host_monotonic_begin_ns"],
            request.get("host_monotonic_end_ns") or _MAX_UINT64,
        )
        for request in requests
        if request.get("role") == "measured" and request.get("host_monotonic_begin_ns")
    ]


def _request_index(requests: Sequence[dict[str, Any]]) -> pl.Expr:
    launched = pl.col("host_monotonic_ns")
    return pl.coalesce(
        pl.lit(None, pl.UInt32),
        *(
            pl.when(launched.is_between(pl.lit(begin, pl.UInt64), pl.lit(end, pl.UInt64))).then(
                pl.lit(index, pl.UInt32)
            )
            for index, begin, end in measured_windows(requests)
        ),
    ).alias(REQUEST_INDEX)


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
    is_graph_node = pl.col("is_graph_node")
    request_key = (PROCESS_ID, CONTEXT_INDEX, REQUEST_INDEX)
    in_request = is_graph_node & pl.col(REQUEST_INDEX).is_not_null()
    return (
        launches.with_columns(
            (pl.len().over(*JOIN_KEY, "is_patched") > 1).alias("shares_join_key"),
            pl.when(is_graph_node).then(index.min().over(*EXEC_KEY)).alias("first_of_exec"),
            pl.when(is_graph_node).then(index.min().over(*REPLAY_KEY)).alias("first_of_replay"),
        )
        .with_columns(
            pl.when(is_graph_node)
            .then(pl.int_range(pl.len(), dtype=pl.UInt32).over("first_of_replay"))
            .alias(LAYER_INDEX),
            pl.when(in_request).then("first_of_replay").alias("replay_in_request"),
        )
        .with_columns(
            pl.col("replay_in_request").rank("dense").over(*request_key).alias(DECODE_STEP)
        )
        .drop("replay_in_request")
    )
