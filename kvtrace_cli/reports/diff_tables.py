"""What comparing two runs found, as rich tables that are readable at 80 columns."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.diff_model import Aspect, Diff, Difference, DiffVerdict, TimeComparison
from kvtrace_cli.reports.cells import new_table

_STYLES = {
    DiffVerdict.SAME: "bold green",
    DiffVerdict.DIFFERS: "bold red",
    DiffVerdict.INCONCLUSIVE: "bold yellow",
}
_TITLES = {
    Aspect.COMPARABILITY: "Set-up that differs",
    Aspect.STRUCTURE: "How the cache is written",
    Aspect.TIME: "Slower",
}


def diff_tables(diff: Diff, allowable: Sequence[str] = ()) -> Iterator[RenderableType]:
    """Yield what `kvtrace diff` prints, top to bottom; the verdict comes last.

    Args:
        diff: to print.
        allowable: rules that `--allow` can name.
    """
    for aspect, title in _TITLES.items():
        found = [one for one in diff.differences if one.aspect is aspect]
        if found:
            yield _differences_table(_marked(diff, title), found)
    if diff.times:
        yield times_table(diff)
    yield _verdict(diff)
    remarks = [*hints(diff, allowable), *(f"note: {note}" for note in diff.notes)]
    if remarks:
        yield _remarks(remarks)


def _marked(diff: Diff, title: str) -> str:
    return f"{title} (EMULATED)" if diff.emulated else title


def _differences_table(title: str, differences: Sequence[Difference]) -> Table:
    table = new_table(title)
    table.add_column("")
    table.add_column("where", overflow="fold", ratio=2)
    table.add_column("before", overflow="fold", ratio=2)
    table.add_column("after", overflow="fold", ratio=2)
    for one in differences:
        style = "bold red" if one.decides else ""
        sign = Text("!" if one.decides else "", style=style)
        cells = (Text(text, style=style) for text in (one.where, one.before, one.after))
        table.add_row(sign, *cells)
    return table


def times_table(diff: Diff) -> Table:
    """Return the medians of both sides, and the clock that they are on."""
    table = new_table(_marked(diff, "Medians, and the change with its 95 % interval"))
    table.add_column("ms", overflow="fold")
    for name in ("before", "after", "change", "interval", "samples"):
        table.add_column(name, justify="right")
    for one in diff.times:
        style = "bold red" if one.regressed else ""
        table.add_row(
            Text(one.name, style=style),
            f"{one.before:.3f}",
            f"{one.after:.3f}",
            Text(f"{one.change_percent:+.1f} %", style=style),
            interval(one),
            f"{one.samples[0]}, {one.samples[1]}",
        )
    clocks = ", ".join(dict.fromkeys(one.clock for one in diff.times))
    table.caption = f"Clock of each figure, in this order: {clocks}" if "," in clocks else clocks
    table.caption_justify = "left"
    return table


def interval(one: TimeComparison, unit: str = "") -> str:
    """Write the interval of a change, if it has enough samples for one."""
    if one.has_few_samples:
        return "too few samples"
    return f"{one.low_percent:+.1f} .. {one.high_percent:+.1f}{unit}"


def _verdict(diff: Diff) -> Text:
    return Text.assemble((diff.verdict.value, _STYLES[diff.verdict]), ": ", headline(diff))


def headline(diff: Diff) -> str:
    """Return where the runs part first, or that nothing that decides differs."""
    deciding = [one for one in diff.differences if one.decides]
    emulated = " (emulated)" if diff.emulated else ""
    if deciding:
        more = f" And {len(deciding) - 1} more." if len(deciding) > 1 else ""
        return f"{deciding[0].text}{more}{emulated}"
    checks = len(diff.checks)
    listed = len(diff.differences)
    also = f"; {listed} listed above decide{'s' if listed == 1 else ''} nothing" if listed else ""
    return f"{checks} rules looked at, no difference that decides{also}{emulated}"


def hints(diff: Diff, allowable: Sequence[str]) -> Iterator[str]:
    """Yield what could be done about an inconclusive comparison."""
    if diff.verdict is not DiffVerdict.INCONCLUSIVE:
        return
    rules = dict.fromkeys(one.rule for one in diff.differences if one.decides)
    names = [rule for rule in rules if rule in allowable]
    if names:
        options = " ".join(f"--allow {name}" for name in names)
        yield f"to compare them all the same: {options}"


def _remarks(remarks: Sequence[str]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(overflow="fold")
    for remark in remarks:
        grid.add_row(" -", Text(remark))
    return grid
