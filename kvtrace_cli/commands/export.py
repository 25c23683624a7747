"""`kvtrace export`: a run directory -> tables (Parquet, Arrow) or a timeline (Perfetto)."""

import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from kvtrace_cli import __version__, console
from kvtrace_cli.analysis.export_columns import EXPORT_SCHEMA_VERSION
from kvtrace_cli.analysis.export_frames import ExportSource
from kvtrace_cli.analysis.export_tracks import Timeline, timeline
from kvtrace_cli.analysis.model import Reconciliation, Verdict
from kvtrace_cli.analysis.rank_model import process_title
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.errors import ConfigError, InconclusiveError
from kvtrace_cli.exports.tables import TableFormat, write_tables
from kvtrace_cli.exports.target import check_target, fresh_target

_PERFETTO = "perfetto"
_ENDINGS = {"parquet": "-parquet", "arrow": "-arrow", _PERFETTO: ".pftrace"}
_MAX_SLICES = 500_000


def export(
    *,
    run_dir: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory that `kvtrace run` made.")
    ],
    as_parquet: Annotated[
        bool, typer.Option("--parquet", help="Joined tables as Parquet files.")
    ] = False,
    as_arrow: Annotated[
        bool, typer.Option("--arrow", help="Joined tables as Arrow IPC files.")
    ] = False,
    as_perfetto: Annotated[
        bool, typer.Option("--perfetto", help="A timeline that Perfetto's UI opens.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            help="Where; by default beside DIR: DIR-parquet, DIR-arrow, DIR.pftrace.",
        ),
    ] = None,
    max_slices: Annotated[
        int | None,
        typer.Option(
            "--max-slices",
            metavar="N",
            min=1,
            help=f"Most slices of a --perfetto timeline ({_MAX_SLICES:,}).",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier export at PATH.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document of what was written.")
    ] = False,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="Read a run that did not end in order.")
    ] = False,
) -> None:
    """Write the joined events for other tools: as Parquet or Arrow tables, or a Perfetto timeline.

    Example: kvtrace export run1 --parquet -o run1-parquet

    What was written is told on stderr. Exit code 0: written; 2: usage, DIR cannot be read, or PATH
    cannot be written; 4: there is nothing to write.
    """
    chosen = _chosen(parquet=as_parquet, arrow=as_arrow, perfetto=as_perfetto)
    if max_slices is not None and chosen != _PERFETTO:
        raise ConfigError("--max-slices: tables have no slices; give it with --perfetto only")
    # Before anything long: the package may be missing.
    perfetto = import_module("kvtrace_cli.exports.perfetto") if chosen == _PERFETTO else None
    opened = open_run_dir(run_dir, allow_incomplete=allow_incomplete)
    whole = run_dir.resolve()
    path = out if out is not None else whole.with_name(whole.name + _ENDINGS[chosen])
    check_target(path, force=force)
    recording = read_recording(opened)
    source = ExportSource(recording, reconcile(recording), step_tables(recording))
    _check_not_empty(run_dir, source.result)
    with fresh_target(path, force=force) as partial:
        if perfetto:
            written = _write_timeline(perfetto, partial, run_dir, source, max_slices or _MAX_SLICES)
        else:
            written = _write_tables(partial, source, TableFormat(chosen))
    notes = _notes(source.result)
    for note in notes:
        _say(f"note: {note}")
    _say(f"wrote {path}")
    if as_json:
        head = {"schema_version": EXPORT_SCHEMA_VERSION, "kvtrace_version": __version__}
        head |= {"run_dir": str(run_dir), "path": str(path), "format": chosen}
        typer.echo(json.dumps(head | written | {"notes": notes}, indent=2))


def _chosen(**formats: bool) -> str:
    wanted = [name for name, is_wanted in formats.items() if is_wanted]
    if len(wanted) != 1:
        found = " and ".join(f"--{name}" for name in wanted) or "none"
        raise ConfigError(f"found {found}; give one of --parquet, --arrow and --perfetto")
    return wanted[0]


def _check_not_empty(run_dir: Path, result: Reconciliation) -> None:
    if result.launches.is_empty() and not any(books.written for books in result.files):
        raise InconclusiveError(
            f"{run_dir}: no launch and no event was recorded, so there is nothing to export; "
            "`kvtrace reconcile` says why"
        )


def _write_tables(path: Path, source: ExportSource, table_format: TableFormat) -> dict[str, Any]:
    written = []
    for one in write_tables(path, source, table_format):
        _say(f"{one.table}: rows {one.rows:,}, files {one.files:,}")
        written.append(asdict(one))
    absent = [table for table, there in source.tables_recorded().items() if not there]
    if absent:
        _say(f"not recorded in this run, so left out: {', '.join(absent)}")
    return {"tables": written, "not_recorded": absent}


def _write_timeline(
    perfetto: Any, path: Path, run_dir: Path, source: ExportSource, max_slices: int
) -> dict[str, Any]:
    found = timeline(source, max_slices)
    if found.slices.is_empty():
        raise InconclusiveError(
            f"{run_dir}: no launch has a matched block entry, so nothing has a time; "
            "`kvtrace reconcile` says what is missing"
        )
    names = {
        process_id: _process_name(source, process_id)
        for process_id in found.slices["process_id"].unique()
    }
    perfetto.write_trace(path, found, names)
    _say(f"{found.slices.height:,} slices, all on the GPU globaltimer; host times are left out")
    _say_left_out(found)
    return {
        "slices": found.slices.height,
        "left_out": [asdict(one) for one in found.left_out],
        "launches_without_entry": found.timeless,
        "entries_without_launch": found.unmatched,
    }


def _say_left_out(found: Timeline) -> None:
    if found.timeless:
        _say(f"left out: {found.timeless:,} launches that no matched block entry gives a time")
    if found.unmatched:
        _say(f"left out: {found.unmatched:,} block entries that belong to no launch")
    for one in found.left_out:
        _say(f"left out: {one.slices:,} of {one.total:,} {one.level}")
    if found.left_out:
        everything = found.slices.height + sum(one.slices for one in found.left_out)
        _say(f"--max-slices {everything} takes all of them")


def _process_name(source: ExportSource, process_id: int) -> str:
    name = process_title(process_id, source.result.ranks.names)
    return f"{name} (EMULATED)" if source.result.emulated else name


def _notes(result: Reconciliation) -> list[str]:
    """Return what a reader of the export must know of the recording."""
    notes = ["this run was emulated, no GPU was involved"] if result.emulated else []
    if result.verdict is not Verdict.AGREES:
        reasons = " ".join(result.reasons)
        notes.append(f"`kvtrace reconcile` says of this run: {result.verdict.value}: {reasons}")
    return notes


def _say(text: str) -> None:
    console.err.print(text, markup=False, soft_wrap=True)
