"""`kvtrace doctor`: what this machine has, and what recording would miss."""

import json
from dataclasses import asdict

import typer
from rich.table import Column, Table
from rich.text import Text

from kvtrace_cli import console
from kvtrace_cli.capture.preflight import Check, Status, run_preflight
from kvtrace_cli.commands.run_options import (
    InjectorOption,
    JsonOption,
    PortOption,
    PythonOption,
    SanitizerOption,
    interpreter,
)
from kvtrace_cli.config import EngineConfig, RecordingConfig
from kvtrace_cli.errors import ExitCode

SCHEMA_VERSION = 1
_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


def doctor(
    python: PythonOption = None,
    port: PortOption = None,
    injector: InjectorOption = None,
    sanitizer_library: SanitizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check what recording needs on this machine and say what is missing.

    Example: kvtrace doctor --python venv/bin/python

    Exit code 0: a run can start here; 4: it cannot, so nothing could be concluded here. Reading,
    comparing and reporting runs works anywhere.
    """
    engine = EngineConfig(python=interpreter(python), port=port)
    recording = RecordingConfig(injector=injector, sanitizer_library=sanitizer_library)
    preflight = run_preflight(engine, recording)
    if as_json:
        document = _document(preflight.checks, can_record=not preflight.failed)
        console.out.print(document, markup=False, soft_wrap=True)
    else:
        console.out.print(_table(preflight.checks))
    raise typer.Exit(ExitCode.INCONCLUSIVE if preflight.failed else ExitCode.AGREES)


def _document(checks: list[Check], *, can_record: bool) -> str:
    document = {
        "schema_version": SCHEMA_VERSION,
        "can_record": can_record,
        "checks": [asdict(check) for check in checks],
    }
    return json.dumps(document, indent=2)


def _table(checks: list[Check]) -> Table:
    table = Table("check", "status", Column("found", overflow="fold"), "next step")
    for check in checks:
        status = Text(check.status.name, style=_STYLES[check.status])
        table.add_row(check.name, status, Text(check.found), Text(check.next_step or ""))
    return table
