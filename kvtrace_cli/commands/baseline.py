"""`kvtrace baseline save`: a run -> a small file to keep and to compare later runs with."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from kvtrace_cli import console
from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.commands.sides import checked_side, side_document
from kvtrace_cli.dumps.summary import SCHEMA_VERSION
from kvtrace_cli.errors import ConfigError
from kvtrace_cli.reports.documents import document_text


class Action(str, Enum):
    """What is done with a baseline."""

    SAVE = "save"


def baseline(
    action: Annotated[Action, typer.Argument(metavar="save")],  # noqa: ARG001  there is only one
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="Run directory or summary.json.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")
    ] = Path("kvtrace-baseline.json"),
    *,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also save a run that is incomplete or does not agree."),
    ] = False,
) -> None:
    """Save what later runs are compared with: a summary of a few KB for your repository.

    Example: kvtrace baseline save run1 -o kvtrace-baseline.json

    Exit code 0: saved; 2: DIR cannot be read, is not worth to be a baseline, or FILE cannot be
    written.
    """
    document = side_document(run_dir)
    # Whatever is saved must be readable again.
    checked_side(run_dir, document)
    if not force:
        _refuse_doubtful(run_dir, document)
    try:
        output.write_text(document_text(document) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{output}: cannot be written ({error.strerror}); give another file with -o"
        ) from error
    message = f"saved {output}: compare with `kvtrace diff {output} DIR`"
    console.err.print(message, markup=False, soft_wrap=True)


def _refuse_doubtful(run_dir: Path, document: dict[str, Any]) -> None:
    if document["schema_version"] < SCHEMA_VERSION:
        raise ConfigError(
            f"{run_dir}: a summary of schema version {document['schema_version']}, expected "
            f"{SCHEMA_VERSION}; run `kvtrace reconcile` again on its run directory"
        )
    reasons = " ".join(document["reasons"])
    if document["incomplete"] or document["verdict"] != Verdict.AGREES.value:
        found = "incomplete" if document["incomplete"] else document["verdict"]
        raise ConfigError(
            f"{run_dir}: the run is {found}, expected one that agrees: nothing could be told by "
            f"comparing with it. {reasons} Record again, or give --force"
        )
