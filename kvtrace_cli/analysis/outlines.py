"""Sequences of launches, written short: runs, periods and digests."""

from collections.abc import Hashable, Iterable, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any, Final, TypeVar

import polars as pl

from kvtrace_cli.analysis.run_facts import LaunchRun

# How many entries of a list that grows with the run are kept.
MOST_KEPT: Final = 64
# From so many shapes of graphs on the rest count as one.
MOST_GRAPHS: Final = 256
DIGEST_LETTERS: Final = 16
GEOMETRY: Final = (
    "kernel",
    *(f"{what}_dim_{axis}" for what in ("grid", "block") for axis in "xyz"),
)

_T = TypeVar("_T", bound=Hashable)


class LaunchSorts:
    """The distinct pairs of kernel and geometry of a run, numbered."""

    def __init__(self, launches: pl.DataFrame) -> None:
        """Take launches with `GEOMETRY`; the numbers follow their first launches."""
        self._sorts = launches.select(GEOMETRY).unique(maintain_order=True).with_row_index("sort")
        self._rows = [row[1:] for row in self._sorts.iter_rows()]

    def numbers(self, launches: pl.DataFrame) -> pl.Series:
        """Return the number of each launch."""
        return launches.select(GEOMETRY).join(
            self._sorts, on=GEOMETRY, how="left", maintain_order="left", validate="m:1"
        )["sort"]

    def run(self, number: int, launches: int) -> LaunchRun:
        """Return so many launches of a sort."""
        kernel, *dims = self._rows[number]
        return LaunchRun(kernel, tuple(dims[:3]), tuple(dims[3:]), launches)


def runs_of(items: Iterable[_T]) -> list[tuple[_T, int]]:
    """Return the items with how often each comes in a row."""
    return [(item, sum(1 for _ in same)) for item, same in groupby(items)]


def period_of(items: Sequence[_T]) -> tuple[Sequence[_T], int]:
    """Return the shortest part that gives all items when it is repeated, and how often."""
    for length in range(1, len(items) // 2 + 1):
        repeats, rest = divmod(len(items), length)
        if not rest and all(items[i] == items[i % length] for i in range(length, len(items))):
            return items[:length], repeats
    return items, 1


def digest_of(value: Any) -> str:
    """Return a short digest of plain values: equal for equal values, in every run."""
    return sha256(repr(value).encode()).hexdigest()[:DIGEST_LETTERS]


def taken_evenly(values: Sequence[float], most: int) -> list[float]:
    """Return at most so many of the values, taken evenly, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    last = len(values) - 1
    return [values[round(number * last / (most - 1))] for number in range(most)]
