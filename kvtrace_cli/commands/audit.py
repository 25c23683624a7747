"""`kvtrace audit`: a run directory -> findings as text or JSON, and the exit code."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvtrace_cli import console
from kvtrace_cli.analysis.audit import audit as audit_recording
from kvtrace_cli.analysis.audit_model import Audit, AuditVerdict
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.commands.output_options import (
    GithubOption,
    JunitOption,
    MarkdownOption,
    Outputs,
)
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.errors import ExitCode
from kvtrace_cli.reports.audit_checks import audit_report
from kvtrace_cli.reports.audit_documents import audit_document, finding_document
from kvtrace_cli.reports.audit_tables import audit_tables

_EXIT_CODES = {
    AuditVerdict.CLEAN: ExitCode.AGREES,
    AuditVerdict.FINDINGS: ExitCode.MISMATCH,
    AuditVerdict.CANNOT_JUDGE: ExitCode.INCONCLUSIVE,
}


def audit(
    run_dir: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of a run with --record writes.")
    ],
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document with every finding.")
    ] = False,
    allow_incomplete: Annotated[
        bool,
        typer.Option(
            "--allow-incomplete", help="Read a run that did not end in order; never clean."
        ),
    ] = False,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    github: GithubOption = False,
) -> None:
    """Check every KV-cache write against the slot the scheduler assigned, from a run's files alone.

    Example: kvtrace audit run1

    Exit code 0: clean; 1: findings; 2: DIR cannot be read; 4: no finding, but not everything could
    be judged, and it says why.
    """
    outputs = Outputs(
        "kvtrace audit", junit=junit, markdown=markdown, github=github, as_json=as_json
    )
    with outputs.errors_told():
        opened = open_run_dir(run_dir, allow_incomplete=allow_incomplete)
        recording = read_recording(opened)
        result = audit_recording(recording, reconcile(recording), step_tables(recording))
    if as_json:
        _print_document({"run_dir": str(run_dir)} | audit_document(result), result)
    elif outputs.wants_tables:
        for part in audit_tables(result):
            console.out.print(part)
            console.out.print()
    outputs.write(audit_report(result, str(run_dir)))
    raise typer.Exit(_EXIT_CODES[result.verdict])


def _print_document(document: dict[str, Any], result: Audit) -> None:
    """Print the document with the findings as its last member, one a line, never all in memory."""
    head = json.dumps(document, indent=2).removesuffix("\n}")
    typer.echo(f'{head},\n  "findings": [', nl=False)
    separator = "\n    "
    for finding in result.each():
        typer.echo(separator + json.dumps(finding_document(finding)), nl=False)
        separator = ",\n    "
    typer.echo("\n  ]\n}" if result.findings.height else "]\n}")
