"""Where the GPU timer goes backwards from one block entry to the next."""

import numpy as np
import polars as pl

from kvtrace_cli.analysis.entry_runs import Runs
from kvtrace_cli.dumps.event_source import I64, U64, Bools

_SCHEMA = {"first_of_exec": pl.UInt32, "timer_steps_backwards": pl.UInt32}


class TimerSteps:
    """Counts the steps back of one file, piece by piece."""

    def __init__(self) -> None:
        self.count = 0
        self._last: U64 = np.empty(0, np.uint64)

    def add(self, timer: U64) -> Bools:
        """Take in the next entries; say of each but the first whether it is before the last."""
        if not len(timer):
            return np.empty(0, np.bool_)
        steps: Bools = timer[1:] < timer[:-1]
        self.count += int(np.count_nonzero(steps)) + int((timer[:1] < self._last).sum())
        self._last = timer[-1:].copy()
        return steps


class ExecTimerSteps:
    """Counts, of some graph execs, the steps back from one of an exec's entries to its next."""

    def __init__(self, first_of_exec: pl.Series) -> None:
        """Take of each launch of a context the name of its exec; null: not looked at."""
        known = first_of_exec.drop_nulls().unique().sort()
        self._names = known
        numbers = known.to_numpy()
        self._exec: I64 = np.full(len(first_of_exec), -1)
        is_known = first_of_exec.is_not_null().to_numpy()
        self._exec[is_known] = np.searchsorted(numbers, first_of_exec.drop_nulls().to_numpy())
        self._steps: I64 = np.zeros(len(known), np.int64)
        self._last: U64 = np.zeros(len(known), np.uint64)

    def add(self, runs: Runs, timer: U64, steps: Bools) -> None:
        """Take in entries that matched.

        Args:
            runs: of the entries.
            timer: of each entry.
            steps: whether each entry but the first is before the last.
        """
        number = self._exec[runs.rows]
        wanted = np.flatnonzero(number >= 0)
        if not len(wanted):
            return
        if steps.any():
            self._add_within(number, runs, steps)
        ends = runs.starts + runs.lengths - 1
        # Runs of one exec together, still in sequence order.
        order = wanted[np.argsort(number[wanted], kind="stable")]
        execs, began, ended = number[order], timer[runs.starts[order]], timer[ends[order]]
        is_first = np.ones(len(order), np.bool_)
        np.not_equal(execs[1:], execs[:-1], out=is_first[1:])
        before = np.empty_like(ended)
        before[1:] = ended[:-1]
        before[is_first] = self._last[execs[is_first]]
        np.add.at(self._steps, execs, began < before)
        is_last = np.append(is_first[1:], True)
        self._last[execs[is_last]] = ended[is_last]

    def _add_within(self, number: I64, runs: Runs, steps: Bools) -> None:
        inside = np.zeros(runs.count, np.int64)
        inside[1:] = steps
        inside[runs.starts] = 0
        of_run = np.add.reduceat(inside, runs.starts)
        is_wanted = number >= 0
        np.add.at(self._steps, number[is_wanted], of_run[is_wanted])

    def frame(self) -> pl.DataFrame:
        """Return `first_of_exec` and `timer_steps_backwards`, of execs in any order."""
        return pl.DataFrame([self._names, pl.Series(self._steps)], schema=_SCHEMA)
