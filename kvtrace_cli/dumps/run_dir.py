"""The files of a run directory: their names, and reading those that are no dumps."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtrace_cli.dumps.json_lines import numbered_objects, parsed, text_of
from kvtrace_cli.errors import RunDirError

_DUMP_NAME = re.compile(r"(?P<pid>\d+)(?:-(?P<context>\d+)\.events|\.launches)\.kvt(?:\.gz)?")
_ACTIVITY_NAME = re.compile(r"(?P<pid>\d{1,9})\.activity\.kva(?:\.gz)?")
_JOURNAL_SUFFIX = ".journal.jsonl"
_STEPS_NAME = re.compile(r"(?P<pid>\d{1,9})\.(?P<what>steps\.jsonl|layout\.json)(?:\.gz)?")
# What readers count with: whole numbers up to this, or null, in requests and journals.
_LARGEST = {
    "request_index": 2**32 - 1,
    "host_monotonic_begin_ns": 2**64 - 1,
    "host_monotonic_end_ns": 2**64 - 1,
    "http_status": 999,
    "context_index": 2**16 - 1,
    "kernel_slot": 2**32 - 1,
    "pc": 2**64 - 1,
    "blocks_of_dropped": 2**63 - 1,
    "stores_dropped": 2**63 - 1,
}
_TEXTS = ("event", "role", "name")


@dataclass(frozen=True)
class RunDir:
    """Where everything of one run is; nothing needs to exist yet."""

    path: Path

    @property
    def manifest(self) -> Path:
        """What was asked, versions, exact command, outcome."""
        return self.path / "manifest.json"

    @property
    def incomplete_marker(self) -> Path:
        """Present until the run ended in order."""
        return self.path / "INCOMPLETE"

    @property
    def complete_marker(self) -> Path:
        """What the incomplete marker is renamed to."""
        return self.path / "COMPLETE"

    @property
    def server_log(self) -> Path:
        """The engine's output."""
        return self.path / "server.log"

    @property
    def requests(self) -> Path:
        """One line a request."""
        return self.path / "requests.jsonl"

    @property
    def raw(self) -> Path:
        """What the injector writes."""
        return self.path / "raw"

    @property
    def injector_config(self) -> Path:
        """What the injector was told: a kvtrace_config."""
        return self.raw / "kvtrace.config"

    @property
    def summary(self) -> Path:
        """What `kvtrace reconcile` concluded."""
        return self.path / "summary.json"

    @property
    def is_incomplete(self) -> bool:
        """Say whether the run did not end in order."""
        return self.incomplete_marker.exists()

    def event_files(self) -> list[Path]:
        """List the event files, in the order of process and context.

        Raises:
            RunDirError: a file is there twice, packed and not.
        """
        return self._dumps(".events.kvt")

    def launch_files(self) -> list[Path]:
        """List the launch files, in the order of processes.

        Raises:
            RunDirError: a file is there twice, packed and not.
        """
        return self._dumps(".launches.kvt")

    def activity_files(self) -> dict[int, Path]:
        """Return the file of what CUPTI saw in each process.

        Raises:
            RunDirError: a file is there twice, packed and not.
        """
        found = {
            int(match["pid"]): path
            for path in sorted(self.raw.glob("*.activity.kva*"), reverse=True)
            if (match := _ACTIVITY_NAME.fullmatch(path.name))
        }
        _refuse_twice(self.raw.glob("*.activity.kva.gz"))
        return dict(sorted(found.items()))

    def activity_names(self, process_id: int) -> Path:
        """Return the file of the names that the activity records of a process count."""
        path = self.raw / f"{process_id}.activity.names"
        packed = path.with_name(f"{path.name}.gz")
        return packed if packed.exists() else path

    def journals(self) -> list[Path]:
        """List the journals, in the order of processes."""
        found = self.raw.glob(f"[0-9]*{_JOURNAL_SUFFIX}")
        return sorted(found, key=lambda path: (len(path.name), path.name))

    def step_files(self) -> dict[int, Path]:
        """Return the engine plug-in's steps of each process.

        Raises:
            RunDirError: a file is there twice, packed and not.
        """
        return self._of_plugin("steps.jsonl")

    def layout_files(self) -> dict[int, Path]:
        """Return the engine plug-in's layout of each process.

        Raises:
            RunDirError: a file is there twice, packed and not.
        """
        return self._of_plugin("layout.json")

    def _of_plugin(self, what: str) -> dict[int, Path]:
        found = [
            (int(match["pid"]), path)
            for path in sorted(self.raw.glob(f"*.{what}*"))
            if (match := _STEPS_NAME.fullmatch(path.name)) and match["what"] == what
        ]
        _refuse_twice(path for _, path in found)
        return dict(sorted(found))

    def _dumps(self, ending: str) -> list[Path]:
        found = [path for path in self.raw.glob("*.kvt*") if _DUMP_NAME.fullmatch(path.name)]
        chosen = {dump_origin(path): path for path in found if ending in path.name}
        _refuse_twice(found)
        return [chosen[origin] for origin in sorted(chosen)]


def _refuse_twice(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.suffix == ".gz" and path.with_suffix("").exists():
            raise RunDirError(
                f"{path}: the same file is also there unpacked, so it would count twice; "
                "remove one of the two"
            )


def dump_origin(path: Path) -> tuple[int, int]:
    """Return process id and context index that a dump's name gives; context 0 for launch files."""
    match = _DUMP_NAME.fullmatch(path.name)
    if match is None:
        raise RunDirError(
            f"{path}: a dump is named <pid>-<context>.events.kvt or <pid>.launches.kvt"
        )
    return int(match["pid"]), int(match["context"] or 0)


def open_run_dir(path: Path, *, allow_incomplete: bool) -> RunDir:
    """Return the run directory at `path` after checking that it is one and that the run ended.

    Raises:
        RunDirError: no such directory, not a run directory, or the run is incomplete and
            `allow_incomplete` is not given.
    """
    if not path.is_dir():
        raise RunDirError(f"{path}: no such directory; give the directory that `kvtrace run` made")
    run_dir = RunDir(path)
    if run_dir.is_incomplete:
        if not allow_incomplete:
            raise RunDirError(
                f"{path}: the run did not end in order ({run_dir.incomplete_marker.name} is "
                "there), so events may be missing; give --allow-incomplete to read what there is"
            )
    elif not run_dir.complete_marker.exists():
        raise RunDirError(
            f"{path}: not a run directory, it has neither {run_dir.complete_marker.name} nor "
            f"{run_dir.incomplete_marker.name}; give the directory that `kvtrace run` made"
        )
    return run_dir


def read_manifest(run_dir: RunDir) -> dict[str, Any]:
    """Return the manifest's object.

    Raises:
        RunDirError: it is missing, or no JSON object.
    """
    path = run_dir.manifest
    manifest = parsed(path, text_of(path))
    if not isinstance(manifest, dict):
        raise RunDirError(
            f"{path}: a JSON {type(manifest).__name__}, expected an object; record again"
        )
    return manifest


def read_requests(run_dir: RunDir) -> tuple[dict[str, Any], ...]:
    """Return one dict per request, in order; none if the run ended before the first.

    Raises:
        RunDirError: a line other than a torn last one is no JSON object, or lacks its number.

    Units: `host_monotonic_*_ns` in ns of CLOCK_MONOTONIC. Source: docs/format.md.
    """
    path = run_dir.requests
    requests = tuple(_read_lines(path)) if path.exists() else ()
    for request in requests:
        if not isinstance(request.get("request_index"), int):
            raise RunDirError(
                f"{path}: a request without the number `request_index`; the file is damaged or of "
                "another version, record again"
            )
    return requests


def read_journal(run_dir: RunDir) -> tuple[dict[str, Any], ...]:
    """Return the lines of every process's journal, each with `process_id` from the file's name.

    Raises:
        RunDirError: a line other than a torn last one is no JSON object.
    """
    return tuple(
        line | {"process_id": int(path.name.removesuffix(_JOURNAL_SUFFIX))}
        for path in run_dir.journals()
        for line in _read_lines(path)
    )


def _read_lines(path: Path) -> Iterable[dict[str, Any]]:
    for number, value in numbered_objects(path):
        _check_fields(path, number, value)
        yield value


def _check_fields(path: Path, line: int, record: dict[str, Any]) -> None:
    for name in _TEXTS:
        if not isinstance(record.get(name), str | None):
            raise RunDirError(
                f"{path}: line {line} has {name} {record[name]!r}, expected a text; the file is "
                "damaged, record again"
            )
    for name, largest in _LARGEST.items():
        value = record.get(name)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (is_whole and 0 <= value <= largest):
            raise RunDirError(
                f"{path}: line {line} has {name} {value!r}, expected a whole number up to "
                f"{largest} or null; the file is damaged, record again"
            )
