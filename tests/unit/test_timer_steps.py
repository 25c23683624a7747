"""Steps back of the GPU timer, of a file and of each graph exec, over pieces and runs."""

import random
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from kvtrace_cli.analysis.entry_runs import Runs, starts_of_runs
from kvtrace_cli.analysis.timer_steps import ExecTimerSteps, TimerSteps

EXEC_OF_LAUNCH = [0, 0, None, 3, 3, None, 6]


def back(values):
    return sum(later < earlier for earlier, later in pairwise(values))


@pytest.mark.parametrize("seed", range(10))
def test_steps_are_those_of_each_execs_own_entries(seed):
    chance = random.Random(seed)
    rows = [chance.randrange(7) for _ in range(80) for _ in range(chance.choice([1, 4]))]
    times = [chance.randrange(10) for _ in rows]
    of_file, of_execs = TimerSteps(), ExecTimerSteps(pl.Series(EXEC_OF_LAUNCH, dtype=pl.UInt32))
    first = 0
    while first < len(rows):
        end = first + chance.randint(1, 30)
        piece, timer = np.array(rows[first:end]), np.array(times[first:end], np.uint64)
        starts = starts_of_runs(piece)
        steps = of_file.add(timer)
        of_execs.add(Runs(starts, piece[starts], len(piece)), timer, steps)
        first = end
    assert of_file.count == back(times)
    expected = {
        name: back(
            [time for row, time in zip(rows, times, strict=True) if EXEC_OF_LAUNCH[row] == name]
        )
        for name in (0, 3, 6)
    }
    assert dict(of_execs.frame().iter_rows()) == expected
