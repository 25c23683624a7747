"""Launches that share grid id and stamp are told apart by counting, over any cut into pieces."""

import random

import numpy as np
import pytest

from kvtrace_cli.analysis.entry_runs import KeyRuns, starts_of_runs
from kvtrace_cli.analysis.launch_keys import LaunchKeys

KEYS = [(5, 0), (5, 1), (9, 0), (2**63, 7)]


def counted_by_hand(launches, entries):
    """Give the k-th entry of a key to the launch that has its k-th block; -1 beyond the last."""
    rooms = {
        key: [row for row, (at, blocks) in enumerate(launches) if at == key for _ in range(blocks)]
        for key in KEYS
    }
    only = {key: rows for key, rows in rooms.items() if sum(at == key for at, _ in launches) == 1}
    found = []
    for key in entries:
        if key in only:
            found.append(next(row for row, (at, _) in enumerate(launches) if at == key))
        else:
            found.append(rooms[key].pop(0) if rooms.get(key) else -1)
    return found


def rows_of(keys, entries):
    grid_id = np.array([grid for grid, _ in entries], np.uint64)
    stamp = np.array([stamp for _, stamp in entries], np.uint32)
    starts = starts_of_runs(grid_id, stamp)
    found = keys.find(grid_id[starts], stamp[starts])
    return keys.count(KeyRuns(starts, found, len(entries)))


@pytest.mark.parametrize("seed", range(30))
def test_the_kth_group_of_blocks_belongs_to_the_kth_launch(seed):
    chance = random.Random(seed)
    launches = [
        (chance.choice(KEYS[:3]), chance.choice([0, 1, 2, 5])) for _ in range(chance.randint(1, 9))
    ]
    entries = [key for _ in range(20) for key in [chance.choice(KEYS)] * chance.choice([1, 2, 6])]
    keys = LaunchKeys(
        np.array([key[0] for key, _ in launches], np.uint64),
        np.array([key[1] for key, _ in launches], np.uint32),
        np.array([blocks for _, blocks in launches], np.int64),
    )
    found, first = [], 0
    while first < len(entries):
        end = first + chance.randint(1, 25)
        runs = rows_of(keys, entries[first:end])
        assert runs.starts[0] == 0
        assert (runs.lengths > 0).all()
        found += runs.spread(runs.rows).tolist()
        first = end
    assert found == counted_by_hand(launches, entries)


def test_without_launches_no_key_is_known():
    nothing = np.empty(0, np.int64)
    keys = LaunchKeys(nothing.astype(np.uint64), nothing.astype(np.uint32), nothing)
    assert keys.find(np.array([5], np.uint64), np.array([0], np.uint32)).tolist() == [-1]
    assert not keys.has_shared
