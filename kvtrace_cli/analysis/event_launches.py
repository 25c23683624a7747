"""What is held of every event of a context: its launch, and whether it matched."""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import polars as pl

from kvtrace_cli.analysis.entry_runs import NO_LAUNCH, starts_of_runs
from kvtrace_cli.dumps.event_source import U32, Bools
from kvtrace_cli.dumps.schema import LAUNCH_INDEX

# No launch has this index: a launch file with as many records has no room on any disk.
NO_INDEX = np.uint32(2**32 - 1)


@dataclass(frozen=True)
class _Part:
    """Some neighbouring events; `starts` are those of runs of one launch, None: all are listed.

    `matched` is packed, eight events a byte; None: all matched.
    """

    count: int
    starts: U32 | None
    launch_index: U32
    matched: np.ndarray | None

    def all_indices(self) -> U32:
        if self.starts is None:
            return self.launch_index
        lengths = np.diff(self.starts, append=np.uint32(self.count))
        return np.asarray(np.repeat(self.launch_index, lengths))

    def all_matched(self) -> Bools:
        if self.matched is None:
            return np.ones(self.count, np.bool_)
        return np.unpackbits(self.matched, count=self.count).astype(np.bool_)


class EventLaunches:
    """The launch of each event, kept as runs where those take less memory than the events."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._first = [0]

    def __len__(self) -> int:
        return self._first[-1]

    def add(self, launch_index: U32, matched: Bools | None) -> None:
        """Add the next events; `NO_INDEX`: no launch; `matched` None: all of them."""
        starts = starts_of_runs(launch_index) if len(launch_index) else np.empty(0, np.int64)
        self.add_runs(starts, launch_index[starts], len(launch_index), matched, launch_index)

    def add_runs(
        self,
        starts: np.ndarray,
        launch_index: U32,
        count: int,
        matched: Bools | None,
        listed: U32 | None = None,
    ) -> None:
        """Add the next `count` events as runs of one launch; see `add`."""
        packed = None if matched is None or matched.all() else np.packbits(matched)
        if 2 * len(starts) > count:
            lengths = np.diff(starts, append=count)
            every = np.repeat(launch_index, lengths) if listed is None else listed
            part = _Part(count, None, every, packed)
        else:
            part = _Part(count, starts.astype(np.uint32), launch_index, packed)
        self._parts.append(part)
        self._first.append(self._first[-1] + count)

    def slice(self, first: int, count: int) -> tuple[pl.Series, pl.Series]:
        """Return `launch_index` (null: none) and `matched` of some events."""
        indices, matched = self.arrays(first, count)
        series = pl.Series(LAUNCH_INDEX, indices, pl.UInt32)
        is_none = indices == NO_INDEX
        if is_none.any():
            series = series.set(pl.Series(is_none), None)
        return series, pl.Series("matched", matched, pl.Boolean)

    def arrays(self, first: int, count: int) -> tuple[U32, Bools]:
        """Return the same, with `NO_INDEX` in place of null."""
        number = max(bisect_right(self._first, first) - 1, 0)
        indices, matched = [np.empty(0, np.uint32)], [np.empty(0, np.bool_)]
        end = first + count
        while number < len(self._parts) and self._first[number] < end:
            part, offset = self._parts[number], self._first[number]
            inside = slice(max(first - offset, 0), end - offset)
            indices.append(part.all_indices()[inside])
            matched.append(part.all_matched()[inside])
            number += 1
        return np.concatenate(indices), np.concatenate(matched)


def index_of_rows(launch_index: U32, rows: np.ndarray) -> U32:
    """Return the `launch_index` of rows of a context's launches; `NO_INDEX` for no row."""
    if not len(launch_index):
        return np.full(len(rows), NO_INDEX)
    return np.asarray(np.where(rows == NO_LAUNCH, NO_INDEX, launch_index[rows]))
