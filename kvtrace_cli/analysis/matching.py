"""Which launch each event belongs to: the join that everything else rests on."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from kvtrace_cli.analysis.context_launches import BlockNumbers, ContextLaunches
from kvtrace_cli.analysis.entered_blocks import entered_blocks
from kvtrace_cli.analysis.entry_runs import KeyRuns, Runs, starts_of_runs
from kvtrace_cli.analysis.entry_tallies import EntryTallies
from kvtrace_cli.analysis.event_launches import EventLaunches, index_of_rows
from kvtrace_cli.analysis.joined import ContextCounts, JoinedEvents, is_store
from kvtrace_cli.analysis.launch_keys import LaunchKeys
from kvtrace_cli.analysis.outcomes import Outcomes
from kvtrace_cli.analysis.store_join import StoreJoin, outside_blocks
from kvtrace_cli.dumps.event_source import U64, Bools, EventDump, EventPiece

# So many events at a time that what is derived from them stays in a core's cache.
PIECE_EVENTS = 1 << 15


@dataclass(frozen=True)
class _Looked:
    """The block entries of one piece, and what can be said of them without the pieces before.

    `runs` and `blocks` are None if their launches have to be told apart by counting.
    """

    last_sequence: int
    entries: EventPiece
    timer: U64
    keys: KeyRuns
    runs: Runs | None
    blocks: BlockNumbers | None


def match_context(
    dump: EventDump, launches: pl.DataFrame, node_grids: Callable[[], U64]
) -> tuple[JoinedEvents, Outcomes]:
    """Give each event of one context to a launch and say whether that launch asks for it.

    Block entries and launches meet on the grid id and the launch stamp. Where several launches
    share both (no stamps, or stamps that came round), the k-th group of a launch's expected blocks,
    in sequence order, belongs to the k-th launch in publish order. Stores go to the launch of their
    block's entry: see `StoreJoin`.

    Args:
        dump: the context's events.
        launches: the context's launches with `is_patched`, from `launch_frame`.
        node_grids: gives the grid ids of the process's graph nodes, sorted.

    Returns:
        The joined events: of each its `launch_index` (null: no launch has room for it), and
        `matched`: true for exactly one entry for each block index inside the launch's grid, so a
        repeated or out-of-range block index is not matched; and for each store of a block that
        entered. And what was found for each launch.

    Raises:
        DumpFormatError: the file was changed since it was opened.

    Units: block indices. Assumes: replays of one graph exec never overlap; with counting, that no
    event is missing. Source: dump ABI v1, kvtrace_block_event and kvtrace_launch_record.
    """
    matcher = _Matcher(dump, launches, node_grids)
    for looked in dump.mapped(matcher.look_at, PIECE_EVENTS):
        matcher.take(looked)
    return matcher.joined(), matcher.tallies.outcomes


class _Matcher:
    """Joins the events of one context piece by piece, in sequence order."""

    def __init__(
        self, dump: EventDump, launches: pl.DataFrame, node_grids: Callable[[], U64]
    ) -> None:
        self._dump = dump
        self._launches = ContextLaunches(launches)
        self._keys = LaunchKeys(
            self._launches.grid_id, self._launches.stamp, self._launches.expected
        )
        self._entered = entered_blocks(self._launches.blocks, len(dump))
        self._outside = [outside_blocks(None)]
        self._of_entries = EventLaunches()
        self._entries_before: list[int] = []
        self._last_sequence = -1
        self.tallies = EntryTallies(self._launches, launches, node_grids)

    def look_at(self, piece: EventPiece) -> _Looked:
        """Do all that needs no other piece."""
        stores = is_store(piece)
        entries = piece.only(~stores) if stores.any() else piece
        grid_id, stamp = entries.column("grid_id"), entries.column("launch_stamp")
        starts = starts_of_runs(grid_id, stamp)
        grid_id, stamp = grid_id[starts], stamp[starts]
        keys = KeyRuns(starts, self._keys.find(grid_id, stamp), len(entries))
        runs = blocks = None
        if not self._keys.are_shared(keys.keys):
            runs = Runs(starts, self._keys.only_launches(keys.keys), len(entries))
            blocks = self._launches.block_numbers(entries, runs)
        timer = entries.column("gpu_globaltimer_ns")
        return _Looked(int(piece.sequence[-1]), entries, timer, keys, runs, blocks)

    def take(self, looked: _Looked) -> None:
        """Do the rest, in the order of pieces."""
        entries, runs, blocks = looked.entries, looked.runs, looked.blocks
        if runs is None or blocks is None:
            runs = self._keys.count(looked.keys)
            blocks = self._launches.block_numbers(entries, runs)
        matched = self._matched(blocks)
        if blocks.in_grid is not None:
            is_outside = (runs.spread(runs.rows) >= 0) & ~blocks.in_grid
            self._outside.append(outside_blocks(entries.only(is_outside)))
        index = index_of_rows(self._launches.launch_index, runs.rows)
        self._entries_before.append(len(self._of_entries))
        self._of_entries.add_runs(runs.starts, index, runs.count, matched)
        self._last_sequence = looked.last_sequence
        self.tallies.take(entries, looked.timer, runs, matched)

    def _matched(self, blocks: BlockNumbers) -> Bools | None:
        """Say of each entry whether it matched; None if all did."""
        first = self._entered.enter(blocks.numbers)
        if blocks.in_grid is None:
            return first
        matched: Bools = blocks.in_grid.copy()
        if first is not None:
            matched[blocks.in_grid] = first
        return matched

    def joined(self) -> JoinedEvents:
        """Return the joined events, once all pieces were taken."""
        tallies, events = self.tallies, len(self._dump)
        of_events, matched_stores = self._of_entries, 0
        if events > tallies.entries:
            of_events, matched_stores = self._with_stores()
        counts = ContextCounts(
            entries=tallies.entries,
            stores=events - tallies.entries,
            matched_stores=matched_stores,
            sequence_gaps=self._last_sequence + 1 - events,
            timer_steps_backwards=tallies.timer_steps.count,
            same_by_order=tallies.same_by_order,
            strays=tallies.strays,
            graph_strays=tallies.graph_strays,
            pcs=tallies.pcs.frame(),
            exec_steps=tallies.exec_steps.frame(),
            measured_exec_steps=tallies.measured_exec_steps.frame(),
        )
        return JoinedEvents(self._dump, of_events, counts)

    def _with_stores(self) -> tuple[EventLaunches, int]:
        join = StoreJoin(
            dump=self._dump,
            launches=self._launches,
            keys=self._keys,
            entered=self._entered,
            outside=pl.concat(self._outside).unique(),
            of_entries=self._of_entries,
            entries_before=self._entries_before,
        )
        return join.all_events(PIECE_EVENTS, self.tallies.outcomes)
