"""What ran inside replays and between them: a stacked picture and the tables of `kvtrace gap`."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import altair as alt

from kvtrace_cli.analysis.gap_model import LONG_FROM, Gap, GraphGap, Part, PartKind, Span
from kvtrace_cli.reports.gap_tables import graph_title, parts_tables, spans_table
from kvtrace_cli.reports.html.blocks import Block, Chart, Items, Section, Text, from_rich
from kvtrace_cli.reports.html.blocks import Part as SectionPart
from kvtrace_cli.reports.html.theme import CATEGORIES, finished

_HEIGHT: Final = 130
_IDLE: Final = "idle"
_IDLE_COLOUR: Final = "var(--line)"
_OTHERS: Final = "all others"
_CAPTION: Final = (
    "As long as the median span of CUPTI's run, split as all spans of at most "
    f"{LONG_FROM:g} x the median together were. Idle: no kernel, copy or memset ran on any stream."
)


def gap_section(gap: Gap) -> Section:
    """Return what was split, graph by graph, or why nothing was."""
    blocks = [Text(f"{gap.verdict.value}: {gap.runs[0]} and, by CUPTI, {gap.runs[1]}.")]
    remarks = (*gap.reasons, *(f"note: {note}" for note in gap.notes))
    listed: list[Block] = [*blocks, *([Items(remarks)] if remarks else [])]
    graphs = [block for graph in gap.graphs for block in _graph(graph)]
    return Section("gap", "What ran", (SectionPart("", (*listed, *graphs)),))


def _graph(graph: GraphGap) -> Iterator[Block]:
    yield Text(f"{graph_title(graph)}.")
    yield _chart(graph)
    yield from_rich(spans_table(graph))
    for table in parts_tables(graph):
        yield from_rich(table)


def _chart(graph: GraphGap) -> Chart:
    """Draw both spans as one bar each, stacked of what ran."""
    spans = {"inside": graph.inside}
    if graph.between is not None:
        spans["between"] = graph.between
    colours = _colours(list(spans.values()))
    rows = [
        {"span": name, "place": place, "part": part, "ms": ms, "percent": percent}
        for name, span in spans.items()
        for place, (part, ms, percent) in enumerate(_stack(span, list(colours)))
    ]
    drawn = (
        alt.Chart(alt.NamedData("parts"))
        .mark_bar()
        .encode(
            alt.X("ms:Q", title="ms, CUPTI's clock", stack="zero"),
            alt.Y("span:N", title=None, sort=list(spans)),
            alt.Color(
                "part:N",
                scale=alt.Scale(domain=list(colours), range=list(colours.values())),
                legend=None,
            ),
            alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip("part:N", title="what ran"),
                alt.Tooltip("ms:Q", title="ms", format=",.4f"),
                alt.Tooltip("percent:Q", title="%", format=".1f"),
            ],
        )
    )
    data: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
    return Chart(
        title="Inside a replay and between two",
        legend=tuple(colours.items()),
        spec=finished(drawn, _HEIGHT),
        data={"parts": data},
        alt="; ".join(_said(name, span) for name, span in spans.items()),
        caption=(_CAPTION,),
    )


def _colours(spans: Sequence[Span]) -> dict[str, str]:
    """Give what took most of all spans a colour each, and one to all others; idle comes last."""
    took: dict[str, float] = {}
    for span in spans:
        for part in span.parts:
            if part.kind is not PartKind.IDLE:
                took[part.name] = took.get(part.name, 0) + part.usual_percent * span.cupti.median_ms
    names = sorted(took, key=lambda name: -took[name])
    named = names if len(names) <= len(CATEGORIES) else names[: len(CATEGORIES) - 1]
    others = [_OTHERS] if len(named) < len(names) else []
    colours = dict(zip([*named, *others], CATEGORIES, strict=False))
    return colours | {_IDLE: _IDLE_COLOUR}


def _stack(span: Span, names: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    """Yield what the bar is stacked of, in the order of the legend: name, ms, percent."""
    percents = dict.fromkeys(names, 0.0)
    for part in span.parts:
        percents[_name(part, names)] += part.usual_percent
    for name, percent in percents.items():
        yield name, span.cupti.median_ms * percent / 100, percent


def _name(part: Part, names: Sequence[str]) -> str:
    if part.kind is PartKind.IDLE:
        return _IDLE
    return part.name if part.name in names else _OTHERS


def _said(name: str, span: Span) -> str:
    first = span.parts[0]
    share = f"{first.usual_percent:.1f} %"
    return f"{name}: {span.cupti.median_ms:.3f} ms, {first.name} takes {share} of it"
