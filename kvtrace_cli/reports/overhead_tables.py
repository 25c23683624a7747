"""What recording costs, as rich tables that are readable at 80 columns."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.overhead_model import CLEAN, BarVerdict, Cost, Drift, Overhead
from kvtrace_cli.reports.cells import new_table

_STYLES = {
    BarVerdict.MET: "bold green",
    BarVerdict.MISSED: "bold red",
    BarVerdict.CANNOT_TELL: "bold yellow",
}


def overhead_tables(
    found: Overhead, *, emulated: bool, notes: Sequence[str]
) -> Iterator[RenderableType]:
    """Yield what `kvtrace overhead` prints, top to bottom.

    Args:
        found: to print.
        emulated: whether the engine was, so that its times mean nothing.
        notes: what else is to be known.
    """
    mark = " (EMULATED)" if emulated else ""
    yield _costs_table(f"What each arm costs{mark}", found.costs)
    if found.drifts:
        yield _drifts_table(f"Drift over time that was taken out{mark}", found.drifts)
    if found.bars:
        yield _bars_table(found)
    if notes:
        yield _notes(notes)


def _costs_table(title: str, costs: Sequence[Cost]) -> Table:
    table = new_table(title)
    table.add_column("figure", overflow="fold")
    table.add_column("arm", overflow="fold")
    for name in ("median", "change", "95 % interval"):
        table.add_column(name, justify="right")
    before = None
    for cost in costs:
        change = "" if cost.change_percent is None else f"{cost.change_percent:+.2f} %"
        table.add_row(
            cost.figure if cost.figure != before else "",
            _arm_of(cost),
            f"{cost.median:,.3f}",
            change,
            _interval(cost) if change else "",
        )
        before = cost.figure
    return table


def _arm_of(cost: Cost) -> str:
    """Return the arm's name; all but the clean one are compared with it unless it says more."""
    is_usual = cost.against in (None, CLEAN)
    return cost.arm if is_usual else f"{cost.arm}, against {cost.against}"


def _interval(cost: Cost) -> str:
    if cost.low_percent is None or cost.high_percent is None:
        return "not known"
    return f"{cost.low_percent:+.2f} .. {cost.high_percent:+.2f}"


def _drifts_table(title: str, drifts: Sequence[Drift]) -> Table:
    table = new_table(title)
    table.add_column("figure", overflow="fold")
    for name in ("start", "group", "a minute", "in all"):
        table.add_column(name, justify="right")
    for one in drifts:
        table.add_row(
            one.figure,
            str(one.start),
            str(one.group),
            f"{one.percent_per_minute:+.3f} %",
            f"{one.percent_in_all:+.2f} %",
        )
    return table


def _bars_table(found: Overhead) -> Table:
    table = new_table("Bars")
    table.add_column("figure", overflow="fold")
    table.add_column("arm", overflow="fold")
    table.add_column("at most", justify="right")
    table.add_column("")
    for bar in found.bars:
        verdict = Text(bar.verdict.value, style=_STYLES[bar.verdict])
        table.add_row(bar.figure, bar.arm, f"{bar.most_percent:+.2f} %", verdict)
    return table


def _notes(notes: Sequence[str]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(overflow="fold")
    for note in notes:
        grid.add_row(" -", Text(note))
    return grid
