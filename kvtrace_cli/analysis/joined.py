"""The events of one context with the launch each was joined to, read a slice at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.schema import CONTEXT_INDEX, LAUNCH_INDEX, PROCESS_ID, event_schema

# So many events that intermediate columns are small beside the events themselves.
SLICE_EVENTS = 1 << 18


def is_store() -> pl.Expr:
    """Tell stores from block entries, which share files and sequences."""
    return pl.col("event_kind") == abi.constant("KVTRACE_EVENT_GLOBAL_STORE")


def has_stores(records: pl.DataFrame) -> bool:
    """Say whether any event is a store; cheap where none is, as the column then has one value."""
    return bool(records.select(is_store().any()).item())


def entries_of(records: pl.DataFrame) -> pl.DataFrame:
    """Return the block entries among events."""
    return records.filter(~is_store()) if has_stores(records) else records


@dataclass(frozen=True)
class JoinedEvents:
    """Events in sequence order; of each its `launch_index` (or null) and whether it `matched`.

    A block entry matches if it is the first of a block of its launch; a store, if its block has
    entered.
    """

    process_id: int
    context_index: int
    records: pl.DataFrame
    launch_index: pl.Series
    matched: pl.Series

    @classmethod
    def nothing(cls) -> "JoinedEvents":
        """Return no events, so that what is derived from none has its columns."""
        index, matched = pl.Series(dtype=pl.UInt32), pl.Series(dtype=pl.Boolean)
        return cls(0, 0, pl.DataFrame(schema=event_schema()), index, matched)

    def frame(self) -> pl.DataFrame:
        """Return everything in one frame, the context's key included."""
        return self.records.with_columns(
            self.launch_index.alias(LAUNCH_INDEX),
            self.matched.alias("matched"),
            pl.lit(self.process_id, pl.UInt32).alias(PROCESS_ID),
            pl.lit(self.context_index, pl.UInt16).alias(CONTEXT_INDEX),
        )


def slices(contexts: Sequence[JoinedEvents]) -> Iterator[pl.DataFrame]:
    """Yield the block entries of all contexts, each in sequence order, `frame`'s columns."""
    return (entries_of(part) for part in _frames(contexts))


def store_slices(contexts: Sequence[JoinedEvents]) -> Iterator[pl.DataFrame]:
    """Yield the stores of all contexts, each in sequence order, `frame`'s columns."""
    return (part.filter(is_store()) for part in _frames(contexts) if has_stores(part))


def _frames(contexts: Sequence[JoinedEvents]) -> Iterator[pl.DataFrame]:
    for context in contexts:
        for first in range(0, context.records.height, SLICE_EVENTS):
            yield JoinedEvents(
                context.process_id,
                context.context_index,
                context.records.slice(first, SLICE_EVENTS),
                context.launch_index.slice(first, SLICE_EVENTS),
                context.matched.slice(first, SLICE_EVENTS),
            ).frame()


def all_entries(contexts: Sequence[JoinedEvents]) -> pl.DataFrame:
    """Return the block entries of all contexts in one frame."""
    return pl.concat(entries_of(part.frame()) for part in (JoinedEvents.nothing(), *contexts))
