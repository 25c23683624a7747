"""Make one run directory of what the nodes of a run recorded, each where its workers ran."""

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import copyfile
from typing import Any, Final

from kvtrace_cli.capture.node_sources import NodeSource, open_source
from kvtrace_cli.capture.parallel import ParallelSizes
from kvtrace_cli.capture.ranks import OTHER_HOST, RankProcess, RanksSeen, look_at_ranks
from kvtrace_cli.capture.renumber import copy_process, raw_files
from kvtrace_cli.dumps.run_dir import RunDir
from kvtrace_cli.errors import RunDirError

# No process of Linux has a number as large.
_FIRST_NEW_NUMBER: Final = 1 << 22
# What has to be the same for the recordings to be of one kind.
_COMMON: Final = ("run_id", "engine", "observer", "traced")
_SUMS: Final = ("events", "launches", "activities", "dropped")


@dataclass(frozen=True)
class CollectedProcess:
    """A process of the new directory, and where it is from."""

    process: RankProcess
    source: str
    source_process_id: int


@dataclass(frozen=True)
class Collected:
    """What was made."""

    run_dir: RunDir
    ranks: RanksSeen
    processes: tuple[CollectedProcess, ...]


@dataclass(frozen=True)
class _Part:
    """A source, with the number that each of its processes gets."""

    source: NodeSource
    numbers: dict[int, int]


def collect(out: Path, sources: Sequence[Path], *, allow_incomplete: bool = False) -> Collected:
    """Gather the recordings of one run into `out`, which appears at once and whole.

    Args:
        out: the directory to make.
        sources: run directories or archives of them, one a node. The one that sent requests, else
            the first, gives the manifest and the clock that host times are told by.
        allow_incomplete: also take runs that did not end in order; then this one did not either.

    Raises:
        RunDirError: `out` is there already, a source cannot be read, or they are not of one run.
        DumpFormatError: a dump is not of the process that its name says.
    """
    if out.exists():
        raise RunDirError(f"{out}: is there already; choose another directory")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
            return _collect(out, sources, Path(scratch), allow_incomplete=allow_incomplete)
    except OSError as error:
        raise RunDirError(
            f"{error.filename or out}: cannot be copied ({error.strerror}); nothing was collected"
        ) from error


def _collect(
    out: Path, paths: Sequence[Path], scratch: Path, *, allow_incomplete: bool
) -> Collected:
    opened = []
    for number, path in enumerate(paths):
        place = scratch / f"source-{number}"
        place.mkdir()
        opened.append(open_source(path, place, allow_incomplete=allow_incomplete))
    parts = _numbered(_checked(opened))
    made = RunDir(scratch / "collected")
    made.raw.mkdir(parents=True)
    made.path.chmod(0o700)
    base = parts[0].source
    for file in (base.run_dir.requests, base.run_dir.server_log):
        if file.exists():
            copyfile(file, made.path / file.name)
    if base.run_dir.injector_config.exists():
        copyfile(base.run_dir.injector_config, made.injector_config)
    for part in parts:
        for process_id, files in raw_files(part.source.run_dir.raw).items():
            copy_process(files, made.raw, process_id, part.numbers[process_id])
    ranks = _ranks(made, parts)
    document = json.dumps(_manifest(parts, ranks), indent=2)
    made.manifest.write_text(document + "\n", encoding="utf-8")
    incomplete = any(part.source.run_dir.is_incomplete for part in parts)
    (made.incomplete_marker if incomplete else made.complete_marker).touch()
    os.rename(made.path, out)  # noqa: PTH104  fails if something is in it by now
    return Collected(RunDir(out), ranks, _origins(parts, ranks))


def _checked(sources: list[NodeSource]) -> list[NodeSource]:
    """Return the sources, the one that sent requests first.

    Raises:
        RunDirError: they are not parts of one run.
    """
    first = sources[0]
    if first.manifest.get("run_id") is None:
        raise RunDirError(
            f"{first.name}: its manifest has no run_id, so nothing says what belongs to it; record "
            "again with this kvtrace, and the same --run-id on every node"
        )
    for other in sources[1:]:
        for name in _COMMON:
            found, expected = other.manifest.get(name), first.manifest.get(name)
            if found != expected:
                raise RunDirError(
                    f"{other.name}: {name} {found!r}, expected {expected!r} as {first.name} has: "
                    "not the same run; give --run-id the same name on every node"
                )
    for number, other in enumerate(sources):
        if any(other.manifest == earlier.manifest for earlier in sources[:number]):
            raise RunDirError(f"{other.name}: the same recording is given twice; leave one out")
    asking = [source for source in sources if source.run_dir.requests.exists()]
    if len(asking) > 1:
        names = " and ".join(source.name for source in asking)
        raise RunDirError(
            f"{names}: each sent requests of its own, expected one that did; the other nodes are "
            "recorded with `kvtrace exec`"
        )
    return sorted(sources, key=lambda source: source not in asking)


def _numbered(sources: Iterable[NodeSource]) -> list[_Part]:
    """Give each process a number; the first that has one keeps it."""
    parts: list[_Part] = []
    taken: set[int] = set()
    next_number = _FIRST_NEW_NUMBER
    for source in sources:
        numbers = {}
        for process_id in raw_files(source.run_dir.raw):
            number = process_id
            while number in taken:
                number = next_number
                next_number += 1
            numbers[process_id] = number
        taken.update(numbers.values())
        parts.append(_Part(source, numbers))
    return parts


def _ranks(made: RunDir, parts: Sequence[_Part]) -> RanksSeen:
    """Return the ranks of the new directory; host clocks are told against the first source's."""
    base_clock = parts[0].source.manifest.get("host_clock") or ""
    seen = look_at_ranks(made, _asked(parts[0].source.manifest), host_clock=base_clock)
    # A process without a word of its own has the clock of the kvtrace that started it.
    elsewhere = {
        number
        for part in parts
        if (part.source.manifest.get("host_clock") or "") != base_clock
        for number in part.numbers.values()
        if number not in seen.named
    }
    processes = tuple(
        replace(one, clock=OTHER_HOST) if one.process_id in elsewhere else one
        for one in seen.processes
    )
    # Whatever is not here now was not collected.
    return replace(seen, processes=processes, is_partial=False)


def _asked(manifest: dict[str, Any]) -> ParallelSizes | None:
    asked = manifest.get("parallel")
    try:
        return None if asked is None else ParallelSizes(**asked)
    except TypeError as error:
        raise RunDirError(
            f"manifest.json: parallel {asked!r}, expected tensor, pipeline and data; record again"
        ) from error


def _manifest(parts: Sequence[_Part], ranks: RanksSeen) -> dict[str, Any]:
    manifests = [part.source.manifest for part in parts]
    return manifests[0] | {
        "gpus": [gpu for manifest in manifests for gpu in manifest.get("gpus") or ()],
        "ranks": [asdict(process) for process in ranks.processes],
        "outcome": _outcome([manifest.get("outcome") or {} for manifest in manifests]),
        "collected": [
            {
                "source": part.source.name,
                "host": part.source.manifest.get("host"),
                "subcommand": part.source.manifest.get("subcommand"),
                "created": part.source.manifest.get("created"),
                "processes": [list(pair) for pair in sorted(part.numbers.items())],
            }
            for part in parts
        ],
    }


def _outcome(outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the first outcome, with the counts of all."""
    return outcomes[0] | {
        **{name: sum(one.get(name) or 0 for one in outcomes) for name in _SUMS},
        "injector_attached": all(one.get("injector_attached") for one in outcomes),
        "first_failure": next(
            (one["first_failure"] for one in outcomes if one.get("first_failure")), None
        ),
    }


def _origins(parts: Sequence[_Part], ranks: RanksSeen) -> tuple[CollectedProcess, ...]:
    by_number = {process.process_id: process for process in ranks.processes}
    return tuple(
        CollectedProcess(by_number[number], part.source.name, process_id)
        for part in parts
        for process_id, number in part.numbers.items()
        if number in by_number
    )
