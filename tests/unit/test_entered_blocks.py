"""A block that enters again is noticed, however the blocks are remembered."""

import random

import numpy as np
import pytest

from kvtrace_cli.analysis.entered_blocks import EnteredBlocks, SparseBlocks, entered_blocks

BLOCKS = 5000


def pieces(seed):
    """Blocks of neighbouring or far launches, in any order, some again in one piece or later."""
    chance = random.Random(seed)
    for _ in range(12):
        width = chance.choice([10, 100, BLOCKS])
        low = chance.randrange(BLOCKS - width + 1)
        yield [low + chance.randrange(width) for _ in range(chance.randrange(60))]
        yield chance.sample(range(low, low + width), min(width, 40))


@pytest.mark.parametrize("make", [lambda: EnteredBlocks(BLOCKS), SparseBlocks])
@pytest.mark.parametrize("seed", range(8))
def test_only_the_first_entry_of_a_block_counts(make, seed):
    entered, seen = make(), set()
    for piece in pieces(seed):
        found = entered.enter(np.array(piece, np.int64))
        expected = []
        for number in piece:
            expected.append(number not in seen)
            seen.add(number)
        assert (found is None) == all(expected)
        assert found is None or found.tolist() == expected
    numbers = np.arange(BLOCKS)
    assert np.flatnonzero(entered.have_entered(numbers)).tolist() == sorted(seen)


def test_launches_of_many_blocks_and_few_events_take_little_memory():
    assert isinstance(entered_blocks(1 << 40, 100), SparseBlocks)
    assert isinstance(entered_blocks(-5, 100), SparseBlocks), "a damaged file's sum overflowed"
    assert isinstance(entered_blocks(100_000_000, 100_000_000), EnteredBlocks)
