"""What replays and gaps were spent on, as rich tables that are readable at 80 columns."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.gap_model import (
    LONG_FROM,
    Gap,
    GapVerdict,
    GraphGap,
    Part,
    PartKind,
    Span,
)
from kvtrace_cli.analysis.model import Durations
from kvtrace_cli.reports.cells import count, new_table

_STYLES: Final = {
    GapVerdict.PAIRED: "bold green",
    GapVerdict.INCONCLUSIVE: "bold yellow",
}
# Kernels that a table names; the others are one row.
_MOST_NAMED: Final = 12
_BAR: Final = 10


def gap_tables(gap: Gap) -> Iterator[RenderableType]:
    """Yield what `kvtrace gap` prints, top to bottom; the verdict comes last."""
    for graph in gap.graphs:
        title = graph_title(graph)
        yield Text(f"{title} (EMULATED)" if gap.emulated else title, style="bold")
        yield spans_table(graph)
        yield from parts_tables(graph)
    yield _verdict(gap)


def graph_title(graph: GraphGap) -> str:
    """Say which replays were paired."""
    return f"{count(graph.replays)} replays of {graph.nodes} target nodes, {graph.grids}"


def parts_tables(graph: GraphGap) -> Iterator[Table]:
    """Yield what ran inside a replay, and between two if any follow each other."""
    yield _parts_table("Inside a replay: first to last cache write", graph.inside)
    if graph.between is not None:
        yield _parts_table("Between replays: last cache write to the next", graph.between)


def spans_table(graph: GraphGap) -> Table:
    """Return how long both saw the spans to be, each on its own clock."""
    table = new_table("Spans, ms")
    table.add_column("")
    for name in ("median", "shortest", "longest", "count"):
        table.add_column(name, justify="right")
    table.add_column("clock")
    for name, span in (("inside", graph.inside), ("between", graph.between)):
        if span is not None:
            table.add_row(name, *_durations(span.sanitizer), "GPU globaltimer, block entries")
            table.add_row(name, *_durations(span.cupti), "CUPTI, kernels")
    return table


def _durations(found: Durations | None) -> tuple[str, ...]:
    if found is None:
        return ("-", "-", "-", "0")
    times = (found.median_ms, found.min_ms, found.max_ms)
    return (*(f"{time:.3f}" for time in times), count(found.count))


def _parts_table(title: str, span: Span) -> Table:
    table = new_table(title)
    table.add_column("what ran", overflow="fold", ratio=1)
    has_long = span.long_spans.count > 0
    shares = ("share", "usual") if has_long else ("share",)
    for name in ("runs", "ran ms", "share ms", *shares):
        table.add_column(name, justify="right")
    table.add_column("", width=_BAR)
    for part in _shown(span.parts):
        table.add_row(
            Text(part.name, style="" if part.kind is PartKind.KERNEL else "italic"),
            f"{part.runs:g}",
            f"{part.run_ms:.3f}",
            f"{part.share_ms:.3f}",
            f"{part.percent:.1f} %",
            *([f"{part.usual_percent:.1f} %"] if has_long else []),
            "█" * round(part.usual_percent * _BAR / 100),
        )
    table.caption = _caption(span)
    table.caption_justify = "left"
    return table


def _caption(span: Span) -> str:
    found = span.long_spans
    usual = (
        f" Usual, and the bars: without the {count(found.count)} of {count(span.cupti.count)} "
        f"spans that are longer than {LONG_FROM:g} x the median."
        if found.count
        else ""
    )
    return (
        f"Medians; shares of all spans together, 100 % in all.{usual} Where several run at once "
        "each counts in equal parts."
    )


def _shown(parts: Sequence[Part]) -> Iterator[Part]:
    """Yield the parts with the smaller kernels put together; idle stays last."""
    kernels = [part for part in parts if part.kind is PartKind.KERNEL]
    small = kernels[_MOST_NAMED:] if len(kernels) > _MOST_NAMED + 1 else []
    shown = [part for part in parts if part not in small]
    if small:
        others = Part(
            name=f"{len(small)} other kernels",
            kind=PartKind.KERNEL,
            share_ms=sum(part.share_ms for part in small),
            percent=sum(part.percent for part in small),
            usual_percent=sum(part.usual_percent for part in small),
            run_ms=sum(part.run_ms for part in small),
            runs=sum(part.runs for part in small),
        )
        is_idle = bool(shown) and shown[-1].kind is PartKind.IDLE
        shown.insert(len(shown) - is_idle, others)
    yield from shown


def _verdict(gap: Gap) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(overflow="fold")
    paired = sum(graph.replays for graph in gap.graphs)
    said = f"{count(paired)} replays of both runs" if gap.graphs else "nothing was split"
    grid.add_row(Text(gap.verdict.value, style=_STYLES[gap.verdict]), said)
    for reason in gap.reasons:
        grid.add_row(" -", Text(reason))
    for note in gap.notes:
        grid.add_row(" -", Text(f"note: {note}"))
    return grid
