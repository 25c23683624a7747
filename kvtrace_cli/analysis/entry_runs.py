"""Block entries come in runs: neighbours of one key, and of one launch, are looked at together."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from kvtrace_cli.dumps.event_source import I64, Bools

NO_LAUNCH: Final = -1

_Scalar = TypeVar("_Scalar", bound=np.generic)


def starts_of_runs(*columns: npt.NDArray[np.generic]) -> I64:
    """Return where a row differs in any column from the one before; the first row begins a run."""
    height = len(columns[0])
    differs = np.zeros(height, np.bool_)
    differs[:1] = True
    for column in columns:
        differs[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(differs)


@dataclass(frozen=True)
class KeyRuns:
    """Runs of one grid id and launch stamp among `count` entries; `keys` -1: no launch has it."""

    starts: I64
    keys: I64
    count: int

    @cached_property
    def lengths(self) -> I64:
        """How many entries each run has."""
        return np.diff(self.starts, append=self.count)


@dataclass(frozen=True)
class Runs:
    """Runs of one launch among `count` entries; `rows` are of the context's launches, -1: none."""

    starts: I64
    rows: I64
    count: int

    @cached_property
    def lengths(self) -> I64:
        """How many entries each run has."""
        return np.diff(self.starts, append=self.count)

    def spread(self, values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        """Return of each entry the value of its run."""
        return np.repeat(values, self.lengths)

    def only(self, kept: Bools) -> "Runs":
        """Return the runs of those entries that are kept."""
        rows = self.spread(self.rows)[kept]
        starts = starts_of_runs(rows)
        return Runs(starts, rows[starts], len(rows))
