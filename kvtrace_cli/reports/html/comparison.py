"""What a report says of two runs together: medians side by side, and what `kvtrace diff` found."""

from collections.abc import Iterator, Sequence
from typing import Final

from kvtrace_cli.analysis.diff_model import Diff, Difference, TimeComparison
from kvtrace_cli.analysis.report_model import Figure
from kvtrace_cli.reports.cells import count
from kvtrace_cli.reports.diff_tables import interval
from kvtrace_cli.reports.html.blocks import Block, Cell, Items, Part, Section, Table, Text
from kvtrace_cli.reports.html.side import Side

_NONE: Final = Cell("-")


def times_section(sides: Sequence[Side]) -> Section:
    """Return the medians of one run, or of two side by side."""
    return Section("times", "Times", (Part("", tuple(_times(sides))),))


def _times(sides: Sequence[Side]) -> Iterator[Block]:
    figures = [
        {(figure.name, figure.of): figure for figure in side.pictures.figures} for side in sides
    ]
    keys = dict.fromkeys(key for known in figures for key in known)
    if not keys:
        yield Text("No measured request with a replay or a known step was recorded.")
        return
    medians = ("before, ms", "after, ms", "change") if len(sides) > 1 else ("median, ms",)
    yield Table(
        "Medians",
        ("from", "of", *medians, "samples", "clock"),
        (False, False, *(True for _ in medians), True, False),
        tuple(_times_row([known.get(key) for known in figures]) for key in keys),
    )


def _times_row(figures: Sequence[Figure | None]) -> tuple[Cell, ...]:
    known = [figure for figure in figures if figure]
    medians = [Cell(f"{figure.median_ms:,.3f}") if figure else _NONE for figure in figures]
    if len(figures) > 1:
        medians.append(_change(known) if len(known) == len(figures) else _NONE)
    samples = " / ".join(count(figure.samples) if figure else "-" for figure in figures)
    first = known[0]
    return Cell(first.name), Cell(first.of), *medians, Cell(samples), Cell(first.clock)


def _change(figures: Sequence[Figure]) -> Cell:
    before, after = (figure.median_ms for figure in figures)
    return Cell(f"{100 * (after - before) / before:+.1f} %") if before else _NONE


def outcome(diff: Diff) -> str:
    """Say where the runs part first, or that nothing that decides differs."""
    decisive = [difference for difference in diff.differences if difference.decides]
    if decisive:
        more = f" {count(len(decisive) - 1)} more decide." if len(decisive) > 1 else ""
        return f"{decisive[0].text}{more}"
    listed = f", {count(len(diff.differences))} listed only" if diff.differences else ""
    return f"{count(len(diff.checks))} rules looked at, no difference that decides{listed}."


def diff_section(diff: Diff) -> Section:
    """Return what differs between two runs, first what keeps them from being compared."""
    return Section("diff", "Differences", (Part("", tuple(_diff(diff))),))


def _diff(diff: Diff) -> Iterator[Block]:
    yield Text(f"{diff.verdict.value}: {outcome(diff)}")
    if diff.differences:
        yield Table(
            "Where the runs part",
            ("rule", "about", "where", "before", "after", "decides"),
            (False,) * 6,
            tuple(map(_difference_row, diff.differences)),
        )
    if diff.times:
        yield Table(
            "Times, with 95 % intervals of the change",
            ("figure", "before", "after", "unit", "change", "from .. to", "clock"),
            (False, True, True, False, True, True, False),
            tuple(map(_time_row, diff.times)),
        )
    if diff.notes:
        yield Items(diff.notes)


def _difference_row(difference: Difference) -> tuple[Cell, ...]:
    return (
        Cell(difference.rule, fault=difference.decides),
        Cell(difference.aspect.value),
        Cell(difference.where),
        Cell(difference.before),
        Cell(difference.after),
        Cell("yes" if difference.decides else "no"),
    )


def _time_row(time: TimeComparison) -> tuple[Cell, ...]:
    return (
        Cell(time.name, fault=time.regressed),
        Cell(f"{time.before:,.3f}"),
        Cell(f"{time.after:,.3f}"),
        Cell(time.unit),
        Cell(f"{time.change_percent:+.1f} %", fault=time.regressed),
        Cell(interval(time, " %")),
        Cell(time.clock),
    )
