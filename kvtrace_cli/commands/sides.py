"""One side of a comparison: a run directory, its summary.json, or a baseline."""

import json
from pathlib import Path
from typing import Any

from kvtrace_cli import console
from kvtrace_cli.analysis.facts import conclude
from kvtrace_cli.analysis.run_facts import Summary, fault_in
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import RunDir, open_run_dir
from kvtrace_cli.dumps.summary import SCHEMA_VERSION, damaged, read_document, summary_of
from kvtrace_cli.errors import RunDirError
from kvtrace_cli.reports.documents import summary_document


def read_side(path: Path) -> Summary:
    """Return the summary that a path stands for.

    Raises:
        KvtraceError: see `side_document`.
    """
    return checked_side(path, side_document(path))


def side_document(path: Path) -> dict[str, Any]:
    """Return the document of a summary: that of the file, or of the run directory.

    A run directory whose summary.json is missing or of an older version is reconciled, and stderr
    says so; nothing is written into it.

    Raises:
        RunDirError: there is nothing at the path, no run directory, or a recording that cannot be
            read.
        DumpFormatError: no summary, one of a version that is not known, or damaged.
    """
    if not path.exists():
        raise RunDirError(
            f"{path}: no such file or directory; give a run directory, its summary.json, or what "
            "`kvtrace baseline save` wrote"
        )
    if not path.is_dir():
        return read_document(path)
    run_dir = RunDir(path)
    if not run_dir.summary.is_file():
        return _reconciled(run_dir, "no summary.json")
    document = read_document(run_dir.summary)
    if document["schema_version"] < SCHEMA_VERSION and run_dir.manifest.exists():
        return _reconciled(run_dir, "a summary.json of an older version")
    return document


def _reconciled(run_dir: RunDir, found: str) -> dict[str, Any]:
    if not (run_dir.is_incomplete or run_dir.complete_marker.exists()):
        raise RunDirError(
            f"{run_dir.path}: neither a {run_dir.summary.name} nor a run directory; give the "
            "directory that `kvtrace run` made, or a file that `kvtrace baseline save` wrote"
        )
    message = f"{run_dir.path}: {found}, so its recording is reconciled"
    console.err.print(message, markup=False, soft_wrap=True)
    opened = open_run_dir(run_dir.path, allow_incomplete=True)
    recording = read_recording(opened)
    found_out = conclude(recording)
    document = summary_document(
        found_out.result, found_out.attribution, recording.manifest, found_out.facts
    )
    # The same as if it were read back: tuples become lists.
    plain: dict[str, Any] = json.loads(json.dumps(document))
    return plain


def checked_side(path: Path, document: dict[str, Any]) -> Summary:
    """Return a document as a summary.

    Raises:
        DumpFormatError: the document is damaged.
    """
    summary = summary_of(path, document, Summary)
    fault = fault_in(summary)
    if fault:
        raise damaged(path, fault)
    return summary
