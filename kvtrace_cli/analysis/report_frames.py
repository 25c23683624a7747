"""A reconciled recording -> the small frames that a report's pictures are drawn from."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

import polars as pl

from kvtrace_cli.analysis.audit_model import Audit
from kvtrace_cli.analysis.diff_words import passes_in_words
from kvtrace_cli.analysis.joined import SLICE_EVENTS
from kvtrace_cli.analysis.launches import IS_MEASURED
from kvtrace_cli.analysis.measured import STRETCH
from kvtrace_cli.analysis.model import Attribution, Reconciliation
from kvtrace_cli.analysis.pass_times import pass_times
from kvtrace_cli.analysis.report_model import (
    Figure,
    HeatMap,
    Mark,
    Pictures,
    RankPictures,
    SequenceGap,
    Stretch,
    Timeline,
)
from kvtrace_cli.analysis.report_slots import no_slot_map, slot_map
from kvtrace_cli.analysis.steps import STEP_STAMP, StepTables
from kvtrace_cli.dumps.event_source import EventDump
from kvtrace_cli.dumps.schema import (
    CONTEXT_INDEX,
    DECODE_STEP,
    LAUNCH_INDEX,
    LAYER_INDEX,
    PROCESS_ID,
    Recording,
)

# So many marks a browser draws at once without a wait, and a person can still tell apart.
_MOST_MARKS: Final = 4_000
# More columns than this are narrower than a phone's pixels.
_MOST_COLUMNS: Final = 160
_MOST_GAPS: Final = 12
# So many ranks are drawn; what is left out is counted.
_MOST_RANKS: Final = 8
_NS_PER_US: Final = 1_000
_NS_PER_MS: Final = 1_000_000
_CONTEXT_KEY: Final = (PROCESS_ID, CONTEXT_INDEX)
# What is looked at, of the many columns of launches.
_COLUMNS: Final = (
    LAUNCH_INDEX,
    *_CONTEXT_KEY,
    LAYER_INDEX,
    STRETCH,
    STEP_STAMP,
    DECODE_STEP,
    "is_graph_node",
    "first_of_exec",
    "first_of_replay",
    "matched_blocks",
    "first_globaltimer_ns",
    "last_globaltimer_ns",
)


def pictures(
    recording: Recording,
    result: Reconciliation,
    tables: StepTables,
    attribution: Attribution,
    audit: Audit,
) -> Pictures:
    """Choose what a report draws of a run, thousands of marks at most.

    Args:
        recording: of one run.
        result: from `reconcile`.
        tables: from `step_tables`.
        attribution: from `attribute`.
        audit: from `audit`.

    Returns:
        Pictures; what is left out is counted in each of them.

    Units: ms and us between block entries on the GPU globaltimer of one context; of `figures` as
    `pass_times` says. Source: block-entry times, which say when a block began and nothing of how
    long it ran.
    """
    by_rank, other_ranks = _by_rank(result)
    gaps = [gap for dump in recording.events for gap in _gaps(dump)]
    slots = slot_map(recording, result, tables, attribution, audit)
    return Pictures(
        by_rank=by_rank,
        other_ranks=other_ranks,
        slot_map=slots,
        no_slot_map="" if slots else no_slot_map(recording, result),
        gaps=tuple(gaps[:_MOST_GAPS]),
        gap_count=len(gaps),
        figures=tuple(_figures(recording, result)),
    )


@dataclass(frozen=True)
class _Chosen:
    """The launches that are pictured, with the replay or step (`pass`) of each.

    `launches` is in the order of first entries and has `begin` (ns from the stretch's first entry),
    `end` (its last entry), `launched`, and of its pass `pass_number` (from 1, in the order of time)
    and `pass_name`.
    """

    stretch: Stretch
    launches: pl.DataFrame

    @property
    def replays(self) -> pl.DataFrame:
        """The launches of graph replays."""
        return self.launches.filter("is_graph_node")


def _by_rank(result: Reconciliation) -> tuple[tuple[RankPictures, ...], int]:
    """Return what is drawn of each rank, and how many more have something to draw."""
    ranks = [
        (account.rank.process_id, account.rank.name)
        for account in result.ranks.accounts
        if account.matched_blocks and account.rank.name
    ]
    shown = ranks[:_MOST_RANKS] or [(None, "")]
    # A browser draws all of them, if only one is seen at a time.
    most_marks = _MOST_MARKS // len(shown)
    chosen = filter(None, (_choose(result, *rank) for rank in shown))
    pictures = (
        RankPictures(one.stretch, _timeline(one, most_marks), _heat_map(one, most_marks))
        for one in chosen
    )
    return tuple(pictures), max(0, len(ranks) - len(shown))


def _choose(result: Reconciliation, process_id: int | None, rank: str) -> _Chosen | None:
    """Choose the measured launches of the context with the most; all launches if none is.

    Args:
        result: of the run.
        process_id: only its contexts; None: those of all.
        rank: name of the process's rank.
    """
    entered = result.launches.lazy().filter(pl.col("matched_blocks") > 0)
    if process_id is not None:
        entered = entered.filter(pl.col(PROCESS_ID) == process_id)
    inside = entered.filter(IS_MEASURED).select(_COLUMNS).collect()
    is_measured = not inside.is_empty()
    if not is_measured:
        inside = entered.select(_COLUMNS).collect()
    if inside.is_empty():
        return None
    inside = inside.with_columns(_launched())
    contexts = inside.group_by(_CONTEXT_KEY).len().sort("len", *_CONTEXT_KEY, descending=True)
    process_id, context_index, count = contexts.row(0)
    of_context = inside.filter(
        pl.col(PROCESS_ID) == process_id, pl.col(CONTEXT_INDEX) == context_index
    )
    placed = of_context.filter(pl.col(LAYER_INDEX).is_not_null())
    stretch = Stretch(
        measured=is_measured,
        rank=rank,
        process_id=process_id,
        context_index=context_index,
        other_contexts=contexts.height - 1,
        launches=count,
        unplaced=count - placed.height,
    )
    return _Chosen(stretch, _with_passes(placed))


def _launched() -> pl.Expr:
    """Name how each was launched; graphs have the numbers of the terminal's table."""
    number = pl.col("first_of_exec").rank("dense").cast(pl.String)
    name = pl.when("is_graph_node").then(pl.concat_str(pl.lit("graph "), number))
    return name.otherwise(pl.lit("plain")).alias("launched")


def _with_passes(launches: pl.DataFrame) -> pl.DataFrame:
    begin, end = (pl.col(f"{name}_globaltimer_ns").cast(pl.Int64) for name in ("first", "last"))
    of_step = pl.col(LAUNCH_INDEX).min().over(STEP_STAMP, "is_graph_node")
    is_graph = pl.col("is_graph_node")
    return (
        launches.with_columns(
            (begin - begin.min()).alias("begin"),
            (end - begin.min()).alias("end"),
            pl.coalesce("first_of_replay", of_step).alias("pass"),
        )
        .with_columns(pl.col("begin").min().over("pass").alias("pass_begin"))
        .with_columns(
            pl.struct("pass_begin", "pass").rank("dense").alias("pass_number"),
            pl.when(is_graph)
            .then(pl.struct("pass_begin", "pass"))
            .rank("dense")
            .alias("replay_number"),
        )
        .with_columns(
            pl.when(pl.col(DECODE_STEP).is_not_null())
            .then(pl.concat_str(pl.lit("decode step "), DECODE_STEP))
            .when(is_graph)
            .then(pl.concat_str(pl.lit("replay "), "replay_number"))
            .otherwise(pl.concat_str(pl.lit("step "), STEP_STAMP))
            .alias("pass_name")
        )
        .sort("begin", LAUNCH_INDEX)
    )


def _timeline(chosen: _Chosen, most_marks: int) -> Timeline | None:
    """Draw each launch; where they are too many, each pass as one line through its layers."""
    launches = chosen.launches
    if launches.is_empty():
        return None
    passes = launches["pass_number"].n_unique()
    if launches.height <= most_marks:
        mark, shown = Mark.POINT, launches.with_columns(pl.col(LAYER_INDEX).alias("last_layer"))
    else:
        mark, shown = Mark.LINE, _as_lines(launches.filter(pl.col("pass_number") <= most_marks))
    marks = _as_marks(shown)
    return Timeline(
        mark=mark,
        passes=passes,
        shown_passes=min(passes, most_marks),
        layers=int(_most(marks["last_layer"])) + 1,
        span_ms=_most(marks["end_ms"]),
        marks=marks,
    )


def _as_lines(launches: pl.DataFrame) -> pl.DataFrame:
    """Return one row a pass, from the first entry of its first layer to that of its last."""
    return launches.group_by("pass_number", maintain_order=True).agg(
        pl.col("begin", "launched", "pass_name", STEP_STAMP).first(),
        pl.col("begin").last().alias("end"),
        pl.col(LAYER_INDEX).first(),
        pl.col(LAYER_INDEX).last().alias("last_layer"),
        pl.col("matched_blocks").sum(),
    )


def _as_marks(marks: pl.DataFrame) -> pl.DataFrame:
    return marks.select(
        (pl.col("begin") / _NS_PER_MS).round(6).alias("begin_ms"),
        (pl.col("end") / _NS_PER_MS).round(6).alias("end_ms"),
        pl.col(LAYER_INDEX).alias("layer"),
        "last_layer",
        "launched",
        "pass_name",
        pl.when(pl.col(STEP_STAMP) > 0).then(STEP_STAMP).alias(STEP_STAMP),
        pl.col("matched_blocks").alias("blocks"),
        "pass_number",
    )


def _intervals(chosen: _Chosen) -> pl.DataFrame:
    """Return `layer`, `pass_number` (from 1) and `interval_us` to the next layer's first entry.

    Of graph replays, or of plain steps if there is no replay; a layer's last one has no next.
    """
    launches = chosen.launches if chosen.replays.is_empty() else chosen.replays
    next_begin = pl.col("begin").shift(-1).over("pass_number")
    next_layer = pl.col(LAYER_INDEX).shift(-1).over("pass_number")
    return (
        launches.with_columns(pl.col("pass_number").rank("dense"))
        .group_by("pass_number", LAYER_INDEX)
        .agg(pl.col("begin").min())
        .sort("pass_number", LAYER_INDEX)
        .with_columns(
            pl.when(next_layer == pl.col(LAYER_INDEX) + 1)
            .then((next_begin - pl.col("begin")) / _NS_PER_US)
            .alias("interval_us")
        )
        .select(pl.col(LAYER_INDEX).alias("layer"), "pass_number", "interval_us")
        .drop_nulls()
    )


def _heat_map(chosen: _Chosen, most_marks: int) -> HeatMap | None:
    intervals = _intervals(chosen)
    if intervals.is_empty():
        return None
    passes = int(_most(intervals["pass_number"]))
    layers = intervals["layer"].n_unique()
    columns = max(1, min(_MOST_COLUMNS, most_marks // layers))
    grouped = -(-passes // columns)
    first = (pl.col("pass_number") - 1) // grouped * grouped + 1
    cells = (
        intervals.group_by("layer", first.alias("pass_number"))
        .agg(pl.col("interval_us").median().round(3))
        .sort("pass_number", "layer")
    )
    values = cells["interval_us"]
    of_layers = cells.group_by("layer").agg(pl.col("interval_us").median()).sort("layer")
    slowest = of_layers.sort("interval_us", descending=True, maintain_order=True)["layer"][0]
    return HeatMap(
        column=_column(chosen),
        passes=passes,
        grouped=grouped,
        layers=layers,
        median_us=_quantile(values, 0.5),
        low_us=_quantile(values, 0.01),
        high_us=_quantile(values, 0.99),
        max_us=_most(values),
        slowest_layer=int(slowest),
        cells=cells,
    )


def _column(chosen: _Chosen) -> str:
    if chosen.replays.is_empty():
        return "step"
    return "graph replay" if chosen.replays[DECODE_STEP].null_count() else "decode step"


def _figures(recording: Recording, result: Reconciliation) -> Iterator[Figure]:
    """Yield the medians of what `kvtrace diff` compares."""
    for figure in pass_times(result, recording).figures:
        if figure.samples:
            of = passes_in_words(figure.of)
            yield Figure(figure.name, of, figure.clock, median(figure.samples), figure.count)


def _gaps(dump: EventDump) -> Iterator[SequenceGap]:
    """Yield the gaps between a dump's events; one before the first is a gap too."""
    last = -1
    for piece in dump.pieces(SLICE_EVENTS):
        sequence = pl.Series(piece.sequence).cast(pl.Int64)
        before = sequence.shift(1, fill_value=last)
        is_gap = sequence - before > 1
        for after, at in zip(before.filter(is_gap), sequence.filter(is_gap), strict=True):
            yield SequenceGap(dump.name, after if after >= 0 else None, at - after - 1)
        last = sequence[-1]


def _quantile(values: pl.Series, share: float) -> float:
    return float(values.quantile(share, "linear") or 0)


def _most(values: pl.Series) -> float:
    return float(values.sort()[-1])
