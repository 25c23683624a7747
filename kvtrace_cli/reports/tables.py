"""Results as rich tables that are readable at 80 columns."""

import re
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvtrace_cli.analysis.model import (
    Durations,
    FileBooks,
    GraphShape,
    Population,
    Reconciliation,
    Section,
    Verdict,
)

_VERDICT_STYLES = {
    Verdict.AGREES: "bold green",
    Verdict.MISMATCH: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
}
_NONE = "-"


def reconciliation_tables(result: Reconciliation) -> Iterator[RenderableType]:
    """Yield what `kvtrace reconcile` prints, top to bottom; the verdict comes last."""
    yield _blocks_table(result)
    shapes = result.measured_graphs or result.graphs
    if shapes:
        stretch = "measured request" if result.measured_graphs else "whole life"
        yield _graphs_table(shapes, _title(result, f"Graph replays, {stretch}"))
        yield _times_table(shapes)
    if result.files:
        yield _files_table(result.files)
    yield _checks_table(result)
    yield _verdict(result)
    if result.reasons or result.notes:
        yield _remarks(result)


def _title(result: Reconciliation, title: str) -> str:
    return f"{title} (EMULATED)" if result.emulated else title


def _blocks_table(result: Reconciliation) -> Table:
    table = _table(_title(result, "Thread blocks that entered a KV-cache kernel"))
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
        yield "measured request", result.measured
    yield "whole life", result.whole_life


def _has_unpatched(result: Reconciliation) -> bool:
    section = result.whole_life
    return bool(
        section.graph_nodes.blocks_before_patching + section.plain_launches.blocks_before_patching
    )


def _block_cells(blocks: Population, *, with_unpatched: bool) -> list[RenderableType]:
    cells: list[RenderableType] = [
        _count(blocks.launches),
        _count(blocks.expected_blocks),
        _count(blocks.matched_blocks),
        _fault_count(blocks.missing_blocks),
        _fault_count(blocks.unexpected_blocks),
    ]
    return [*cells, _fault_count(blocks.blocks_before_patching)] if with_unpatched else cells


def _graphs_table(shapes: tuple[GraphShape, ...], title: str) -> Table:
    table = _table(title)
    for name in ("graph", "nodes", "replays", "launch ids", "matched", "sequences"):
        table.add_column(name, justify="right")
    table.add_column("each replay")
    for number, shape in enumerate(shapes, start=1):
        table.add_row(
            str(number),
            _count(shape.nodes),
            _count(shape.replays),
            f"{shape.first_launch_id}..{shape.last_launch_id}",
            f"{_count(shape.matched_blocks)} of {_count(shape.expected_blocks)}",
            _sequences(shape),
            "same nodes" if shape.same_nodes_in_every_replay else "others",
        )
    return table


def _sequences(shape: GraphShape) -> str:
    if shape.first_sequence is None:
        return _NONE
    gap = "" if shape.sequences_consecutive else ", mixed"
    return f"{shape.first_sequence}..{shape.last_sequence}{gap}"


def _times_table(shapes: tuple[GraphShape, ...]) -> Table:
    table = _table("Block entries in ms, GPU globaltimer: min / median / max")
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


def _files_table(files: tuple[FileBooks, ...]) -> Table:
    table = _table("Recorded files")
    table.add_column("file", overflow="fold")
    for name in ("written", "dropped", "gaps", "timer back"):
        table.add_column(name, justify="right")
    table.add_column("state", overflow="fold")
    for books in files:
        table.add_row(
            books.name,
            _count(books.written),
            _fault_count(books.dropped),
            _fault_count(books.sequence_gaps),
            _count(books.timer_steps_backwards),
            _state(books),
        )
    return table


def _state(books: FileBooks) -> str:
    flags = ", ".join(flag.replace("_", " ") for flag in books.flags) or "no flags"
    if books.first_failure_site == "none":
        return flags
    return f"{flags}; failed at {books.first_failure_site} ({books.first_failure_result})"


def _checks_table(result: Reconciliation) -> Table:
    table = _table("Checks")
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if result.graph_join_method:
        table.add_row("graph nodes joined by", result.graph_join_method)
    table.add_row("join by order of atomics", _order_join(result))
    for books in result.files:
        if books.expected_blocks is not None:
            table.add_row(f"books of {books.name}", _balance(books))
    for kernel in result.kernels:
        name = kernel_title(kernel.name) or f"kernel slot {kernel.kernel_slot}"
        where = f"process {kernel.process_id}, context {kernel.context_index}"
        table.add_row("kernel", f"{name}: {_count(kernel.matched_blocks)} blocks ({where})")
    if result.kernel_disagreements:
        table.add_row("program counters in doubt", str(result.kernel_disagreements))
    if result.unjudged_processes:
        pids = ", ".join(map(str, result.unjudged_processes))
        table.add_row("not judged", f"no target kernel in process {pids}")
    return table


def _balance(books: FileBooks) -> Text:
    sign = {True: "=", False: "≠", None: "at least; not all launches are known:"}[
        books.books_balance
    ]
    return Text(
        f"{_count(books.expected_blocks or 0)} expected {sign} {_count(books.written)} written + "
        f"{_count(books.dropped)} dropped",
        style="bold red" if books.books_balance is False else "",
    )


def kernel_title(name: str | None) -> str | None:
    """Return the qualified name within a mangled C++ kernel name, or the name as it is."""
    parts = []
    rest = re.sub(r"^_ZN?(L(?=\d))?", "", name or "") if (name or "").startswith("_Z") else ""
    while match := re.match(r"L?(\d+)", rest):
        end = match.end() + int(match[1])
        parts.append(rest[match.end() : end])
        rest = rest[end:]
    return "::".join(parts) or name


def _order_join(result: Reconciliation) -> str:
    order = result.order_join
    if order.agrees is None:
        return "nothing to compare"
    same = f"{_count(order.matches)} of {_count(order.total)} blocks the same"
    if order.agrees or order.single_stream:
        return same
    return f"{same}; with several streams only the grid id tells"


def _verdict(result: Reconciliation) -> Text:
    style = _VERDICT_STYLES[result.verdict]
    return Text.assemble((result.verdict.value, style), ": ", _headline(result))


def _remarks(result: Reconciliation) -> Table:
    """Reasons and notes, with a hanging indent."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    # Kernel names are long, and none of their letters may be lost.
    grid.add_column(overflow="fold")
    for reason in result.reasons:
        grid.add_row(" -", Text(reason))
    for note in result.notes:
        grid.add_row(" note:", Text(note))
    return grid


def _headline(result: Reconciliation) -> str:
    section, stretch = result.whole_life, "in the whole life of the server"
    if result.measured and _launches(result.measured):
        section, stretch = result.measured, "during the measured request"
    blocks, sort = section.graph_nodes, "graph-node"
    if not blocks.launches:
        blocks, sort = section.plain_launches, "plain-launch"
    dropped = sum(books.dropped for books in result.files)
    emulated = " (emulated)" if result.emulated else ""
    return (
        f"{_count(blocks.matched_blocks)} of {_count(blocks.expected_blocks)} {sort} blocks "
        f"entered {stretch}, {_count(dropped)} dropped{emulated}"
    )


def _launches(section: Section) -> int:
    return section.graph_nodes.launches + section.plain_launches.launches


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=None,
        padding=(0, 1),
        pad_edge=False,
        header_style="bold",
    )


def _count(value: int) -> str:
    return f"{value:,}"


def _fault_count(value: int) -> Text:
    return Text(_count(value), style="bold red" if value else "")
