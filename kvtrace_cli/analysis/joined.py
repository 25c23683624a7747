"""The events of one context with the launch each was joined to, read a slice at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl

from kvtrace_cli.analysis.event_launches import EventLaunches
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.event_source import Bools, EventDump, EventPiece
from kvtrace_cli.dumps.schema import CONTEXT_INDEX, LAUNCH_INDEX, PROCESS_ID, event_schema

# So many events that intermediate columns are small beside what is held of a recording.
SLICE_EVENTS = 1 << 18


@dataclass(frozen=True)
class ContextCounts:
    """What reading all events of a context has shown.

    `same_by_order` counts the entries that the join by order of atomics gives to the same launch;
    `strays` those without a launch, `graph_strays` those of them that a graph node's would be.
    Frames: `pcs` is what `MatchedPcs` counts, the others what `ExecTimerSteps` does, the last of
    measured launches only.
    """

    entries: int
    stores: int
    matched_stores: int
    sequence_gaps: int
    timer_steps_backwards: int
    same_by_order: int
    strays: int
    graph_strays: int
    pcs: pl.DataFrame
    exec_steps: pl.DataFrame
    measured_exec_steps: pl.DataFrame


@dataclass(frozen=True)
class JoinedEvents:
    """Events in sequence order; of each its `launch_index` (or null) and whether it `matched`.

    A block entry matches if it is the first of a block of its launch; a store, if its block has
    entered.
    """

    dump: EventDump
    launches: EventLaunches = field(repr=False)
    counts: ContextCounts

    @property
    def process_id(self) -> int:
        """The process whose context it is."""
        return self.dump.header.process_id

    @property
    def context_index(self) -> int:
        """The context's number in its process."""
        return self.dump.header.context_index


def is_store(piece: EventPiece) -> Bools:
    """Tell stores from block entries, which share files and sequences."""
    found: Bools = piece.records["event_kind"] == abi.constant("KVTRACE_EVENT_GLOBAL_STORE")
    return found


def slices(contexts: Sequence[JoinedEvents], *names: str) -> Iterator[pl.DataFrame]:
    """Yield the block entries of all contexts, each in sequence order.

    Args:
        contexts: the joined events.
        names: of the columns of `event_schema()` that are wanted; none: all of them.

    Returns:
        Frames of those columns, `launch_index`, `matched`, `process_id`, `context_index`.
    """
    for context in contexts:
        if context.counts.entries:
            yield from _frames(context, names, stores=False)


def store_slices(contexts: Sequence[JoinedEvents], *names: str) -> Iterator[pl.DataFrame]:
    """Yield the stores of all contexts, each in sequence order; columns as `slices` has them."""
    for context in contexts:
        if context.counts.stores:
            for part in _frames(context, names, stores=True):
                if part.height:
                    yield part


def _frames(
    context: JoinedEvents, names: tuple[str, ...], *, stores: bool
) -> Iterator[pl.DataFrame]:
    first = 0
    for piece in context.dump.pieces(SLICE_EVENTS):
        launch_index, matched = context.launches.slice(first, len(piece))
        first += len(piece)
        if context.counts.stores:
            kept = is_store(piece) if stores else ~is_store(piece)
            mask = pl.Series(kept)
            piece, launch_index, matched = (  # noqa: PLW2901 - the rest is not looked at
                piece.only(kept),
                launch_index.filter(mask),
                matched.filter(mask),
            )
        yield piece.frame(names).with_columns(
            launch_index,
            matched,
            pl.lit(context.process_id, pl.UInt32).alias(PROCESS_ID),
            pl.lit(context.context_index, pl.UInt16).alias(CONTEXT_INDEX),
        )


def all_entries(contexts: Sequence[JoinedEvents]) -> pl.DataFrame:
    """Return the block entries of all contexts in one frame."""
    schema = event_schema() | {
        LAUNCH_INDEX: pl.UInt32,
        "matched": pl.Boolean,
        PROCESS_ID: pl.UInt32,
        CONTEXT_INDEX: pl.UInt16,
    }
    return pl.concat([pl.DataFrame(schema=schema), *slices(contexts)])
