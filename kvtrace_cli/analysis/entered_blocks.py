"""Which blocks of a context's launches have entered, so that one that enters again is noticed."""

from typing import Final

import numpy as np

from kvtrace_cli.dumps.event_source import I64, Bools

# A byte a block, up to so many for each event and so many at least.
_DENSE_BLOCKS_AN_EVENT: Final = 16
_DENSE_BLOCKS: Final = 1 << 26
# A window of so many blocks for each entry is counted over, a wider one is not.
_NARROW: Final = 16


def entered_blocks(blocks: int, events: int) -> "EnteredBlocks | SparseBlocks":
    """Return what remembers the blocks that entered.

    Args:
        blocks: how many blocks the launches have.
        events: how many events there are.
    """
    is_dense = 0 <= blocks <= max(_DENSE_BLOCKS, events * _DENSE_BLOCKS_AN_EVENT)
    return EnteredBlocks(blocks) if is_dense else SparseBlocks()


class EnteredBlocks:
    """Remembers blocks by a byte each."""

    def __init__(self, blocks: int) -> None:
        self._seen = np.zeros(blocks, np.bool_)

    def enter(self, numbers: I64) -> Bools | None:
        """Let blocks enter and say of each whether it is for the first time; None if of all."""
        if not len(numbers):
            return None
        low, high = int(numbers.min()), int(numbers.max()) + 1
        window = self._seen[low:high]
        is_new = ~self._seen[numbers]
        before = np.count_nonzero(window) if len(window) <= _NARROW * len(numbers) else None
        self._seen[numbers] = True
        if before is not None and np.count_nonzero(window) - before == len(numbers):
            return None
        first = np.zeros(len(numbers), np.bool_)
        first[np.unique(numbers, return_index=True)[1]] = True
        first &= is_new
        return None if first.all() else first

    def have_entered(self, numbers: I64) -> Bools:
        """Say of each block whether it has entered."""
        found: Bools = self._seen[numbers]
        return found


class SparseBlocks:
    """Remembers blocks by their numbers, where there are many more than events."""

    def __init__(self) -> None:
        self._seen = np.empty(0, np.int64)

    def enter(self, numbers: I64) -> Bools | None:
        """Let blocks enter and say of each whether it is for the first time; None if of all."""
        first = np.zeros(len(numbers), np.bool_)
        first[np.unique(numbers, return_index=True)[1]] = True
        first &= ~self.have_entered(numbers)
        self._seen = np.union1d(self._seen, numbers)
        return None if first.all() else first

    def have_entered(self, numbers: I64) -> Bools:
        """Say of each block whether it has entered."""
        return np.isin(numbers, self._seen)
