"""The slices of a timeline: engine steps, graph replays, plain launches, nodes, and requests."""

from dataclasses import dataclass
from typing import Final

import polars as pl

from kvtrace_cli.analysis.export_frames import ExportSource
from kvtrace_cli.analysis.export_request_slices import requests_by_steps, requests_by_time
from kvtrace_cli.analysis.export_slice_schema import (
    BLOCKS,
    LAUNCHES,
    NODES,
    ORDER,
    STEPS,
    TIMES,
    WORKING_SCHEMA,
)
from kvtrace_cli.analysis.launches import IS_MEASURED
from kvtrace_cli.analysis.row_mapping import with_row_axis
from kvtrace_cli.analysis.steps import STEP_KEY, STEP_KIND, STEP_STAMP
from kvtrace_cli.dumps.schema import (
    CONTEXT_INDEX,
    DECODE_STEP,
    LAUNCH_INDEX,
    LAYER_INDEX,
    PROCESS_ID,
    REQUEST_INDEX,
)

_COLUMNS: Final = (
    LAUNCH_INDEX,
    PROCESS_ID,
    CONTEXT_INDEX,
    "kernel_slot",
    "is_graph_node",
    "graph_exec",
    "exec_generation",
    "launch_id",
    "stream",
    "first_of_replay",
    STEP_STAMP,
    STEP_KIND,
    LAYER_INDEX,
    DECODE_STEP,
    REQUEST_INDEX,
    IS_MEASURED,
    "expected_blocks",
    "matched_blocks",
    "first_sequence",
    "last_sequence",
    "first_globaltimer_ns",
    "last_globaltimer_ns",
)
_TRACK_KEY: Final = (
    PROCESS_ID,
    CONTEXT_INDEX,
    "is_graph_node",
    "graph_exec",
    "exec_generation",
    "stream",
)
_HAS_TIME: Final = pl.col("first_globaltimer_ns").is_not_null()


@dataclass(frozen=True)
class Slices:
    """Slices in no order, and how many there are of each level (its number).

    `frame` has SLICE_SCHEMA, and `level`; `root`, which within a track a parent and its children
    share; `root_launch` (the first launch of the parent) and `is_measured`, also the parent's.
    `begin_ns` to `end_ns`: from first to last matched block entry.
    """

    frame: pl.DataFrame
    totals: dict[int, int]


def all_slices(source: ExportSource, at_most: int) -> Slices:
    """Return the slices; of nodes and plain launches none but the first `at_most` in `by_weight`.

    There may be millions of them, and what nobody will look at need not be put together.

    Units: ns of %globaltimer.
    """
    known = source.result.launches.lazy().select(_COLUMNS).filter(_HAS_TIME)
    of_launches, totals = _of_launches(source, known, at_most)
    frames = (
        *of_launches,
        _engine_steps(source, known),
        *requests_by_steps(source, known),
        *requests_by_time(source, known),
    )
    empty = pl.DataFrame(schema=WORKING_SCHEMA)
    frame = pl.concat([empty, *(_complete(frame) for frame in frames)])
    counts = dict(frame.group_by("level").agg(pl.len()).iter_rows())
    return Slices(frame, counts | totals)


def by_weight(frame: pl.DataFrame) -> pl.DataFrame:
    """Sort what belongs to one level: measured requests first, then in the order of launches."""
    keys = (pl.col(IS_MEASURED).not_(), "root_launch", "root", "begin_ns")
    return frame.sort(*keys, maintain_order=True)


def _complete(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in WORKING_SCHEMA.items()
    )


def _of_launches(
    source: ExportSource, known: pl.LazyFrame, at_most: int
) -> tuple[list[pl.DataFrame], dict[int, int]]:
    """Return plain launches, replays and the nodes in them; and how many there are in all."""
    tracks = _launch_tracks(known)
    plain = known.filter(~pl.col("is_graph_node"))
    nodes = known.filter("is_graph_node")
    first_plain = (
        plain.sort(pl.col(IS_MEASURED).not_(), LAUNCH_INDEX)
        .head(at_most)
        .with_columns(pl.col(LAUNCH_INDEX).alias("root"), pl.col(LAUNCH_INDEX).alias("root_launch"))
        .collect()
    )
    replays = _replays(nodes, tracks)
    shown = by_weight(replays).filter(pl.col("launches").cum_sum() - pl.col("launches") < at_most)
    parents = shown.select(*_TRACK_KEY, "first_of_replay", "root", "root_launch", IS_MEASURED)
    first_nodes = (
        nodes.drop(IS_MEASURED)
        .join(parents.lazy(), on=(*_TRACK_KEY, "first_of_replay"), maintain_order="left")
        .collect()
    )
    plain_count = int(plain.select(pl.len()).collect().item())
    return [
        _singles(source, first_plain, tracks).with_columns(depth=pl.lit(0), level=pl.lit(LAUNCHES)),
        replays,
        _singles(source, first_nodes, tracks).with_columns(depth=pl.lit(1), level=pl.lit(NODES)),
    ], {LAUNCHES: plain_count + replays.height, NODES: int(replays["launches"].sum())}


def _launch_tracks(known: pl.LazyFrame) -> pl.DataFrame:
    """Name the track of each graph exec and stream, and of each stream's plain launches."""
    keys = known.select(_TRACK_KEY).unique().sort(_TRACK_KEY).collect()
    several = {
        process_id
        for process_id, contexts in keys.group_by(PROCESS_ID)
        .agg(pl.col(CONTEXT_INDEX).n_unique())
        .iter_rows()
        if contexts > 1
    }
    names = []
    for process_id, context, is_graph_node, graph_exec, generation, stream in keys.iter_rows():
        what = f"graph exec {generation} ({graph_exec:#x})" if is_graph_node else "plain launches"
        on_stream = f"stream {stream:#x}" if stream else "default stream"
        in_context = f", context {context}" if process_id in several else ""
        names.append(f"{what}, {on_stream}{in_context}")
    return keys.with_columns(
        pl.Series("track_name", names, pl.String),
        pl.when("is_graph_node").then(2).otherwise(3).alias("track_order"),
    )


def _replays(nodes: pl.LazyFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    return (
        nodes.group_by(*_TRACK_KEY, "first_of_replay")
        .agg(
            *TIMES,
            *BLOCKS,
            *ORDER,
            pl.col("launch_id", STEP_STAMP, DECODE_STEP, REQUEST_INDEX).first(),
            pl.col("first_sequence").min(),
            pl.col("last_sequence").max(),
        )
        .collect()
        .join(tracks, on=_TRACK_KEY, validate="m:1")
        .with_columns(
            pl.format("replay {}", "launch_id").alias("name"),
            pl.col("first_of_replay").alias("root"),
            depth=pl.lit(0),
            level=pl.lit(LAUNCHES),
        )
    )


def _singles(source: ExportSource, launches: pl.DataFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    """Turn single launches into slices; what they are part of has their request."""
    kernel = pl.coalesce("kernel", pl.format("kernel slot {}", "kernel_slot"))
    return (
        with_row_axis(launches, source.recording.journal)
        .join(tracks, on=_TRACK_KEY, maintain_order="left", validate="m:1")
        .with_columns(
            pl.col("first_globaltimer_ns").alias("begin_ns"),
            pl.col("last_globaltimer_ns").alias("end_ns"),
            pl.coalesce(pl.format("layer {}: {}", LAYER_INDEX, kernel), kernel).alias("name"),
        )
        .drop(REQUEST_INDEX, DECODE_STEP)
    )


def _engine_steps(source: ExportSource, known: pl.LazyFrame) -> pl.DataFrame:
    decode_step = pl.col(DECODE_STEP)
    of_steps = known.filter(pl.col(STEP_KIND).is_not_null()).group_by(STEP_KEY)
    return (
        of_steps.agg(
            *TIMES,
            *BLOCKS,
            *ORDER,
            pl.when(decode_step.n_unique() == 1).then(decode_step.first()).alias(DECODE_STEP),
            pl.col(STEP_KIND).first(),
        )
        .collect()
        .join(
            source.tables.steps.select(*STEP_KEY, "rows", "padded_rows", "graph_mode"),
            on=STEP_KEY,
            how="left",
            validate="1:1",
        )
        .with_columns(
            pl.lit("engine steps").alias("track_name"),
            pl.format("step {}: {}", STEP_STAMP, STEP_KIND).alias("name"),
            pl.col(STEP_STAMP).alias("root"),
            track_order=pl.lit(1),
            depth=pl.lit(0),
            level=pl.lit(STEPS),
        )
    )
