"""What is held of each event comes back, whichever way it is held."""

import random

import numpy as np
import pytest

from kvtrace_cli.analysis.event_launches import NO_INDEX, EventLaunches, index_of_rows


def held(seed):
    """Pieces of long runs, and of one event a launch; some without a launch, some unmatched."""
    chance = random.Random(seed)
    launches, indices, matched = EventLaunches(), [], []
    for _ in range(6):
        run = chance.choice([1, 2, 3, 30])
        piece = [
            None if chance.random() < 0.1 else number // run
            for number in range(chance.randrange(90))
        ]
        did_match = [chance.random() < chance.choice([0.7, 1.1]) for _ in piece]
        known = np.array([NO_INDEX if one is None else one for one in piece], np.uint32)
        launches.add(known, None if all(did_match) else np.array(did_match))
        indices += piece
        matched += did_match
    return launches, indices, matched


@pytest.mark.parametrize("seed", range(6))
def test_any_slice_comes_back(seed):
    launches, indices, matched = held(seed)
    assert len(launches) == len(indices)
    for count in (1, 7, 64, len(indices)):
        for first in range(0, len(indices), max(count, 1)):
            found = launches.slice(first, count)
            assert found[0].to_list() == indices[first : first + count]
            assert found[1].to_list() == matched[first : first + count]


def test_nothing_has_its_types():
    index, matched = EventLaunches().slice(0, 0)
    assert (len(index), str(index.dtype), str(matched.dtype)) == (0, "UInt32", "Boolean")


def test_rows_without_a_launch_have_no_index():
    launch_index = np.array([7, 9], np.uint32)
    assert index_of_rows(launch_index, np.array([1, -1, 0])).tolist() == [9, NO_INDEX, 7]
    assert index_of_rows(launch_index[:0], np.array([-1])).tolist() == [NO_INDEX]
