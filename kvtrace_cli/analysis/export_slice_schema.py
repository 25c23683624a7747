"""What a slice of a timeline has: its columns, its level, and how launches add up to one."""

from typing import Final

import polars as pl

from kvtrace_cli.analysis.launches import IS_MEASURED
from kvtrace_cli.dumps.schema import LAUNCH_INDEX, PROCESS_ID

# What is kept first where there are too many; `level` is the number.
LEVELS: Final = (
    "requests",
    "engine steps",
    "replays and plain launches",
    "steps of requests",
    "nodes",
)
REQUESTS, STEPS, LAUNCHES, REQUEST_STEPS, NODES = range(len(LEVELS))

# What is known of a slice, beside its times.
DETAILS: Final = {
    "request_index": pl.UInt32,
    "decode_step": pl.UInt32,
    "step_stamp": pl.UInt32,
    "graph_mode": pl.String,
    "rows": pl.UInt32,
    "padded_rows": pl.UInt32,
    "first_position": pl.UInt32,
    "launch_id": pl.UInt32,
    "launch_index": pl.UInt32,
    "layer_index": pl.UInt32,
    "launches": pl.UInt32,
    "expected_blocks": pl.UInt64,
    "matched_blocks": pl.UInt64,
    "first_sequence": pl.UInt64,
    "last_sequence": pl.UInt64,
}
SLICE_SCHEMA: Final = {
    PROCESS_ID: pl.UInt32,
    "track_order": pl.UInt8,
    "track_name": pl.String,
    "depth": pl.UInt8,
    "begin_ns": pl.UInt64,
    "end_ns": pl.UInt64,
    "name": pl.String,
} | DETAILS
WORKING_SCHEMA: Final = SLICE_SCHEMA | {
    "level": pl.UInt8,
    "root": pl.UInt64,
    "root_launch": pl.UInt32,
    IS_MEASURED: pl.Boolean,
}
# What is said of several launches together.
TIMES: Final = (
    pl.col("first_globaltimer_ns").min().alias("begin_ns"),
    pl.col("last_globaltimer_ns").max().alias("end_ns"),
)
BLOCKS: Final = (
    pl.len().cast(pl.UInt32).alias("launches"),
    pl.col("expected_blocks", "matched_blocks").sum(),
)
ORDER: Final = (
    pl.col(LAUNCH_INDEX).min().alias("root_launch"),
    pl.col(IS_MEASURED).any(),
)
