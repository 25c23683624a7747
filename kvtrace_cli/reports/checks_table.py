"""How the two sides were joined, and what else was held against each other, as a table."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.model import FileBooks, Reconciliation, Section, StoreCounts
from kvtrace_cli.reports.cells import count, counted, file_name, has_unpatched, new_table
from kvtrace_cli.reports.rank_tables import rank_checks


def checks_table(result: Reconciliation) -> Table:
    """Return how the sides were joined, and what else was held against each other."""
    table = new_table("Checks")
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if result.graph_join_method:
        table.add_row("graph nodes joined by", result.graph_join_method)
    table.add_row("join by order of atomics", _order_join(result))
    if has_unpatched(result):
        name = "launched before patching" if result.records_blocks else "launched unrecorded"
        table.add_row(name, _before_patching(result.whole_life))
    for name, balance in _books(result):
        table.add_row(name, balance)
    if result.stores:
        table.add_row("stores of entered blocks", _stores(result.stores))
    for kernel in _kernels(result):
        table.add_row("kernel", kernel)
    if result.kernel_disagreements:
        table.add_row("program counters in doubt", str(result.kernel_disagreements))
    for name, outcome in rank_checks(result.ranks):
        table.add_row(name, outcome)
    if result.unjudged_processes:
        pids = ", ".join(map(str, result.unjudged_processes))
        table.add_row("not judged", f"no target kernel in process {pids}")
    return table


def _books(result: Reconciliation) -> Iterator[tuple[str, Text]]:
    """Yield the balance of each event file; of several ranks one by one only what is not even."""
    events = [books for books in result.files if books.expected_blocks is not None]
    if result.ranks.are_several:
        even = [books for books in events if books.books_balance]
        events = [books for books in events if not books.books_balance]
        expected = sum(books.expected_blocks or 0 for books in even)
        if even:
            yield (
                f"books of {counted(len(even), 'event file')}",
                Text(f"{count(expected)} expected, and each file balances"),
            )
    for books in events:
        yield f"books of {file_name(books, result.ranks.names)}", _balance(books)


def _kernels(result: Reconciliation) -> Iterator[str]:
    """Yield the kernels of each context; of several ranks those of one name together."""
    if not result.ranks.are_several:
        for kernel in result.kernels:
            where = f"process {kernel.process_id}, context {kernel.context_index}"
            yield f"{kernel.title}: {count(kernel.matched_blocks)} blocks ({where})"
        return
    for title in dict.fromkeys(kernel.title for kernel in result.kernels):
        same = [kernel for kernel in result.kernels if kernel.title == title]
        blocks = sum(kernel.matched_blocks for kernel in same)
        processes = len({kernel.process_id for kernel in same})
        where = counted(processes, "process", "processes")
        yield f"{title}: {count(blocks)} blocks (in {where})"


def _before_patching(section: Section) -> str:
    graph, plain = section.graph_nodes, section.plain_launches
    return (
        f"{count(graph.blocks_before_patching)} graph-node blocks of "
        f"{count(graph.launches_before_patching)} launches, "
        f"{count(plain.blocks_before_patching)} plain-launch blocks of "
        f"{count(plain.launches_before_patching)}; none of them counts as missing"
    )


def _stores(stores: StoreCounts) -> Text:
    return Text(
        f"{count(stores.matched)} of {count(stores.recorded)}",
        style="bold red" if stores.unexpected else "",
    )


def _balance(books: FileBooks) -> Text:
    sign = {True: "=", False: "≠", None: "at least; not all launches are known:"}[
        books.books_balance
    ]
    dropped = f"{count(books.entries_dropped or 0)} dropped"
    if books.stores_dropped is None:
        sign, dropped = "?", f"{count(books.dropped)} dropped, stores among them"
    stores = f"; {count(books.stores_written)} stores" if books.stores_written else ""
    return Text(
        f"{count(books.expected_blocks or 0)} expected {sign} {count(books.entries_written)} "
        f"written + {dropped}{stores}",
        style="bold red" if books.books_balance is False else "",
    )


def _order_join(result: Reconciliation) -> str:
    order = result.order_join
    if order.agrees is None:
        return "nothing to compare"
    same = f"{count(order.matches)} of {count(order.total)} blocks the same"
    if order.agrees or order.single_stream:
        return same
    return f"{same}; with several streams only the grid id tells"
