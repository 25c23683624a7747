"""Which launch each store belongs to: that of its block's entry."""

from typing import Final, Literal

import numpy as np
import polars as pl

from kvtrace_cli.analysis.context_launches import ContextLaunches
from kvtrace_cli.analysis.entered_blocks import EnteredBlocks, SparseBlocks
from kvtrace_cli.analysis.entry_runs import NO_LAUNCH, Runs, starts_of_runs
from kvtrace_cli.analysis.event_launches import NO_INDEX, EventLaunches, index_of_rows
from kvtrace_cli.analysis.joined import is_store
from kvtrace_cli.analysis.launch_keys import LaunchKeys
from kvtrace_cli.analysis.outcomes import Outcomes
from kvtrace_cli.dumps.event_source import I64, U32, Bools, EventDump, EventPiece
from kvtrace_cli.dumps.schema import SEQUENCE, event_schema

_Direction = Literal["backward", "forward"]

_BLOCK_KEY: Final = ("grid_id", "launch_stamp", "block_idx_x", "block_idx_y", "block_idx_z")
_ROW: Final = "row"
_FOUND_SCHEMA: Final = {SEQUENCE: pl.UInt64, _ROW: pl.Int64, "matched": pl.Boolean}


def outside_blocks(entries: EventPiece | None) -> pl.DataFrame:
    """Return the block keys of entries outside their launch's grid, each once; None: of none."""
    if entries is None:
        return pl.DataFrame(schema={name: event_schema()[name] for name in _BLOCK_KEY})
    return entries.frame(_BLOCK_KEY).select(_BLOCK_KEY).unique()


class StoreJoin:
    """Gives each store of one context to the launch of its block's entry.

    That entry is the most recent one before the store, in sequence order, with the same grid id,
    stamp and block index; or the next one if there is none before, as a thread of another warp may
    store before the block's first thread has recorded the entry. Where only one launch has the
    grid id and the stamp, it does not matter which entry it is.

    Assumes: a block that is told from another launch's by counting only has recorded its entry
    before its first store. That holds for the block's first thread, whose entry comes first in its
    own program; with the stores of all threads recorded, stamps are needed to be certain.
    """

    def __init__(
        self,
        *,
        dump: EventDump,
        launches: ContextLaunches,
        keys: LaunchKeys,
        entered: EnteredBlocks | SparseBlocks,
        outside: pl.DataFrame,
        of_entries: EventLaunches,
        entries_before: list[int],
    ) -> None:
        """Take what is known of all entries.

        Args:
            dump: the context's events.
            launches: of the context.
            keys: of the launches.
            entered: the blocks that entered.
            outside: keys of blocks that entered and lie outside their launch's grid.
            of_entries: the launch of each entry.
            entries_before: how many entries there are before each piece.
        """
        self._dump = dump
        self._launches = launches
        self._keys = keys
        self._entered = entered
        self._outside = outside
        self._of_entries = of_entries
        self._entries_before = entries_before

    def all_events(self, size: int, outcomes: Outcomes) -> tuple[EventLaunches, int]:
        """Return the launch of every event, entries and stores, and how many stores matched.

        Args:
            size: of the pieces.
            outcomes: of the launches, which the stores are added to.
        """
        found, matched_stores = EventLaunches(), 0
        for number, piece in enumerate(self._dump.pieces(size)):
            stores = is_store(piece)
            entries = len(piece) - int(np.count_nonzero(stores))
            index, matched = np.empty(len(piece), np.uint32), np.empty(len(piece), np.bool_)
            index[~stores], matched[~stores] = self._of_entries.arrays(
                self._entries_before[number], entries
            )
            rows, has_entered = self._rows(number, size, piece.only(stores))
            index[stores] = index_of_rows(self._launches.launch_index, rows)
            matched[stores] = has_entered
            outcomes.add_stores(rows[has_entered], piece.sequence[stores][has_entered])
            matched_stores += int(np.count_nonzero(has_entered))
            found.add(index, matched)
        return found, matched_stores

    def _rows(self, number: int, size: int, stores: EventPiece) -> tuple[I64, Bools]:
        """Return of each store the row of its launch, and whether its block has entered."""
        grid_id, stamp = stores.column("grid_id"), stores.column("launch_stamp")
        starts = starts_of_runs(grid_id, stamp)
        keys = self._keys.find(grid_id[starts], stamp[starts])
        runs = Runs(starts, self._keys.only_launches(keys), len(stores))
        rows, matched = self._of_only_launches(stores, runs)
        if self._keys.are_shared(keys):
            shared = runs.spread(self._keys.is_shared(keys))
            rows[shared], matched[shared] = self._of_shared(number, size, stores.only(shared))
        return rows, matched

    def _of_only_launches(self, stores: EventPiece, runs: Runs) -> tuple[I64, Bools]:
        blocks = self._launches.block_numbers(stores, runs)
        rows = runs.spread(runs.rows)
        matched = self._entered.have_entered(blocks.numbers)
        if blocks.in_grid is None:
            return np.where(matched, rows, NO_LAUNCH), matched
        has_entered = blocks.in_grid.copy()
        has_entered[blocks.in_grid] = matched
        is_outside = (rows >= 0) & ~blocks.in_grid
        found = has_entered.copy()
        found[is_outside] = self._entered_outside(stores.only(is_outside))
        return np.where(found, rows, NO_LAUNCH), has_entered

    def _entered_outside(self, stores: EventPiece) -> Bools:
        entered = self._outside.with_columns(pl.lit(value=True).alias("entered"))
        return np.asarray(
            stores.frame(_BLOCK_KEY)
            .join(entered, on=_BLOCK_KEY, how="left", maintain_order="left", validate="m:1")[
                "entered"
            ]
            .fill_null(value=False)
            .to_numpy()
        )

    def _of_shared(self, number: int, size: int, stores: EventPiece) -> tuple[I64, Bools]:
        """Return the same of stores whose launch is told by their entry alone.

        Nearly all find their entry in their own piece; the others are looked for further away.
        """
        missing = stores.frame((SEQUENCE, *_BLOCK_KEY))
        found = [pl.DataFrame(schema=_FOUND_SCHEMA)]
        last = -(-len(self._dump) // size)
        before: tuple[_Direction, range] = ("backward", range(number, -1, -1))
        after: tuple[_Direction, range] = ("forward", range(number, last))
        for strategy, others in (before, after):
            for other in others:
                if missing.is_empty():
                    break
                looked_up = self._look_up(missing, self._entries(other, size), strategy)
                is_found = pl.col("matched").is_not_null()
                found.append(looked_up.filter(is_found).select(*_FOUND_SCHEMA))
                missing = looked_up.filter(~is_found).select(missing.columns)
        without = missing.select(
            SEQUENCE, pl.lit(NO_LAUNCH, pl.Int64).alias(_ROW), pl.lit(value=False).alias("matched")
        )
        all_found = pl.concat([*found, without]).sort(SEQUENCE)
        return all_found[_ROW].to_numpy().copy(), all_found["matched"].to_numpy().copy()

    def _look_up(
        self, stores: pl.DataFrame, entries: pl.DataFrame, strategy: _Direction
    ) -> pl.DataFrame:
        """Add of the nearest entry, in one direction; null without any."""
        return stores.join_asof(
            entries.join(stores, on=_BLOCK_KEY, how="semi", maintain_order="left"),
            on=SEQUENCE,
            by=_BLOCK_KEY,
            strategy=strategy,
            check_sortedness=False,
        )

    def _entries(self, number: int, size: int) -> pl.DataFrame:
        """Return the entries of a piece with their launch's row, and whether it has their block."""
        first = number * size
        piece = self._dump.reader.read(first, min(size, len(self._dump) - first))
        entries = piece.only(~is_store(piece))
        index, _ = self._of_entries.arrays(self._entries_before[number], len(entries))
        rows = self._rows_of(index)
        starts = starts_of_runs(rows)
        blocks = self._launches.block_numbers(entries, Runs(starts, rows[starts], len(rows)))
        has_block = np.ones(len(rows), np.bool_) if blocks.in_grid is None else blocks.in_grid
        return entries.frame((SEQUENCE, *_BLOCK_KEY)).with_columns(
            pl.Series(_ROW, rows), pl.Series("matched", has_block)
        )

    def _rows_of(self, index: U32) -> I64:
        rows = np.searchsorted(self._launches.launch_index, index)
        return np.where(index == NO_INDEX, NO_LAUNCH, rows)
