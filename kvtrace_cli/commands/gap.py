"""`kvtrace gap`: a Sanitizer run and a CUPTI run -> what replays and their gaps were spent on."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kvtrace_cli import console
from kvtrace_cli.analysis.gap import gap as split_gaps
from kvtrace_cli.analysis.gap_model import GapVerdict
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.errors import ExitCode
from kvtrace_cli.reports.gap_documents import gap_document
from kvtrace_cli.reports.gap_tables import gap_tables

_EXIT_CODES = {
    GapVerdict.PAIRED: ExitCode.AGREES,
    GapVerdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}


def gap(
    blocks: Annotated[
        Path, typer.Argument(metavar="DIR_SANITIZER", help="Run that recorded blocks.")
    ],
    activities: Annotated[
        Path, typer.Argument(metavar="DIR_CUPTI", help="The same with --observer cupti.")
    ],
    *,
    allow_unequal: Annotated[
        bool,
        typer.Option(
            "--allow-unequal",
            help="Pair the k-th replay of a graph with the k-th though one run has more of them.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.")
    ] = False,
) -> None:
    """Say which kernels, copies and idle time are inside a replay and between two.

    Example: kvtrace gap run-sanitizer run-cupti

    The runs are paired by their structure, never by time. Exit code 0: paired; 2: a run cannot be
    read; 4: inconclusive, they did not do the same.
    """
    first = read_recording(open_run_dir(blocks, allow_incomplete=False))
    second = read_recording(open_run_dir(activities, allow_incomplete=False))
    result = split_gaps(
        reconcile(first),
        first,
        second,
        (str(blocks), str(activities)),
        allow_unequal=allow_unequal,
    )
    if as_json:
        typer.echo(json.dumps(gap_document(result), indent=2))
    else:
        for part in gap_tables(result):
            console.out.print(part)
            console.out.print()
    raise typer.Exit(_EXIT_CODES[result.verdict])
