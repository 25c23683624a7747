"""Results as rich tables that are readable at 80 columns."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.model import (
    Attribution,
    Durations,
    FileBooks,
    GraphShape,
    Population,
    Reconciliation,
    Section,
    StoreCounts,
    Verdict,
)
from kvtrace_cli.reports.cells import count, fault_count, marked_title, new_table
from kvtrace_cli.reports.request_tables import attribution_tables

_VERDICT_STYLES = {
    Verdict.AGREES: "bold green",
    Verdict.MISMATCH: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
}
_NONE = "-"


def reconciliation_tables(
    result: Reconciliation, attribution: Attribution | None = None
) -> Iterator[RenderableType]:
    """Yield what `kvtrace reconcile` prints, top to bottom; the verdict comes last."""
    yield blocks_table(result)
    shapes = result.measured_graphs or result.graphs
    if shapes:
        stretch = measured_name(result) if result.measured_graphs else "whole life"
        yield graphs_table(shapes, marked_title(result, f"Graph replays, {stretch}"))
        yield times_table(shapes)
    if attribution and attribution.has_steps:
        yield from attribution_tables(result, attribution, measured_name(result))
    if result.files:
        yield files_table(result.files)
    yield checks_table(result)
    yield _verdict(result)
    notes = (*result.notes, *(attribution.notes if attribution else ()))
    if result.reasons or notes:
        yield _remarks(result.reasons, notes)


def measured_name(result: Reconciliation) -> str:
    """Name the measured stretch, in one or several requests."""
    return "measured requests" if result.measured_requests > 1 else "measured request"


def blocks_table(result: Reconciliation) -> Table:
    """Return the two populations of each stretch: launches, and blocks expected and found."""
    table = new_table(marked_title(result, "Thread blocks that entered a KV-cache kernel"))
    table.add_column("stretch")
    table.add_column("launch")
    unpatched = _has_unpatched(result)
    counts = ("launches", "expected", "matched", "missing", "unexpected")
    for name in (*counts, "unpatched") if unpatched else counts:
        table.add_column(name, justify="right")
    for stretch, section in _sections(result):
        rows = (("graph", section.graph_nodes), ("plain", section.plain_launches))
        for position, (sort, blocks) in enumerate(rows):
            cells = _block_cells(blocks, with_unpatched=unpatched)
            table.add_row(stretch if not position else "", sort, *cells)
    return table


def _sections(result: Reconciliation) -> Iterator[tuple[str, Section]]:
    if result.measured:
        yield measured_name(result), result.measured
    yield "whole life", result.whole_life


def _has_unpatched(result: Reconciliation) -> bool:
    section = result.whole_life
    return bool(
        section.graph_nodes.blocks_before_patching + section.plain_launches.blocks_before_patching
    )


def _block_cells(blocks: Population, *, with_unpatched: bool) -> list[RenderableType]:
    cells: list[RenderableType] = [
        count(blocks.launches),
        count(blocks.expected_blocks),
        count(blocks.matched_blocks),
        fault_count(blocks.missing_blocks),
        fault_count(blocks.unexpected_blocks),
    ]
    return [*cells, fault_count(blocks.blocks_before_patching)] if with_unpatched else cells


def graphs_table(shapes: tuple[GraphShape, ...], title: str) -> Table:
    """Return one row per graph exec: nodes, replays, and whether all are the same."""
    table = new_table(title)
    for name in ("graph", "nodes", "replays", "launch ids", "matched", "sequences"):
        table.add_column(name, justify="right")
    table.add_column("each replay")
    for number, shape in enumerate(shapes, start=1):
        table.add_row(
            str(number),
            count(shape.nodes),
            count(shape.replays),
            f"{shape.first_launch_id}..{shape.last_launch_id}",
            f"{count(shape.matched_blocks)} of {count(shape.expected_blocks)}",
            _sequences(shape),
            "same nodes" if shape.same_nodes_in_every_replay else "others",
        )
    return table


def _sequences(shape: GraphShape) -> str:
    if shape.first_sequence is None:
        return _NONE
    gap = "" if shape.sequences_consecutive else ", mixed"
    return f"{shape.first_sequence}..{shape.last_sequence}{gap}"


def times_table(shapes: tuple[GraphShape, ...]) -> Table:
    """Return when the replays' blocks entered."""
    table = new_table("Block entries in ms, GPU globaltimer: min / median / max")
    table.add_column("graph", justify="right")
    table.add_column("first to last node of a replay", justify="right")
    table.add_column("last node to next replay", justify="right")
    for number, shape in enumerate(shapes, start=1):
        table.add_row(str(number), _durations(shape.replay_span), _durations(shape.replay_gap))
    return table


def _durations(durations: Durations | None) -> str:
    if durations is None:
        return _NONE
    values = (durations.min_ms, durations.median_ms, durations.max_ms)
    return " / ".join(f"{value:.3f}" for value in values)


def files_table(files: tuple[FileBooks, ...]) -> Table:
    """Return the books of every dump file."""
    table = new_table("Recorded files")
    table.add_column("file", overflow="fold")
    for name in ("written", "dropped", "gaps", "timer back"):
        table.add_column(name, justify="right")
    table.add_column("state", overflow="fold")
    for books in files:
        table.add_row(
            books.name,
            count(books.written),
            fault_count(books.dropped),
            fault_count(books.sequence_gaps),
            count(books.timer_steps_backwards),
            _state(books),
        )
    return table


def _state(books: FileBooks) -> str:
    flags = ", ".join(flag.replace("_", " ") for flag in books.flags) or "no flags"
    if books.first_failure_site == "none":
        return flags
    return f"{flags}; failed at {books.first_failure_site} ({books.first_failure_result})"


def checks_table(result: Reconciliation) -> Table:
    """Return how the sides were joined, and what else was held against each other."""
    table = new_table("Checks")
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if result.graph_join_method:
        table.add_row("graph nodes joined by", result.graph_join_method)
    table.add_row("join by order of atomics", _order_join(result))
    if _has_unpatched(result):
        name = "launched before patching" if result.records_blocks else "launched unrecorded"
        table.add_row(name, _before_patching(result.whole_life))
    for books in result.files:
        if books.expected_blocks is not None:
            table.add_row(f"books of {books.name}", _balance(books))
    if result.stores:
        table.add_row("stores of entered blocks", _stores(result.stores))
    for kernel in result.kernels:
        where = f"process {kernel.process_id}, context {kernel.context_index}"
        table.add_row("kernel", f"{kernel.title}: {count(kernel.matched_blocks)} blocks ({where})")
    if result.kernel_disagreements:
        table.add_row("program counters in doubt", str(result.kernel_disagreements))
    if result.unjudged_processes:
        pids = ", ".join(map(str, result.unjudged_processes))
        table.add_row("not judged", f"no target kernel in process {pids}")
    return table


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


def _verdict(result: Reconciliation) -> Text:
    style = _VERDICT_STYLES[result.verdict]
    return Text.assemble((result.verdict.value, style), ": ", headline(result))


def _remarks(reasons: tuple[str, ...], notes: tuple[str, ...]) -> Table:
    """Reasons and notes, with a hanging indent."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    # Kernel names are long, and none of their letters may be lost.
    grid.add_column(overflow="fold")
    for reason in reasons:
        grid.add_row(" -", Text(reason))
    for note in notes:
        grid.add_row(" note:", Text(note))
    return grid


def headline(result: Reconciliation) -> str:
    """Return what the verdict is about, in one sentence without a full stop."""
    section, stretch = result.whole_life, "in the whole life of the server"
    if result.measured and _launches(result.measured):
        section, stretch = result.measured, f"during the {measured_name(result)}"
    blocks, sort = section.graph_nodes, "graph-node"
    if not blocks.launches:
        blocks, sort = section.plain_launches, "plain-launch"
    dropped = sum(books.dropped for books in result.files)
    emulated = " (emulated)" if result.emulated else ""
    return (
        f"{count(blocks.matched_blocks)} of {count(blocks.expected_blocks)} {sort} blocks "
        f"entered {stretch}, {count(dropped)} dropped{emulated}"
    )


def _launches(section: Section) -> int:
    return section.graph_nodes.launches + section.plain_launches.launches
