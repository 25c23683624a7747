"""When a module can be patched, as a rich table that is readable at 80 columns."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from kvtrace_cli.analysis.lifetime_model import Status
from kvtrace_cli.analysis.patch_point_model import Loading, PatchPoint, PointResult
from kvtrace_cli.reports.cells import count, new_table
from kvtrace_cli.reports.lifetime_tables import ERRORS, STATUS_STYLES

_POINTS: Final = {
    PatchPoint.MODULE_LOAD: "at module load",
    PatchPoint.FUNCTION_LOAD: "at function load",
    PatchPoint.LAUNCH_BEGIN: "at launch begin",
    PatchPoint.LAUNCH_END: "at launch end",
    PatchPoint.NEXT_MODULE: "at next module",
    PatchPoint.SYNCHRONIZE: "at synchronize",
    PatchPoint.OTHER_THREAD: "in other thread",
}


def patch_point_tables(
    results: Sequence[PointResult], *, emulated: bool
) -> Iterator[RenderableType]:
    """Yield what `kvtrace lifetime --patch-points` prints, top to bottom.

    Args:
        results: of all programs.
        emulated: whether the emulator ran them, and so shows what it was made to show.
    """
    mark = " (EMULATED)" if emulated else ""
    found = {(result.point, result.loading): result for result in results}
    table = new_table(f"A kernel's blocks that have an event, by when it is patched{mark}")
    table.add_column("patched", no_wrap=True)
    for loading in Loading:
        table.add_column(f"{loading.value} loading")
    for point in PatchPoint:
        cells = (found.get((point, loading)) for loading in Loading)
        outcomes = (Text("-") if one is None else _outcome(one) for one in cells)
        table.add_row(_POINTS[point], *outcomes)
    yield table
    yield Text("A first launch of 2,048 blocks, then a graph of 40 nodes 7 times.", style="dim")
    for error in sorted({one.error for one in results if one.status is Status.NOT_RUN}):
        yield Text(f"not run: {error}")


def _outcome(result: PointResult) -> Text:
    return Text(_words(result), style=STATUS_STYLES[result.status])


def _words(result: PointResult) -> str:
    if result.status is Status.FAULT:
        return str(ERRORS.get(result.error, result.error))
    if result.status in (Status.HANG, Status.NOT_RUN):
        return str(result.status.value)
    said = f"{count(result.events)} of {count(result.expected)}"
    return f"{said}; {count(result.before)} before" if result.before else said
