"""The sections of a report: which blocks say what of one run."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from rich.table import Table as RichTable

from kvtrace_cli.analysis.audit_model import AuditVerdict, RuleCount
from kvtrace_cli.analysis.report_model import RankPictures
from kvtrace_cli.reports.audit_tables import evidence
from kvtrace_cli.reports.cells import count
from kvtrace_cli.reports.checks_table import checks_table
from kvtrace_cli.reports.html.blocks import (
    Block,
    Cell,
    Choice,
    Items,
    Part,
    Section,
    Table,
    Text,
    from_rich,
)
from kvtrace_cli.reports.html.charts import (
    Scales,
    heat_map_chart,
    slot_map_chart,
    timeline_chart,
)
from kvtrace_cli.reports.html.side import Side
from kvtrace_cli.reports.rank_tables import ranks_table
from kvtrace_cli.reports.request_tables import attribution_tables
from kvtrace_cli.reports.tables import (
    counts_table,
    files_table,
    graphs_table,
    measured_name,
    times_table,
)

# Rows of a rule whose first finding is shown; `kvtrace audit --json` has all.
_SHOWN: Final = 3
_NO_HEAT_MAP: Final = "No replay or step with two layers that follow each other was recorded."


def sections(sides: Sequence[Side]) -> Iterator[Section]:
    """Yield what was recorded and concluded of each run, top to bottom."""
    for anchor, title, blocks in _contents(Scales.of(sides)):
        parts = (Part(side.name if len(sides) > 1 else "", tuple(blocks(side))) for side in sides)
        yield Section(anchor, title, tuple(parts))


def _reconciliation(side: Side) -> Iterator[Block]:
    result = side.result
    yield from_rich(counts_table(result))
    if result.is_seen_by_cupti:
        return
    if result.ranks.are_several:
        yield from_rich(ranks_table(result))
    shapes = result.measured_graphs or result.graphs
    if shapes:
        stretch = measured_name(result) if result.measured_graphs else "whole life"
        yield from_rich(graphs_table(shapes, f"Graph replays, {stretch}", result.ranks.names))
        yield from_rich(times_table(shapes))
    yield from_rich(checks_table(result))


def _owners(side: Side) -> Iterator[Block]:
    if side.result.is_seen_by_cupti:
        yield Text("CUPTI observed this run, so no row was seen.")
        return
    if not side.attribution.has_steps:
        yield Text("No engine steps were recorded, so no row has an owner.")
        return
    for table in attribution_tables(side.result, side.attribution, measured_name(side.result)):
        yield from_rich(table) if isinstance(table, RichTable) else Text(str(table))


def _timeline(side: Side, *, scales: Scales) -> Iterator[Block]:
    if not side.pictures.by_rank:
        yield Text("No block of a recorded launch entered, so there is nothing to draw.")
    yield from _each_rank(side, partial(_timeline_of, scales=scales))


def _timeline_of(pictures: RankPictures, *, scales: Scales) -> Block:
    if pictures.timeline:
        return timeline_chart(pictures.timeline, pictures.stretch, scales)
    return Text(
        f"{count(pictures.stretch.launches)} launches entered, but the layer of none is known: "
        "there is no graph replay, and no step of the engine was recorded."
    )


def _heat_map(side: Side, *, scales: Scales) -> Iterator[Block]:
    if not side.pictures.by_rank:
        yield Text(_NO_HEAT_MAP)
    yield from _each_rank(side, partial(_heat_map_of, scales=scales))


def _heat_map_of(pictures: RankPictures, *, scales: Scales) -> Block:
    if pictures.heat_map:
        return heat_map_chart(pictures.heat_map, pictures.stretch, scales)
    return Text(_NO_HEAT_MAP)


def _each_rank(side: Side, draw: Callable[[RankPictures], Block]) -> Iterator[Block]:
    """Yield a picture, or of several ranks one of each to choose from."""
    pictures = side.pictures
    if len(pictures.by_rank) > 1:
        yield Choice("rank", tuple((one.stretch.rank, draw(one)) for one in pictures.by_rank))
    else:
        yield from map(draw, pictures.by_rank)
    if pictures.other_ranks:
        yield Text(f"{count(pictures.other_ranks)} more ranks are not drawn.")


def _slot_map(side: Side) -> Iterator[Block]:
    pictures = side.pictures
    if pictures.slot_map:
        yield slot_map_chart(pictures.slot_map)
    else:
        yield Text(pictures.no_slot_map)


def _losses(side: Side) -> Iterator[Block]:
    result, pictures = side.result, side.pictures
    if not result.files:
        yield Text("No file was recorded.")
        return
    dropped = sum(books.dropped for books in result.files)
    yield Text(
        f"{count(dropped)} records were dropped for lack of space; "
        f"{count(pictures.gap_count)} gaps in the sequences of events."
    )
    yield from_rich(files_table(result.files, result.ranks.names))
    if pictures.gaps:
        yield Table(
            "Gaps in the sequences",
            ("file", "after event", "missing"),
            (False, True, True),
            tuple(
                (
                    Cell(gap.file),
                    Cell("the start" if gap.after is None else count(gap.after)),
                    Cell(count(gap.missing), fault=True),
                )
                for gap in pictures.gaps
            ),
        )
        if pictures.gap_count > len(pictures.gaps):
            yield Text(f"and {count(pictures.gap_count - len(pictures.gaps))} more gaps.")


def _audit(side: Side) -> Iterator[Block]:
    audit = side.audit
    judged = audit.judged
    written = sum(owner.writes for owner in judged.owners)
    if written or audit.rules:
        findings = sum(rule.findings for rule in audit.rules)
        verdict = f"{count(findings)} findings" if findings else audit.verdict.value
        yield Text(
            f"{verdict}: {count(judged.expected_writes)} expected writes and {count(written)} KV "
            "writes were looked at."
        )
    else:
        yield Text("No audit was possible.")
    if audit.rules:
        yield Table(
            "Findings by rule",
            ("rule", "findings", "rows", "steps", "layers", "requests"),
            (False, True, True, True, True, True),
            tuple(_rule_row(rule) for rule in audit.rules),
        )
        yield from _first_findings(side)
    if audit.verdict is AuditVerdict.CANNOT_JUDGE or audit.doubts:
        yield Text("What could not be judged:")
        yield Items(audit.doubts)


def _rule_row(rule: RuleCount) -> tuple[Cell, ...]:
    numbers = (rule.rows, rule.steps, rule.layers, rule.requests)
    return (
        Cell(rule.rule.value),
        Cell(count(rule.findings), fault=True),
        *(Cell(count(number)) for number in numbers),
    )


def _first_findings(side: Side) -> Iterator[Block]:
    for rule in side.audit.rules:
        samples = side.audit.samples(rule.rule, _SHOWN)
        yield Text(f"The first of {rule.rule.value}:")
        yield Items(tuple(f"{finding.text}: {evidence(finding)}" for finding in samples))


def _notes(side: Side) -> Iterator[Block]:
    notes = (*side.result.notes, *side.attribution.notes, *side.audit.notes)
    yield Items(tuple(dict.fromkeys(notes))) if notes else Text("None.")


def _contents(scales: Scales) -> tuple[tuple[str, str, Callable[[Side], Iterator[Block]]], ...]:
    """Return of each section its anchor, its title, and what makes its blocks."""
    return (
        ("reconciliation", "Reconciliation", _reconciliation),
        ("owners", "Rows and requests", _owners),
        ("timeline", "Timeline", partial(_timeline, scales=scales)),
        ("layers", "From layer to layer", partial(_heat_map, scales=scales)),
        ("slots", "KV slots", _slot_map),
        ("losses", "Drops and gaps", _losses),
        ("audit", "Audit", _audit),
        ("notes", "Notes", _notes),
    )
