"""A run directory -> everything it holds, checked for parts that must be there together."""

from typing import TypeVar

from kvtrace_cli.dumps.activity import read_run_activities
from kvtrace_cli.dumps.event_source import EventDump
from kvtrace_cli.dumps.reader import read_events, read_launches
from kvtrace_cli.dumps.run_dir import (
    RunDir,
    dump_origin,
    read_journal,
    read_manifest,
    read_requests,
)
from kvtrace_cli.dumps.schema import Dump, Recording
from kvtrace_cli.dumps.steps import read_steps
from kvtrace_cli.errors import DumpFormatError, RunDirError

_AnyDump = TypeVar("_AnyDump", Dump, EventDump)


def read_recording(run_dir: RunDir) -> Recording:
    """Read every file of a run directory that reconciling needs.

    Raises:
        RunDirError: the manifest, a journal, the requests, steps or a layout cannot be read, or a
            process has an event file without a launch file.
        DumpFormatError: a dump or a packed file is damaged, or a dump is of another ABI version or
            has another file's name.
    """
    manifest = read_manifest(run_dir)
    events = tuple(_named_as_it_says(run_dir, read_events(path)) for path in run_dir.event_files())
    launches = tuple(
        _named_as_it_says(run_dir, read_launches(path)) for path in run_dir.launch_files()
    )
    _check_pairs(run_dir, events, launches)
    return Recording(
        incomplete=run_dir.is_incomplete,
        manifest=manifest,
        requests=read_requests(run_dir),
        journal=read_journal(run_dir),
        events=events,
        launches=launches,
        steps=read_steps(run_dir),
        activities=read_run_activities(run_dir),
    )


def _named_as_it_says(run_dir: RunDir, dump: _AnyDump) -> _AnyDump:
    """Refuse a dump under another dump's name: its records would be joined to the wrong ones."""
    path = run_dir.raw / dump.name
    process_id, context_index = dump_origin(path)
    header = dump.header
    if (header.process_id, header.context_index) != (process_id, context_index):
        raise DumpFormatError(
            f"{path}: written by process {header.process_id}, context {header.context_index}; its "
            f"name says process {process_id}, context {context_index}; give it its own name again"
        )
    return dump


def _check_pairs(
    run_dir: RunDir, events: tuple[EventDump, ...], launches: tuple[Dump, ...]
) -> None:
    recorded = {dump.header.process_id for dump in launches}
    for dump in events:
        process_id = dump.header.process_id
        if process_id not in recorded:
            raise RunDirError(
                f"{run_dir.raw / dump.name}: no {process_id}.launches.kvt beside it, so there is "
                "nothing to compare its events with; copy the whole directory or record again"
            )
