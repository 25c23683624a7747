"""The books of each dump file: what its header counts against what its records show."""

from collections.abc import Sequence

import polars as pl

from kvtrace_cli.analysis.joined import JoinedEvents
from kvtrace_cli.analysis.model import FileBooks
from kvtrace_cli.dumps.event_source import EventDump
from kvtrace_cli.dumps.schema import (
    CONTEXT_INDEX,
    PROCESS_ID,
    Dump,
    Recording,
    failure_site_name,
    flag_names,
)


def file_books(
    recording: Recording, launches: pl.DataFrame, contexts: Sequence[JoinedEvents]
) -> tuple[FileBooks, ...]:
    """Check every dump file: event files first, then launch files.

    Args:
        recording: the dumps.
        launches: from `launch_frame`.
        contexts: the joined events of the event files.

    Returns:
        One FileBooks per dump. A gap is a sequence that no event has; gaps are summed.

    Units: events and blocks; stores have no part in `expected_blocks`; timer
    steps of block entries on the GPU globaltimer.
    """
    dropped = {
        dump.header.process_id: _blocks_of_dropped(recording, dump) for dump in recording.launches
    }
    return tuple(
        _event_books(
            context,
            launches,
            dropped[context.process_id],
            _stores_dropped(recording, context.dump),
        )
        for context in contexts
    ) + tuple(_books(dump) for dump in recording.launches)


def _blocks_of_dropped(recording: Recording, dump: Dump) -> int | None:
    """Return how many blocks the dropped launches of a process had; None if nobody knows.

    The injector journals it at an orderly end. With several contexts it cannot be divided.
    """
    process_id = dump.header.process_id
    if dump.header.dropped_count == 0:
        return 0
    contexts = [events for events in recording.events if events.header.process_id == process_id]
    for line in recording.journal:
        if line["process_id"] == process_id and len(contexts) == 1:
            blocks = line.get("blocks_of_dropped")
            if line.get("event") == "launches_ended" and isinstance(blocks, int):
                return blocks
    return None


def _stores_dropped(recording: Recording, dump: EventDump) -> int | None:
    """Return how many of an event file's drops were stores; None if nobody knows.

    The injector journals it at an orderly end.
    """
    header = dump.header
    if header.dropped_count == 0 or not header.has("KVTRACE_FILE_WRITES"):
        return 0
    for line in recording.journal:
        of_context = line.get(CONTEXT_INDEX) == header.context_index
        if line.get("event") == "ended" and line[PROCESS_ID] == header.process_id and of_context:
            stores = line.get("stores_dropped")
            return stores if isinstance(stores, int) else None
    return None


def _event_books(
    context: JoinedEvents,
    launches: pl.DataFrame,
    blocks_of_dropped_launches: int | None,
    stores_dropped: int | None,
) -> FileBooks:
    header, counts = context.dump.header, context.counts
    blocks = launches.filter(
        "is_patched",
        pl.col(PROCESS_ID) == header.process_id,
        pl.col(CONTEXT_INDEX) == header.context_index,
    )["expected_blocks"]
    expected = int(blocks.sum()) + (blocks_of_dropped_launches or 0)
    is_known = blocks_of_dropped_launches is not None and stores_dropped is not None
    entries = counts.entries + header.dropped_count - (stores_dropped or 0)
    return _books(
        context.dump,
        sequence_gaps=counts.sequence_gaps,
        timer_steps_backwards=counts.timer_steps_backwards,
        expected_blocks=expected,
        books_balance=expected == entries if is_known else None,
        stores_written=counts.stores,
        stores_dropped=stores_dropped,
    )


def _books(
    dump: Dump | EventDump,
    *,
    sequence_gaps: int = 0,
    timer_steps_backwards: int = 0,
    expected_blocks: int | None = None,
    books_balance: bool | None = None,
    stores_written: int = 0,
    stores_dropped: int | None = 0,
) -> FileBooks:
    header = dump.header
    return FileBooks(
        name=dump.name,
        process_id=header.process_id,
        context_index=header.context_index,
        written=header.record_count,
        dropped=header.dropped_count,
        sequence_gaps=sequence_gaps,
        timer_steps_backwards=timer_steps_backwards,
        expected_blocks=expected_blocks,
        books_balance=books_balance,
        flags=flag_names("kvtrace_file_flag", header.flags),
        first_failure_site=failure_site_name(header.first_failure_site),
        first_failure_result=header.first_failure_result,
        stores_written=stores_written,
        stores_dropped=stores_dropped,
    )
