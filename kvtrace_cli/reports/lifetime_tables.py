"""The lifetime matrix as rich tables that are readable at 80 columns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.lifetime_model import (
    HEAP_MARK,
    Binding,
    Callback,
    Cell,
    CellResult,
    GraphKind,
    Neighbours,
    Received,
    Status,
)
from kvtrace_cli.reports.cells import count, new_table

STATUS_STYLES: Final = {
    Status.OK: "green",
    Status.FAULT: "bold red",
    Status.HANG: "bold red",
    Status.LOST: "bold red",
    Status.NOT_RUN: "bold yellow",
}
_BINDINGS: Final = {
    Binding.TARGET_ONLY: "target only",
    Binding.PER_LAUNCH: "each launch",
    Binding.EVERY_FUNCTION: "all functions",
    Binding.RE_BOUND: "re-bound",
    Binding.NEVER: "never",
}
_NEIGHBOURS: Final = {Neighbours.SAME_MODULE: "same", Neighbours.OTHER_MODULE: "other"}
_GRAPHS: Final = {GraphKind.KERNELS: "kernels", GraphKind.MEMSETS: "+ memsets"}
_CALLBACKS: Final = {
    Callback.NO_OP: "no-op",
    Callback.POINTER_READ: "pointer read",
    Callback.COUNTER: "counter",
    Callback.FULL_EVENT: "full event",
}
# Of the runtime's names, those that people know by other words.
ERRORS: Final = {
    "cudaErrorMisalignedAddress": "misaligned address",
    "cudaErrorIllegalAddress": "illegal address",
}
_LAUNCHES: Final = {
    "target_node": "target, node",
    "target_plain": "target, plain",
    "neighbour_node": "other, node",
    "neighbour_plain": "other, plain",
}
_POINTER_BYTES: Final = 8


def lifetime_tables(results: Sequence[CellResult], *, emulated: bool) -> Iterator[RenderableType]:
    """Yield what `kvtrace lifetime` prints, top to bottom.

    Args:
        results: of all cells that were run.
        emulated: whether the emulator ran them, and so shows what it was made to show.
    """
    mark = " (EMULATED)" if emulated else ""
    by_cell = {result.cell: result for result in results}
    yield _outcomes(f"What each cell came to: events of target nodes{mark}", by_cell)
    yield ""
    yield _pointers(f"What the pointer-read callback was given{mark}", by_cell)
    yield from _garbage(results)
    failed = {result.error for result in results if result.status is Status.NOT_RUN}
    for error in sorted(failed):
        yield Text(f"not run: {error}")


def _outcomes(title: str, by_cell: Mapping[Cell, CellResult]) -> Table:
    table = new_table(title)
    _add_name_columns(table)
    for callback in Callback:
        table.add_column(_CALLBACKS[callback])
    for binding, neighbours, graph in _rows():
        cells = (by_cell.get(Cell(one, binding, neighbours, graph)) for one in Callback)
        table.add_row(
            *_row_names(binding, neighbours, graph),
            *(Text("-") if result is None else _outcome(result) for result in cells),
        )
    return table


def _add_name_columns(table: Table) -> None:
    table.add_column("data bound to", no_wrap=True)
    table.add_column("module")
    table.add_column("graph", no_wrap=True)


def _rows() -> Iterator[tuple[Binding, Neighbours, GraphKind]]:
    for binding in Binding:
        for neighbours in Neighbours:
            for graph in GraphKind:
                yield binding, neighbours, graph


def _row_names(binding: Binding, neighbours: Neighbours, graph: GraphKind) -> tuple[str, str, str]:
    return _BINDINGS[binding], _NEIGHBOURS[neighbours], _GRAPHS[graph]


def _outcome(result: CellResult) -> Text:
    return Text(_words(result), style=STATUS_STYLES[result.status])


def _words(result: CellResult) -> str:
    if result.status is Status.FAULT:
        return str(ERRORS.get(result.error, result.error))
    if result.status is Status.LOST:
        return f"lost {result.expected - (result.events or 0)} of {result.expected}"
    if result.status is Status.OK and result.events is not None:
        own = "" if result.own_data in (None, result.events) else f", {result.own_data} own data"
        return f"ok {count(result.events)}{own}"
    return str(result.status.value)


def _pointers(title: str, by_cell: Mapping[Cell, CellResult]) -> Table:
    """Return a row for each pointer-read cell: what calls of each sort of launch were given."""
    table = new_table(title)
    _add_name_columns(table)
    for name in _LAUNCHES.values():
        table.add_column(name)
    for row in _rows():
        result = by_cell.get(Cell(Callback.POINTER_READ, *row))
        received = {} if result is None else result.received
        table.add_row(*_row_names(*row), *(_given(received.get(launch)) for launch in _LAUNCHES))
    return table


def _given(received: Received | None) -> Text:
    if received is None:
        return Text("-")
    counts = {
        "as bound": received.as_bound,
        "NULL": received.null,
        "another's": received.of_another,
        "garbage": received.unknown,
    }
    parts = {words: number for words, number in counts.items() if number}
    told = next(iter(parts)) if len(parts) == 1 else _listed(parts)
    return Text(told or "-", style="bold red" if received.unknown else "")


def _listed(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {words}" for words, number in parts.items())


def _garbage(results: Sequence[CellResult]) -> Iterator[Text]:
    """Yield a line for each value that nobody bound: the first of its cell."""
    cells: dict[int, int] = {}
    for result in results:
        for received in result.received.values():
            if received.unknown:
                value = received.first_unknown
                cells[value] = cells.get(value, 0) + 1
    for value, times in sorted(cells.items()):
        aligned = "a multiple of 8" if value % _POINTER_BYTES == 0 else "no multiple of 8"
        yield Text(f"garbage {value:#x} ({aligned}): the first value in {times} places above")
        if value == HEAP_MARK:
            yield Text("  which is what new memory of the host process holds: nobody wrote to it")
