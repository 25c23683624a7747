"""Which program counters the matched block entries of a context had, by kernel."""

from collections import Counter

import numpy as np
import polars as pl

from kvtrace_cli.analysis.entry_runs import Runs, starts_of_runs
from kvtrace_cli.dumps.event_source import U32, EventPiece

_SCHEMA = {
    "pc": pl.UInt64,
    "kernel_slot": pl.UInt32,
    "event_slot": pl.UInt32,
    "blocks": pl.UInt64,
}


class MatchedPcs:
    """Counts entries by program counter and the kernel slots of both sides, piece by piece."""

    def __init__(self, kernel_slot: U32) -> None:
        """Take the kernel slots of the context's launches."""
        self._kernel_slot = kernel_slot
        self._blocks: Counter[tuple[int, int, int]] = Counter()

    def add(self, entries: EventPiece, runs: Runs) -> None:
        """Take in entries that matched; their runs have a launch each."""
        if not runs.count:
            return
        pc, event_slot = entries.column("pc"), entries.column("kernel_slot")
        of_run = self._kernel_slot[runs.rows]
        if (
            (of_run == of_run[0]).all()
            and (pc == pc[0]).all()
            and (event_slot == event_slot[0]).all()
        ):
            self._blocks[int(pc[0]), int(of_run[0]), int(event_slot[0])] += runs.count
            return
        kernel_slot = runs.spread(of_run)
        starts = starts_of_runs(pc, kernel_slot, event_slot)
        counted = (
            pl.DataFrame(
                {
                    "pc": pc[starts],
                    "kernel_slot": kernel_slot[starts],
                    "event_slot": event_slot[starts],
                    "blocks": np.diff(starts, append=runs.count),
                }
            )
            .group_by("pc", "kernel_slot", "event_slot")
            .agg(pl.col("blocks").sum())
        )
        for *key, blocks in counted.iter_rows():
            self._blocks[tuple(key)] += blocks

    def frame(self) -> pl.DataFrame:
        """Return `pc`, `kernel_slot` (of the launch), `event_slot` (of the event), `blocks`."""
        rows = [(*key, blocks) for key, blocks in self._blocks.items()]
        return pl.DataFrame(rows, schema=_SCHEMA, orient="row")
