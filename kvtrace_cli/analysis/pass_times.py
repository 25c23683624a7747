"""How long passes took: replays of a graph, and steps of plain launches, one clock per figure."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil, floor, sqrt
from typing import Any, Final

import polars as pl

from kvtrace_cli.analysis.launches import IS_MEASURED
from kvtrace_cli.analysis.measured import STRETCH
from kvtrace_cli.analysis.model import Reconciliation
from kvtrace_cli.analysis.outlines import taken_evenly
from kvtrace_cli.analysis.run_facts import MOST_SAMPLES, Figure, LayerMedians, Times
from kvtrace_cli.analysis.steps import STEP_KIND, STEP_STAMP
from kvtrace_cli.dumps.schema import (
    CONTEXT_INDEX,
    LAUNCH_INDEX,
    LAYER_INDEX,
    PROCESS_ID,
    Recording,
)

SPAN: Final = "first to last layer"
GAP: Final = "gap to the next"
INTERVAL: Final = "layer to layer"
BETWEEN_TOKENS: Final = "token to token"
FIGURES: Final = (SPAN, GAP, INTERVAL, BETWEEN_TOKENS)
# Those that hang on how requests that run at once are batched.
BATCHED_FIGURES: Final = (GAP, BETWEEN_TOKENS)
GPU_CLOCK: Final = "GPU globaltimer"
HOST_CLOCK: Final = "CLOCK_MONOTONIC"

# With fewer, a median says nothing of the noise.
FEWEST_SAMPLES: Final = 5
# Half of 1.96, the width of the middle 95 % of a normal distribution.
_RANKS_AWAY: Final = 0.98
_MOST_LAYERS: Final = 256
# Sorts of passes that times are kept of: those with the most passes.
_MOST_SORTS: Final = 4
_NS_PER_MS: Final = 1_000_000
_MS_DIGITS: Final = 6
_FIRST_LAUNCH: Final = "first_launch"
_COLUMNS: Final = (
    LAUNCH_INDEX,
    PROCESS_ID,
    CONTEXT_INDEX,
    STEP_STAMP,
    STEP_KIND,
    STRETCH,
    LAYER_INDEX,
    IS_MEASURED,
    "is_graph_node",
    "first_of_replay",
    "grid_dim_x",
    "grid_dim_y",
    "grid_dim_z",
    "first_globaltimer_ns",
    "last_globaltimer_ns",
)


def pass_times(result: Reconciliation, recording: Recording) -> Times:
    """Measure the passes of the measured stretches.

    Args:
        result: of `recording`; block-entry times say when blocks began, and nothing of how long a
            kernel ran.
        recording: its requests have the time of each token that was streamed.

    Returns:
        Figures, of each sort of pass (replays of so many nodes, or steps of so many plain
        launches, with the grid of the first): `first to last layer`, from the first block entry of
        the first node to the last of the last; `gap to the next`, from there to the first block
        entry of the next pass, where that is of the same sort and nothing was launched between;
        `layer to layer`, the median in a pass from a layer's first block entry to the next
        layer's. And of the requests that were streamed `token to token`. Tensor ranks run in
        lockstep, so a pass of the first one stands for all: the others' would count it again.

    Units: ms. Clocks: GPU globaltimer; `token to token` on the host's CLOCK_MONOTONIC.
    """
    figures: list[Figure] = []
    medians: list[LayerMedians] = []
    passes = _passes(result)
    for sort in passes["sort"].unique(maintain_order=True)[:_MOST_SORTS]:
        of_sort = passes.filter(pl.col("sort") == sort)
        launches = int(of_sort["launches"][0])
        for name, column in ((SPAN, "span"), (GAP, "gap"), (INTERVAL, "interval")):
            values = of_sort[column].drop_nulls()
            if len(values):
                figures.append(_figure(name, sort, launches, GPU_CLOCK, values.to_list()))
        if of_sort.height >= FEWEST_SAMPLES:
            medians.append(_layer_medians(sort, of_sort))
    between = list(_between_tokens(recording.requests))
    if between:
        figures.append(_figure(BETWEEN_TOKENS, "streamed requests", 0, HOST_CLOCK, between))
    return Times(tuple(figures), tuple(medians))


def _figure(name: str, of: str, launches: int, clock: str, values: Sequence[float]) -> Figure:
    samples = taken_evenly(values, MOST_SAMPLES)
    shown = tuple(round(value, _MS_DIGITS) for value in samples)
    return Figure(name, of, launches, clock, len(values), shown)


def _passes(result: Reconciliation) -> pl.DataFrame:
    """Return one row per measured pass, the most frequent sort first.

    Returns:
        sort, launches, span, gap, interval (ms; null where not known), intervals (list of ms).
    """
    ranks = (account.rank for account in result.ranks.accounts)
    others = [rank.process_id for rank in ranks if rank.tensor and rank.process_id is not None]
    counted = result.launches.lazy().filter(IS_MEASURED, ~pl.col(PROCESS_ID).is_in(others))
    launches = _with_pass(counted.select(_COLUMNS).collect())
    began = pl.col("first_globaltimer_ns").cast(pl.Int64)
    ended = pl.col("last_globaltimer_ns").cast(pl.Int64)
    grid = (pl.col(f"grid_dim_{axis}").first() for axis in "xyz")
    passes = (
        launches.group_by(_FIRST_LAUNCH, maintain_order=True)
        .agg(
            pl.col(PROCESS_ID, CONTEXT_INDEX, STRETCH, "is_graph_node").first(),
            pl.col(LAUNCH_INDEX).max().alias("last_of_pass"),
            pl.len().alias("launches"),
            *grid,
            began.first().alias("began"),
            ended.last().alias("ended"),
            (began.diff().drop_nulls() / _NS_PER_MS).alias("intervals"),
        )
        .with_columns(
            pl.format(
                "{} of {}, grid {}",
                pl.when("is_graph_node").then(pl.lit("replay")).otherwise(pl.lit("plain step")),
                "launches",
                pl.concat_str("grid_dim_x", "grid_dim_y", "grid_dim_z", separator="x"),
            ).alias("sort")
        )
    )
    stretch = (PROCESS_ID, CONTEXT_INDEX, STRETCH)
    is_next = (pl.col(_FIRST_LAUNCH).shift(-1).over(stretch) == pl.col("last_of_pass") + 1) & (
        pl.col("sort").shift(-1).over(stretch) == pl.col("sort")
    )
    gap = pl.col("began").shift(-1).over(stretch) - pl.col("ended")
    frequency = pl.len().over("sort")
    return (
        passes.with_columns(
            ((pl.col("ended") - pl.col("began")) / _NS_PER_MS).alias("span"),
            (pl.when(is_next).then(gap) / _NS_PER_MS).alias("gap"),
            pl.col("intervals").list.median().alias("interval"),
        )
        .sort(frequency, descending=True, maintain_order=True)
        .select("sort", "launches", "span", "gap", "interval", "intervals")
    )


def _with_pass(launches: pl.DataFrame) -> pl.DataFrame:
    """Add the first launch of each pass; a plain launch without a known step is of none."""
    index = pl.col(LAUNCH_INDEX)
    in_step = ~pl.col("is_graph_node") & (pl.col(STEP_KIND) == "forward")
    first_of_step = index.min().over(PROCESS_ID, CONTEXT_INDEX, STEP_STAMP, "is_graph_node")
    return launches.with_columns(
        pl.when("is_graph_node")
        .then("first_of_replay")
        .when(in_step)
        .then(first_of_step)
        .alias(_FIRST_LAUNCH)
    ).filter(pl.col(_FIRST_LAUNCH).is_not_null())


def _layer_medians(of: str, passes: pl.DataFrame) -> LayerMedians:
    """Return each layer's median with its interval, which needs no resampling: ranks have it."""
    count = passes.height
    away = _RANKS_AWAY * sqrt(count)
    ranks = max(floor(count / 2 - away) - 1, 0), min(ceil(count / 2 + away), count - 1)
    intervals = pl.col("intervals").sort()
    layers = (
        passes.select(pl.int_ranges(pl.col("intervals").list.len()).alias("layer"), "intervals")
        .explode("layer", "intervals")
        .drop_nulls()
        .group_by("layer")
        .agg(
            pl.col("intervals").median().alias("medians"),
            intervals.slice(ranks[0], 1).first().alias("lows"),
            intervals.slice(ranks[1], 1).first().alias("highs"),
        )
        .sort("layer")
        .drop_nulls()
        .head(_MOST_LAYERS)
    )
    columns = {
        name: tuple(round(value, _MS_DIGITS) for value in layers[name])
        for name in ("medians", "lows", "highs")
    }
    return LayerMedians(of, count, **columns)


def _between_tokens(requests: Sequence[dict[str, Any]]) -> Iterator[float]:
    """Yield ms from each token to the next of the measured requests that were streamed."""
    for request in requests:
        times = request.get("token_host_monotonic_ns")
        if request.get("role") == "measured" and isinstance(times, list):
            known = [value for value in times if isinstance(value, int)]
            yield from ((later - earlier) / _NS_PER_MS for earlier, later in pairwise(known))
