"""`kvtrace reconcile`: a run directory -> tables or JSON, summary.json, and the exit code."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvtrace_cli import console
from kvtrace_cli.analysis.facts import conclude
from kvtrace_cli.analysis.model import Attribution, Reconciliation, Verdict
from kvtrace_cli.commands.output_options import (
    GithubOption,
    JunitOption,
    MarkdownOption,
    Outputs,
)
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import RunDir, open_run_dir
from kvtrace_cli.errors import ExitCode
from kvtrace_cli.reports.documents import document_text, report_document, summary_document
from kvtrace_cli.reports.reconcile_checks import reconcile_report
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
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.")
    ] = False,
    allow_incomplete: Annotated[
        bool,
        typer.Option(
            "--allow-incomplete", help="Read a run that did not end in order; never agrees."
        ),
    ] = False,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    github: GithubOption = False,
) -> None:
    """Compare what the host launched with what entered on the GPU, from a run's files alone.

    Example: kvtrace reconcile kvtrace-out-20260101-120000

    Writes summary.json into DIR. Exit code 0: agrees; 1: mismatch or drops; 2: DIR cannot be read;
    4: inconclusive.
    """
    outputs = Outputs(
        "kvtrace reconcile", junit=junit, markdown=markdown, github=github, as_json=as_json
    )
    raise typer.Exit(reconcile_run(run_dir, allow_incomplete=allow_incomplete, outputs=outputs))


def reconcile_run(run_dir: Path, *, allow_incomplete: bool, outputs: Outputs) -> ExitCode:
    """Reconcile a run directory, print and write the result, and summary.json.

    Returns:
        The exit code that the verdict stands for.

    Raises:
        RunDirError: it is no run directory, is incomplete, or lacks a part.
        DumpFormatError: a recorded file is damaged.
        ConfigError: an output cannot be written.
    """
    with outputs.errors_told():
        opened = open_run_dir(run_dir, allow_incomplete=allow_incomplete)
        recording = read_recording(opened)
        found_out = conclude(recording)
    result, attribution, facts = found_out.result, found_out.attribution, found_out.facts
    _write_summary(opened, summary_document(result, attribution, recording.manifest, facts))
    if outputs.as_json:
        document = {"run_dir": str(run_dir)} | report_document(
            result, attribution, recording.manifest, facts
        )
        typer.echo(json.dumps(document, indent=2))
    elif outputs.wants_tables:
        _print_tables(result, attribution)
    outputs.write(reconcile_report(result, attribution, str(run_dir)))
    return _EXIT_CODES[result.verdict]


def _write_summary(run_dir: RunDir, document: dict[str, Any]) -> None:
    try:
        run_dir.summary.write_text(document_text(document) + "\n", encoding="utf-8")
    except OSError as error:
        message = f"warning: {run_dir.summary}: not written ({error.strerror})"
        console.err.print(message, markup=False, soft_wrap=True)


def _print_tables(result: Reconciliation, attribution: Attribution) -> None:
    for table in reconciliation_tables(result, attribution):
        console.out.print(table)
        console.out.print()
