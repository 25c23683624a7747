"""`kvtrace show`: a run directory, a request and a token position -> the life of that token."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kvtrace_cli import console
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.steps import StepTables, step_tables
from kvtrace_cli.analysis.token_life import (
    last_position,
    matching_requests,
    request_ids,
    token_life,
)
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.dumps.schema import Recording
from kvtrace_cli.errors import ConfigError, InconclusiveError
from kvtrace_cli.reports.audit_documents import token_document
from kvtrace_cli.reports.show_tables import token_tables

_LISTED = 8
_LAST_POSITION = 2**32 - 1


def show(
    run_dir: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory that `kvtrace run` made.")
    ],
    request: Annotated[
        str,
        typer.Option(
            "--request",
            metavar="R",
            help="Index of the request, the id that was sent (kvtrace-0), or how the engine's id "
            "begins.",
        ),
    ],
    token: Annotated[
        int,
        typer.Option(
            "--token", metavar="T", min=0, max=_LAST_POSITION, help="Token position, from 0."
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.")
    ] = False,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="Read a run that did not end in order.")
    ] = False,
) -> None:
    """Print the life of one token: step, replay, node per layer, KV slot, address, what came after.

    Example: kvtrace show run1 --request 0 --token 8

    Exit code 0: shown; 2: DIR cannot be read, or it has no such request or token; 4: no engine
    steps were recorded, so no row has an owner.
    """
    recording = read_recording(open_run_dir(run_dir, allow_incomplete=allow_incomplete))
    tables = step_tables(recording)
    if tables.rows.is_empty():
        raise InconclusiveError(
            f"{run_dir}: no step of the engine with a request is recorded, so no row has an owner; "
            "record with an engine that the plug-in knows"
        )
    request_id = _request_id(run_dir, recording, tables, request)
    life = token_life(recording, reconcile(recording), tables, request_id, token)
    if not life.passes and not life.notes:
        raise ConfigError(
            f"{run_dir}: request {request_id} has no token position {token}; its steps computed "
            f"positions up to {last_position(tables, request_id)}"
        )
    if as_json:
        typer.echo(json.dumps({"run_dir": str(run_dir)} | token_document(life), indent=2))
        return
    for part in token_tables(life):
        console.out.print(part)
        console.out.print()


def _request_id(run_dir: Path, recording: Recording, tables: StepTables, wanted: str) -> str:
    found = matching_requests(recording, tables, wanted)
    if len(found) == 1:
        return found[0]
    candidates = found or request_ids(tables)
    more = len(candidates) - _LISTED
    listed = ", ".join(candidates[:_LISTED]) + (f" and {more} more" if more > 0 else "")
    if found:
        raise ConfigError(
            f"{run_dir}: request {wanted!r} can be {len(found)} of its requests: {listed}; give "
            "more of the engine's id"
        )
    raise ConfigError(f"{run_dir}: no request {wanted!r} in its steps; it has: {listed}")
