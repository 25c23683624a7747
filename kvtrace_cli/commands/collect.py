"""`kvtrace collect`: one run directory of what each node of a run recorded."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kvtrace_cli import console
from kvtrace_cli.capture.collect import Collected
from kvtrace_cli.capture.collect import collect as collect_run
from kvtrace_cli.commands.run_options import JsonOption
from kvtrace_cli.errors import ExitCode

SCHEMA_VERSION = 1


def collect(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The run directory to make.")],
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="SOURCE...", help="Run directories or .tar.gz of them, one a node."),
    ],
    *,
    allow_incomplete: Annotated[
        bool,
        typer.Option("--allow-incomplete", help="Take runs that did not end in order; OUT is one."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Gather the recordings of a run on several nodes into one run directory.

    Example: kvtrace collect run1 head-node.tar.gz /shared/worker-node

    Every node is recorded with the same --run-id. Exit code 0: collected; 2: a source cannot be
    read, they are not of one run, or OUT is there already.
    """
    made = collect_run(out, sources, allow_incomplete=allow_incomplete)
    if as_json:
        console.out.print(json.dumps(_document(made), indent=2), markup=False, soft_wrap=True)
    else:
        console.out.print(_table(made))
    if made.ranks.missing:
        text = f"not among them: rank {', '.join(made.ranks.missing)}"
        console.err.print(f"kvtrace: {text}", markup=False, soft_wrap=True)
    text = f"kvtrace: run directory: {made.run_dir.path}"
    console.err.print(text, markup=False, soft_wrap=True)
    raise typer.Exit(ExitCode.AGREES)


def _document(made: Collected) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "run_dir": str(made.run_dir.path),
        "missing_ranks": list(made.ranks.missing),
        "processes": [
            asdict(one.process)
            | {
                "rank": made.ranks.name_of(one.process),
                "source": one.source,
                "source_process_id": one.source_process_id,
            }
            for one in made.processes
        ],
    }


def _table(made: Collected) -> Table:
    table = Table("rank", "process", "host", "its clock", "from", "process there")
    for one in made.processes:
        table.add_row(
            made.ranks.name_of(one.process),
            str(one.process.process_id),
            one.process.host or "",
            one.process.clock,
            one.source,
            str(one.source_process_id),
        )
    return table
