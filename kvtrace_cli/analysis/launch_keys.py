"""Finding the launch of a block entry: by grid id and launch stamp, or by counting."""

from dataclasses import dataclass

import numpy as np

from kvtrace_cli.analysis.entry_runs import NO_LAUNCH, KeyRuns, Runs
from kvtrace_cli.dumps.event_source import I64, U32, U64, Bools

_STAMP_BITS = np.uint64(32)


@dataclass(frozen=True)
class _Positions:
    """Runs of shared keys: where they lie among the entries (`starts` to `ends`).

    And among the blocks of all launches, keys together, as far as the key has blocks (`begin` to
    `end`).
    """

    starts: I64
    ends: I64
    begin: I64
    end: I64


class LaunchKeys:
    """The launches of one context by their keys: pairs of grid id and launch stamp."""

    def __init__(self, grid_id: U64, stamp: U32, expected: I64) -> None:
        """Take the columns of the launches, in publish order."""
        self._grid_ids, number = np.unique(grid_id, return_inverse=True)
        pairs = number.astype(np.uint64) << _STAMP_BITS | stamp
        # Launches of one key follow each other in publish order.
        self._order = np.argsort(pairs, kind="stable")
        pairs = pairs[self._order]
        is_first = np.ones(len(pairs), np.bool_)
        np.not_equal(pairs[1:], pairs[:-1], out=is_first[1:])
        self._first = np.flatnonzero(is_first)
        self._pairs = pairs[self._first]
        self._end = np.append(self._first[1:], len(pairs))
        self._is_shared = self._end - self._first > 1
        self.has_shared = bool(self._is_shared.any())
        # Of the block positions of launches in this order; one more, where the last one ends.
        self._begin = np.concatenate([[0], np.cumsum(expected[self._order])])
        self._seen = np.zeros(len(self._first) if self.has_shared else 0, np.int64)

    def find(self, grid_id: U64, stamp: U32) -> I64:
        """Return the number of each key, -1 if no launch has it."""
        if not len(self._pairs):
            return np.full(len(grid_id), NO_LAUNCH)
        number = np.searchsorted(self._grid_ids, grid_id)
        number[number == len(self._grid_ids)] = 0
        is_known = self._grid_ids[number] == grid_id
        pairs = number.astype(np.uint64) << _STAMP_BITS | stamp
        key = np.searchsorted(self._pairs, pairs)
        key[key == len(self._pairs)] = 0
        return np.where(is_known & (self._pairs[key] == pairs), key, NO_LAUNCH)

    def are_shared(self, keys: I64) -> bool:
        """Say whether any of the keys has several launches, so that its entries are counted."""
        return self.has_shared and bool(self.is_shared(keys).any())

    def is_shared(self, keys: I64) -> Bools:
        """Say of each key whether it has several launches."""
        return np.asarray(self._is_shared[keys] & (keys >= 0))

    def only_launches(self, keys: I64) -> I64:
        """Return the row of the launch of each key that no launch shares."""
        if not len(self._order):
            return keys
        return np.where(keys >= 0, self._order[self._first[keys]], NO_LAUNCH)

    def count(self, found: KeyRuns) -> Runs:
        """Give runs of shared keys to launches: the k-th group of blocks to the k-th launch.

        Must be called with all pieces, in sequence order: entries of each key are counted.
        """
        at = self._positions(found)
        is_other = ~self.is_shared(found.keys)
        others = (found.starts[is_other], self.only_launches(found.keys[is_other]))
        # Entries beyond the last launch of their key.
        is_over = at.starts + (at.end - at.begin) < at.ends
        beyond = (at.starts + at.end - at.begin)[is_over]
        parts = (others, self._split(at), (beyond, np.full(len(beyond), NO_LAUNCH)))
        starts, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(starts, kind="stable")
        return Runs(starts[order], rows[order], found.count)

    def _split(self, at: _Positions) -> tuple[I64, I64]:
        """Cut runs where the next launch of the key begins; return starts and rows."""
        first, last = (self._launch_at(position) for position in (at.begin, at.end - 1))
        launches = np.where(at.end > at.begin, last - first + 1, 0)
        of_run = np.repeat(np.arange(len(launches)), launches)
        nth = np.arange(len(of_run)) - np.repeat(np.cumsum(launches) - launches, launches)
        place = first[of_run] + nth
        begin = np.maximum(self._begin[place], at.begin[of_run])
        # A launch without blocks takes no entry.
        is_kept = self._begin[place + 1] > begin
        starts = at.starts[of_run] + begin - at.begin[of_run]
        return starts[is_kept], self._order[place[is_kept]]

    def _positions(self, found: KeyRuns) -> _Positions:
        of_run = np.flatnonzero(self.is_shared(found.keys))
        keys, lengths = found.keys[of_run], found.lengths[of_run]
        order = np.argsort(keys, kind="stable")
        before = np.cumsum(lengths[order]) - lengths[order]
        is_first = np.ones(len(order), np.bool_)
        np.not_equal(keys[order][1:], keys[order][:-1], out=is_first[1:])
        group = np.cumsum(is_first) - 1
        within = np.empty_like(before)
        within[order] = before - before[is_first][group]
        begin = self._begin[self._first[keys]] + self._seen[keys] + within
        np.add.at(self._seen, keys, lengths)
        end = np.minimum(begin + lengths, self._begin[self._end[keys]])
        starts = found.starts[of_run]
        return _Positions(starts, starts + lengths, begin, np.maximum(end, begin))

    def _launch_at(self, position: I64) -> I64:
        """Return the place of the launch, in the order of keys, that has each block position."""
        found: I64 = np.searchsorted(self._begin[:-1], position, side="right") - 1
        return np.maximum(found, 0)
