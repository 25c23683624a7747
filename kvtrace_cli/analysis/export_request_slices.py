"""The slices of requests and of their steps, by the GPU's clock."""

from collections.abc import Iterator
from typing import Final

import polars as pl

from kvtrace_cli.analysis.export_frames import ExportSource, request_indices
from kvtrace_cli.analysis.export_slice_schema import (
    BLOCKS,
    ORDER,
    REQUEST_STEPS,
    REQUESTS,
    TIMES,
)
from kvtrace_cli.analysis.launches import IS_MEASURED
from kvtrace_cli.analysis.steps import STEP_KEY, STEP_KIND, STEP_STAMP
from kvtrace_cli.dumps.schema import DECODE_STEP, PROCESS_ID, REQUEST_INDEX

_FORWARD: Final = "forward"
_SPAN: Final = (pl.col("begin_ns").min(), pl.col("end_ns").max())


def requests_by_steps(source: ExportSource, known: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """Yield the requests whose rows are known, and the steps that ran rows of them."""
    of_steps = known.filter(pl.col(STEP_KIND) == _FORWARD).group_by(STEP_KEY)
    times = of_steps.agg(*TIMES, *ORDER).collect()
    rows = source.tables.rows.lazy().group_by(*STEP_KEY, "request_id")
    steps = (
        rows.agg(
            pl.len().cast(pl.UInt32).alias("rows"), pl.col("position").min().alias("first_position")
        )
        .collect()
        .join(times, on=STEP_KEY, validate="m:1")
    )
    key = (PROCESS_ID, "request_id")
    indices = request_indices(steps["request_id"], source.recording.requests)
    requests = (
        steps.group_by(key)
        .agg(*_SPAN, pl.col("root_launch").min(), pl.col(IS_MEASURED).any(), pl.col("rows").sum())
        .join(indices, on="request_id", how="left", validate="m:1")
        .rename({"owner_request_index": REQUEST_INDEX})
        .sort(PROCESS_ID, "root_launch", "request_id")
        .with_row_index("root")
    )
    children = steps.drop("root_launch", IS_MEASURED).join(
        requests.select(*key, "root", "root_launch", IS_MEASURED), on=key, validate="m:1"
    )
    last = pl.col("first_position") + pl.col("rows") - 1
    positions = (
        pl.when(pl.col("rows") == 1)
        .then(pl.format("step {}: position {}", STEP_STAMP, "first_position"))
        .otherwise(pl.format("step {}: positions {} to {}", STEP_STAMP, "first_position", last))
    )
    yield _on_request_track(requests, pl.format("request {}", "request_id"), REQUESTS)
    yield _on_request_track(children, positions, REQUEST_STEPS)


def requests_by_time(source: ExportSource, known: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """Yield the measured requests of processes without steps, and their decode steps.

    Only a request that was alone under way has launches of its own.
    """
    with_steps = source.tables.steps[PROCESS_ID].unique().to_list()
    own = known.filter(~pl.col(PROCESS_ID).is_in(with_steps), pl.col(REQUEST_INDEX).is_not_null())
    key = (PROCESS_ID, REQUEST_INDEX)
    requests = (
        own.group_by(key)
        .agg(*TIMES, *BLOCKS, *ORDER)
        .with_columns(pl.col(REQUEST_INDEX).alias("root"))
        .collect()
    )
    steps = (
        own.filter(pl.col(DECODE_STEP).is_not_null())
        .group_by(*key, DECODE_STEP)
        .agg(*TIMES, *BLOCKS)
        .collect()
        .join(requests.select(*key, "root", "root_launch", IS_MEASURED), on=key, validate="m:1")
    )
    yield _on_request_track(requests, pl.format("request {}", REQUEST_INDEX), REQUESTS)
    yield _on_request_track(steps, pl.format("decode step {}", DECODE_STEP), REQUEST_STEPS)


def _on_request_track(slices: pl.DataFrame, name: pl.Expr, level: int) -> pl.DataFrame:
    return slices.with_columns(
        pl.lit("requests").alias("track_name"),
        name.alias("name"),
        track_order=pl.lit(0),
        depth=pl.lit(1 if level == REQUEST_STEPS else 0),
        level=pl.lit(level),
    )
