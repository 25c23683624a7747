"""Results as rich tables that are readable at 80 columns."""

from collections.abc import Iterator, Mapping

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
)
from kvtrace_cli.reports.cells import (
    VERDICT_STYLES,
    count,
    fault_count,
    has_unpatched,
    marked_title,
    new_table,
)
from kvtrace_cli.reports.checks_table import checks_table
from kvtrace_cli.reports.rank_tables import ranks_table
from kvtrace_cli.reports.request_tables import attribution_tables

_NONE = "-"
_MOST_NAME = 26


def reconciliation_tables(
    result: Reconciliation, attribution: Attribution | None = None
) -> Iterator[RenderableType]:
    """Yield what `kvtrace reconcile` prints, top to bottom; the verdict comes last."""
    yield counts_table(result)
    if not result.is_seen_by_cupti:
        yield from _found_tables(result, attribution)
    yield _verdict(result)
    notes = (*result.notes, *(attribution.notes if attribution else ()))
    if result.reasons or notes:
        yield _remarks(result.reasons, notes)


def _found_tables(
    result: Reconciliation, attribution: Attribution | None
) -> Iterator[RenderableType]:
    """Yield what a run has only if launches and blocks were recorded."""
    if result.ranks.are_several:
        yield ranks_table(result)
    shapes = result.measured_graphs or result.graphs
    if shapes:
        stretch = measured_name(result) if result.measured_graphs else "whole life"
        title = marked_title(result, f"Graph replays, {stretch}")
        yield graphs_table(shapes, title, result.ranks.names)
        yield times_table(shapes)
    if attribution and attribution.has_steps:
        yield from attribution_tables(result, attribution, measured_name(result))
    if result.files:
        yield files_table(result.files, result.ranks.names)
    yield checks_table(result)


def measured_name(result: Reconciliation) -> str:
    """Name the measured stretch, in one or several requests."""
    return "measured requests" if result.measured_requests > 1 else "measured request"


def counts_table(result: Reconciliation) -> Table:
    """Return what was counted: blocks, or of a run that CUPTI observed how often targets ran."""
    if result.target_runs is None:
        return _blocks_table(result)
    table = new_table(marked_title(result, "What CUPTI saw run"))
    table.add_column("stretch")
    table.add_column("launch")
    table.add_column("target kernels that ran", justify="right")
    table.add_row("whole life", "graph", count(result.target_runs.graph_nodes))
    table.add_row("", "plain", count(result.target_runs.plain_launches))
    return table


def _blocks_table(result: Reconciliation) -> Table:
    """Return the two populations of each stretch: launches, and blocks expected and found."""
    table = new_table(marked_title(result, "Thread blocks that entered a KV-cache kernel"))
    table.add_column("stretch")
    table.add_column("launch")
    unpatched = has_unpatched(result)
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


def _block_cells(blocks: Population, *, with_unpatched: bool) -> list[RenderableType]:
    cells: list[RenderableType] = [
        count(blocks.launches),
        count(blocks.expected_blocks),
        count(blocks.matched_blocks),
        fault_count(blocks.missing_blocks),
        fault_count(blocks.unexpected_blocks),
    ]
    return [*cells, fault_count(blocks.blocks_before_patching)] if with_unpatched else cells


def graphs_table(
    shapes: tuple[GraphShape, ...], title: str, rank_names: Mapping[int, str]
) -> Table:
    """Return one row per graph exec: nodes, replays, and whether all are the same.

    Args:
        shapes: of the graph execs.
        title: of the table.
        rank_names: of each process that has one; if any has, they are shown, and the sequences,
            for which there is no room then, are not.
    """
    table = new_table(title)
    if rank_names:
        table.add_column("rank", no_wrap=True)
    for name in ("graph", "nodes", "replays", "launch ids", "matched"):
        table.add_column(name, justify="right")
    if not rank_names:
        table.add_column("sequences", justify="right")
    table.add_column("each replay")
    for number, shape in enumerate(shapes, start=1):
        table.add_row(
            *([rank_names.get(shape.process_id, _NONE)] if rank_names else []),
            str(number),
            count(shape.nodes),
            count(shape.replays),
            f"{shape.first_launch_id}..{shape.last_launch_id}",
            f"{count(shape.matched_blocks)} of {count(shape.expected_blocks)}",
            *([] if rank_names else [_sequences(shape)]),
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


def files_table(files: tuple[FileBooks, ...], rank_names: Mapping[int, str]) -> Table:
    """Return the books of every dump file, with the rank of its process if that has a name."""
    table = new_table("Recorded files")
    # A name in one piece can be copied; what the file is may go over several lines.
    table.padding = (0, 1, 0, 0)
    longest = max((len(books.name) for books in files), default=0)
    table.add_column("file", overflow="fold", min_width=min(longest, _MOST_NAME))
    if rank_names:
        table.add_column("rank", no_wrap=True)
    for name in ("written", "dropped", "gaps", "timer back"):
        table.add_column(name, justify="right")
    table.add_column("state", overflow="fold")
    for books in files:
        table.add_row(
            books.name,
            *([rank_names.get(books.process_id, _NONE)] if rank_names else []),
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


def _verdict(result: Reconciliation) -> Text:
    style = VERDICT_STYLES[result.verdict]
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
    emulated = " (emulated)" if result.emulated else ""
    if result.is_seen_by_cupti:
        return f"CUPTI observed this run, so by design it has no blocks{emulated}"
    section, stretch = result.whole_life, "in the whole life of the server"
    if result.measured and _launches(result.measured):
        section, stretch = result.measured, f"during the {measured_name(result)}"
    blocks, sort = section.graph_nodes, "graph-node"
    if not blocks.launches:
        blocks, sort = section.plain_launches, "plain-launch"
    dropped = sum(books.dropped for books in result.files)
    return (
        f"{count(blocks.matched_blocks)} of {count(blocks.expected_blocks)} {sort} blocks "
        f"entered {stretch}, {count(dropped)} dropped{emulated}"
    )


def _launches(section: Section) -> int:
    return section.graph_nodes.launches + section.plain_launches.launches
