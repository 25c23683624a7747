"""Which launch each store belongs to: that of its block's entry."""

from itertools import accumulate
from typing import Final, Literal

import polars as pl

from kvtrace_cli.analysis import joined
from kvtrace_cli.dumps.schema import LAUNCH_INDEX, SEQUENCE

_Direction = Literal["backward", "forward"]

_BLOCK_KEY: Final = ("grid_id", "launch_stamp", "block_idx_x", "block_idx_y", "block_idx_z")


def join_stores(
    events: pl.DataFrame, launch_index: pl.Series, block_number: pl.Series
) -> tuple[pl.Series, pl.Series]:
    """Give each store of one context to the launch of its block's entry.

    That entry is the most recent one before the store, in sequence order, with the same grid id,
    stamp and block index; or the next one if there is none before, as a thread of another warp may
    store before the block's first thread has recorded the entry.

    Args:
        events: one row per event of the context, in sequence order.
        launch_index: of each block entry among them.
        block_number: of each block entry; null if its block index lies outside its launch's grid.

    Returns:
        Of each store `launch_index` (null: its block never entered, or entered for no launch) and
        `matched`: whether its block entered for a launch that has such a block.

    Assumes: a block that is told from another launch's by counting only has recorded its entry
    before its first store. That holds for the block's first thread, whose entry comes first in its
    own program; with the stores of all threads recorded, stamps are needed to be certain.
    """
    entries = _Entries(events, launch_index, block_number)
    found = pl.concat(
        [entries.nothing(), *(entries.of_stores(number) for number in range(entries.slice_count))]
    )
    return found[LAUNCH_INDEX], found["matched"]


class _Entries:
    """The block entries of one context, looked up slice by slice around the stores."""

    def __init__(
        self, events: pl.DataFrame, launch_index: pl.Series, block_number: pl.Series
    ) -> None:
        self._parts = list(events.iter_slices(joined.SLICE_EVENTS))
        self._launch_index = launch_index
        self._in_grid = block_number.is_not_null()
        heights = (joined.entries_of(part).height for part in self._parts)
        self._first = list(accumulate(heights, initial=0))
        self.slice_count = len(self._parts)

    def nothing(self) -> pl.DataFrame:
        """Return what `of_stores` returns where there are none."""
        return pl.DataFrame(
            schema={
                SEQUENCE: pl.UInt64,
                LAUNCH_INDEX: self._launch_index.dtype,
                "matched": pl.Boolean,
            }
        )

    def of_stores(self, number: int) -> pl.DataFrame:
        """Return `sequence`, `launch_index` and `matched` of one slice's stores, in order.

        Nearly all find their entry in their own slice; the others are looked for further away.
        """
        missing = self._parts[number].filter(joined.is_store()).select(SEQUENCE, *_BLOCK_KEY)
        found = [self.nothing()]
        before: tuple[_Direction, range] = ("backward", range(number, -1, -1))
        after: tuple[_Direction, range] = ("forward", range(number, self.slice_count))
        for strategy, others in (before, after):
            for other in others:
                if missing.is_empty():
                    break
                looked_up = self._look_up(missing, other, strategy)
                is_found = pl.col("matched").is_not_null()
                found.append(looked_up.filter(is_found).select(found[0].columns))
                missing = looked_up.filter(~is_found).select(SEQUENCE, *_BLOCK_KEY)
        without = missing.select(
            SEQUENCE,
            pl.lit(None, self._launch_index.dtype).alias(LAUNCH_INDEX),
            pl.lit(value=False).alias("matched"),
        )
        return pl.concat([*found, without]).sort(SEQUENCE)

    def _look_up(self, stores: pl.DataFrame, number: int, strategy: _Direction) -> pl.DataFrame:
        """Add of the nearest entry in one slice, in one direction; null without any."""
        first, end = self._first[number : number + 2]
        launch_index = self._launch_index.slice(first, end - first)
        has_block = self._in_grid.slice(first, end - first) & launch_index.is_not_null()
        entries = (
            joined.entries_of(self._parts[number])
            .select(SEQUENCE, *_BLOCK_KEY)
            .with_columns(launch_index.alias(LAUNCH_INDEX), has_block.alias("matched"))
            .join(stores, on=_BLOCK_KEY, how="semi", maintain_order="left")
        )
        return stores.join_asof(
            entries, on=SEQUENCE, by=_BLOCK_KEY, strategy=strategy, check_sortedness=False
        )
