"""Create a run directory, keep its manifest true, and mark it complete at an orderly end."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path

from kvtrace_cli.capture.manifest import Manifest
from kvtrace_cli.dumps.run_dir import RunDir
from kvtrace_cli.errors import RunDirError

_OWNER_ONLY = 0o700
_MARKER_TEXT = "This run did not end in order; events may be missing.\n"


def create_run_dir(out: Path | None, *, force: bool) -> RunDir:
    """Create the directory of a new run, for its owner only: prompts and tokens go into it.

    Args:
        out: where; null for `kvtrace-out-<date>-<time>` in the working directory.
        force: replace an earlier run that is there. Anything else is never removed.

    Raises:
        RunDirError: it cannot be made, or something is in it that may not be removed.
    """
    path = out if out is not None else Path(f"kvtrace-out-{datetime.now():%Y%m%d-%H%M%S}")  # noqa: DTZ005  the user's clock
    run_dir = RunDir(path)
    try:
        if path.exists():
            _make_room(run_dir, force=force)
        run_dir.path.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
        path.chmod(_OWNER_ONLY)
        run_dir.raw.mkdir(mode=_OWNER_ONLY)
        run_dir.incomplete_marker.write_text(_MARKER_TEXT, encoding="utf-8")
    except OSError as error:
        raise RunDirError(
            f"{error.filename or path}: cannot be written ({error.strerror}); choose another --out"
        ) from error
    return run_dir


def write_manifest(run_dir: RunDir, manifest: Manifest) -> None:
    """Replace the manifest at once, so that a reader sees the old one or the new one whole."""
    temporary = run_dir.manifest.with_suffix(".json.new")
    temporary.write_text(json.dumps(manifest.to_document(), indent=2) + "\n", encoding="utf-8")
    temporary.replace(run_dir.manifest)


def append_request(run_dir: RunDir, line: str) -> None:
    """Add one line to requests.jsonl and have it on disk before going on."""
    with run_dir.requests.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def mark_complete(run_dir: RunDir) -> None:
    """Say that the run ended in order: nothing that was recorded is missing."""
    run_dir.incomplete_marker.rename(run_dir.complete_marker)


def _make_room(run_dir: RunDir, *, force: bool) -> None:
    path = run_dir.path
    if not path.is_dir():
        raise RunDirError(f"{path}: not a directory; choose another --out")
    if not any(path.iterdir()):
        return
    if not force:
        raise RunDirError(
            f"{path}: not empty; choose another --out, or replace the run there with --force"
        )
    if not (run_dir.incomplete_marker.exists() or run_dir.complete_marker.exists()):
        raise RunDirError(
            f"{path}: not empty and no run directory, so --force does not touch it; "
            "choose another --out"
        )
    _remove_run(run_dir)


def _remove_run(run_dir: RunDir) -> None:
    """Remove the files of a run and no others; the marker goes last, so a torn removal shows."""
    files = (run_dir.manifest, run_dir.server_log, run_dir.requests, run_dir.summary)
    if run_dir.complete_marker.exists():
        run_dir.complete_marker.rename(run_dir.incomplete_marker)
    shutil.rmtree(run_dir.raw, ignore_errors=True)
    for file in files:
        file.unlink(missing_ok=True)
