"""The events of one context with the launch each was joined to, read a slice at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from kvtrace_cli.dumps.schema import CONTEXT_INDEX, LAUNCH_INDEX, PROCESS_ID, event_schema

# So many events that intermediate columns are small beside the events themselves.
SLICE_EVENTS = 1 << 18


@dataclass(frozen=True)
class JoinedEvents:
    """Events in sequence order; of each its `launch_index` (or null) and whether it `matched`."""

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
    """Yield the events of all contexts, each context's in sequence order, `frame`'s columns."""
    for context in contexts:
        for first in range(0, context.records.height, SLICE_EVENTS):
            yield JoinedEvents(
                context.process_id,
                context.context_index,
                context.records.slice(first, SLICE_EVENTS),
                context.launch_index.slice(first, SLICE_EVENTS),
                context.matched.slice(first, SLICE_EVENTS),
            ).frame()


def all_events(contexts: Sequence[JoinedEvents]) -> pl.DataFrame:
    """Return the events of all contexts in one frame."""
    return pl.concat(context.frame() for context in (JoinedEvents.nothing(), *contexts))
