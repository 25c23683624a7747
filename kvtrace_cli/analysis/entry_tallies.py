"""What is counted of the block entries of one context, piece by piece, in sequence order."""

from collections.abc import Callable

import numpy as np
import polars as pl

from kvtrace_cli.analysis.context_launches import ContextLaunches
from kvtrace_cli.analysis.entry_runs import Runs
from kvtrace_cli.analysis.matched_pcs import MatchedPcs
from kvtrace_cli.analysis.measured import STRETCH
from kvtrace_cli.analysis.outcomes import Outcomes
from kvtrace_cli.analysis.timer_steps import ExecTimerSteps, TimerSteps
from kvtrace_cli.dumps.event_source import U64, Bools, EventPiece


class EntryTallies:
    """Counts entries by launch, by program counter, without a launch, and timer steps back."""

    def __init__(
        self, launches: ContextLaunches, frame: pl.DataFrame, node_grids: Callable[[], U64]
    ) -> None:
        """Take the launches of the context; see `match_context`."""
        self._launches = launches
        self._node_grids = node_grids
        self.entries = self.strays = self.graph_strays = self.same_by_order = 0
        self.outcomes = Outcomes(launches.launch_index)
        self.pcs = MatchedPcs(launches.kernel_slot)
        self.timer_steps = TimerSteps()
        execs = frame["first_of_exec"]
        is_measured = frame[STRETCH].is_not_null()
        measured_execs = execs.zip_with(is_measured, pl.Series([None], dtype=execs.dtype))
        self.exec_steps = ExecTimerSteps(execs)
        self.measured_exec_steps = ExecTimerSteps(measured_execs)

    def take(self, entries: EventPiece, timer: U64, runs: Runs, matched: Bools | None) -> None:
        """Take in the entries of the next piece; `matched` None: all did."""
        self.same_by_order += self._count_same_by_order(runs)
        self.entries += runs.count
        steps = self.timer_steps.add(timer)
        if matched is not None:
            self._take_unmatched(entries, runs, matched)
            entries, runs, timer = entries.only(matched), runs.only(matched), timer[matched]
            steps = timer[1:] < timer[:-1]
        self.outcomes.add_matched(entries, runs, timer)
        self.pcs.add(entries, runs)
        self.exec_steps.add(runs, timer, steps)
        self.measured_exec_steps.add(runs, timer, steps)

    def _take_unmatched(self, entries: EventPiece, runs: Runs, matched: Bools) -> None:
        rows = runs.spread(runs.rows)
        is_stray = rows < 0
        self.outcomes.add_unexpected(rows[~is_stray & ~matched])
        if is_stray.any():
            strays = entries.only(is_stray)
            unstamped = strays.column("grid_id")[strays.column("launch_stamp") == 0]
            of_nodes = int(np.count_nonzero(np.isin(unstamped, self._node_grids())))
            self.strays += len(strays)
            self.graph_strays += len(strays) - len(unstamped) + of_nodes

    def _count_same_by_order(self, runs: Runs) -> int:
        """Count the entries that the join by order of atomics gives to the same launch.

        By order, the n-th entry belongs to the n-th expected block. Assumes: one stream and no
        missing event; otherwise it gives wrong launches.
        """
        if not len(self._launches):
            return 0
        begin = runs.starts + self.entries
        first, last = self._launches.first_block[:-1], self._launches.first_block[1:]
        low = np.maximum(begin, first[runs.rows])
        high = np.minimum(begin + runs.lengths, last[runs.rows])
        same = np.where(runs.rows >= 0, np.maximum(high - low, 0), 0)
        return int(same.sum())
