"""`kvtrace reconcile`: a run directory -> tables or JSON, summary.json, and the exit code."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvtrace_cli import console
from kvtrace_cli.analysis.attribution import attribute
from kvtrace_cli.analysis.model import Attribution, Reconciliation, Verdict
from kvtrace_cli.analysis.reconcile import reconcile as reconcile_recording
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import RunDir, open_run_dir
from kvtrace_cli.errors import ExitCode
from kvtrace_cli.reports.documents import report_document, summary_document
from kvtrace_cli.reports.tables import reconciliation_tables

_EXIT_CODES = {
    Verdict.AGREES: ExitCode.AGREES,
    Verdict.MISMATCH: ExitCode.MISMATCH,
    Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}


def reconcile(
    run_dir: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory that `kvtrace run` made.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.")
    ] = False,
    allow_incomplete: Annotated[
        bool,
        typer.Option(
            "--allow-incomplete", help="Read a run that did not end in order; never agrees."
        ),
    ] = False,
) -> None:
    """Compare what the host launched with what entered on the GPU, from a run's files alone.

    Example: kvtrace reconcile kvtrace-out-20260101-120000

    Writes summary.json into DIR. Exit code 0: agrees; 1: mismatch or drops; 2: DIR cannot be read;
    4: inconclusive.
    """
    code = reconcile_run(run_dir, allow_incomplete=allow_incomplete, as_json=as_json)
    raise typer.Exit(code)


def reconcile_run(run_dir: Path, *, allow_incomplete: bool, as_json: bool) -> ExitCode:
    """Reconcile a run directory, print the result on stdout and write summary.json.

    Returns:
        The exit code that the verdict stands for.

    Raises:
        RunDirError: it is no run directory, is incomplete, or lacks a part.
        DumpFormatError: a recorded file is damaged.
    """
    opened = open_run_dir(run_dir, allow_incomplete=allow_incomplete)
    recording = read_recording(opened)
    result = reconcile_recording(recording)
    attribution = attribute(result, recording, step_tables(recording))
    _write_summary(opened, summary_document(result, attribution, recording.manifest))
    if as_json:
        document = {"run_dir": str(run_dir)} | report_document(
            result, attribution, recording.manifest
        )
        typer.echo(json.dumps(document, indent=2))
    else:
        _print_tables(result, attribution)
    return _EXIT_CODES[result.verdict]


def _write_summary(run_dir: RunDir, document: dict[str, Any]) -> None:
    try:
        run_dir.summary.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        message = f"warning: {run_dir.summary}: not written ({error.strerror})"
        console.err.print(message, markup=False, soft_wrap=True)


def _print_tables(result: Reconciliation, attribution: Attribution) -> None:
    for table in reconciliation_tables(result, attribution):
        console.out.print(table)
        console.out.print()
