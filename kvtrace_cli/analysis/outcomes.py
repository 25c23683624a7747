"""What was found for each launch of a context, added up piece by piece."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from kvtrace_cli.analysis.entry_runs import Runs, starts_of_runs
from kvtrace_cli.dumps.event_source import I64, U32, U64, Bools, EventPiece

_NEVER = np.iinfo(np.uint64).max


class Span:
    """The lowest and the highest value of each launch."""

    def __init__(self, launches: int) -> None:
        self.low: U64 = np.full(launches, _NEVER)
        self.high: U64 = np.zeros(launches, np.uint64)

    def add(self, rows: I64, low: U64, high: U64) -> None:
        """Take in the span of some runs."""
        np.minimum.at(self.low, rows, low)
        np.maximum.at(self.high, rows, high)


class Outcomes:
    """Counts and spans of the launches of one context, by their rows."""

    def __init__(self, launch_index: U32) -> None:
        self.launch_index = launch_index
        launches = len(launch_index)
        self.matched: U32 = np.zeros(launches, np.uint32)
        self.unexpected: U32 | None = None
        self.sequence = Span(launches)
        self.timer = Span(launches)
        self.stores: U64 | None = None
        self.store_sequence: Span | None = None

    def add_matched(self, entries: EventPiece, runs: Runs, timer: U64) -> None:
        """Take in entries that matched; their runs have a launch each."""
        if not runs.count:
            return
        rows, ends = runs.rows, runs.starts + runs.lengths - 1
        np.add.at(self.matched, rows, runs.lengths.astype(np.uint32))
        self.sequence.add(rows, entries.sequence[runs.starts], entries.sequence[ends])
        low, high = (by.reduceat(timer, runs.starts) for by in (np.minimum, np.maximum))
        self.timer.add(rows, low, high)

    def add_unexpected(self, rows: I64) -> None:
        """Take in the launch of each entry that has one and did not match."""
        if self.unexpected is None:
            self.unexpected = np.zeros(len(self.launch_index), np.uint32)
        np.add.at(self.unexpected, rows, 1)

    def add_stores(self, rows: I64, sequence: U64) -> None:
        """Take in the launch and the sequence of each store that matched."""
        launches = len(self.launch_index)
        if self.stores is None or self.store_sequence is None:
            self.stores, self.store_sequence = np.zeros(launches, np.uint64), Span(launches)
        starts = starts_of_runs(rows)
        lengths = np.diff(starts, append=len(rows))
        np.add.at(self.stores, rows[starts], lengths.astype(np.uint64))
        first, last = sequence[starts], sequence[starts + lengths - 1]
        self.store_sequence.add(rows[starts], first, last)


def outcome_columns(outcomes: Sequence[Outcomes], launches: int) -> list[pl.Series | pl.Expr]:
    """Return the columns of all launches that `with_outcomes` adds; its docstring has them."""
    matched = _all_counts([(one, one.matched) for one in outcomes], launches)
    has_any = None if matched.all() else matched > 0
    columns: list[pl.Series | pl.Expr] = [
        pl.Series("matched_blocks", matched),
        _count_column("unexpected_blocks", [(one, one.unexpected) for one in outcomes], launches),
    ]
    for name, what in (("sequence", "sequence"), ("globaltimer_ns", "timer")):
        spans = [(one, getattr(one, what)) for one in outcomes]
        columns += _span_columns(name, spans, launches, has_any)
    stores = [(one, one.stores) for one in outcomes]
    columns.append(_count_column("stores", stores, launches))
    spans = [(one, one.store_sequence) for one in outcomes]
    has_stores = _all_counts(stores, launches) > 0
    return columns + _span_columns("store_sequence", spans, launches, has_stores)


def _all_counts(parts: Sequence[tuple[Outcomes, U32 | U64 | None]], launches: int) -> U64:
    counts = np.zeros(launches, np.uint64)
    for outcomes, values in parts:
        if values is not None:
            counts[outcomes.launch_index] = values
    return counts


def _count_column(
    name: str, parts: Sequence[tuple[Outcomes, U32 | U64 | None]], launches: int
) -> pl.Series | pl.Expr:
    if all(values is None for _, values in parts):
        # A column of one value takes no memory.
        return pl.lit(0, pl.UInt64).alias(name)
    return pl.Series(name, _all_counts(parts, launches))


def _span_columns(
    name: str,
    parts: Sequence[tuple[Outcomes, Span | None]],
    launches: int,
    has_any: Bools | None,
) -> list[pl.Series | pl.Expr]:
    if all(span is None for _, span in parts):
        return [pl.lit(None, pl.UInt64).alias(f"{end}_{name}") for end in ("first", "last")]
    columns: list[pl.Series | pl.Expr] = []
    for end in ("first", "last"):
        values = np.zeros(launches, np.uint64)
        for outcomes, span in parts:
            if span is not None:
                values[outcomes.launch_index] = span.low if end == "first" else span.high
        series = pl.Series(f"{end}_{name}", values)
        columns.append(series if has_any is None else series.set(pl.Series(~has_any), None))
    return columns
