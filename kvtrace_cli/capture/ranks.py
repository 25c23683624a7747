"""Which ranks of an engine record: what the plug-in told, against the files of the injector."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from kvtrace_cli.capture.live import recorded_processes
from kvtrace_cli.capture.parallel import ParallelSizes
from kvtrace_cli.dumps.rank_names import DATA, LETTERS, PIPELINE, TENSOR, rank_name
from kvtrace_cli.dumps.run_dir import RunDir
from kvtrace_cli.errors import RunDirError

THIS_HOST: Final = "this host"
OTHER_HOST: Final = "other host"
_MOST_LINE_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class RankProcess:
    """A process that ran a model or recorded; what it did not tell is null.

    `clock` says whether its CLOCK_MONOTONIC is that of the launcher.
    """

    process_id: int
    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    world: int | None = None
    host: str | None = None
    clock: str = THIS_HOST

    @property
    def place(self) -> tuple[int, int, int]:
        """Data, pipeline and tensor rank; what it did not tell is 0."""
        return self.data or 0, self.pipeline or 0, self.tensor or 0


@dataclass(frozen=True)
class RanksSeen:
    """The processes of a run so far.

    `sizes` are those asked for or told, and never less than what was seen. `named` told their rank;
    `recorded` have files of the injector, `patched` are those of them in which a target kernel was.
    """

    sizes: ParallelSizes
    processes: tuple[RankProcess, ...]
    named: frozenset[int]
    recorded: frozenset[int]
    patched: frozenset[int]
    # Other ranks may be in other run directories.
    is_partial: bool

    @property
    def attached(self) -> int:
        """How many ranks record."""
        places = {one.place for one in self._of(self.named & self.recorded)}
        return min(self.sizes.total, len(places) + len(self._unnamed))

    @property
    def unattached(self) -> tuple[RankProcess, ...]:
        """The processes that ran a model and record nothing."""
        return self._of(self.named - self.recorded)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of ranks that nobody is; none, as long as processes without a name may be those."""
        if self.is_partial:
            return ()
        sizes = self.sizes
        told = {one.place for one in self._of(self.named)}
        places = product(range(sizes.data), range(sizes.pipeline), range(sizes.tensor))
        missing = [place for place in places if place not in told]
        return tuple(map(self._name, missing)) if len(missing) > len(self._unnamed) else ()

    def name_of(self, process: RankProcess) -> str:
        """Return the name of a process's rank; empty if there is one rank in all."""
        return self._name(process.place)

    @property
    def _unnamed(self) -> frozenset[int]:
        return self.patched - self.named

    def _of(self, process_ids: frozenset[int]) -> tuple[RankProcess, ...]:
        return tuple(one for one in self.processes if one.process_id in process_ids)

    def _name(self, place: tuple[int, int, int]) -> str:
        named = dict(zip((DATA, PIPELINE, TENSOR), place, strict=True))
        return rank_name(named, vars(self.sizes))


def look_at_ranks(
    run_dir: RunDir, asked: ParallelSizes | None, *, host_clock: str, is_partial: bool = False
) -> RanksSeen:
    """Return which ranks there are by now; files that are just being written are left out.

    Args:
        run_dir: of a run that may be under way.
        asked: how many ranks the engine was asked for, if that is known.
        host_clock: the launcher's.
        is_partial: whether other ranks may be recorded elsewhere.
    """
    told = {
        process_id: line
        for process_id, path in _step_files(run_dir).items()
        if (line := _started(path)) is not None
    }
    recorded = recorded_processes(run_dir.raw)
    processes = tuple(
        _process(process_id, told.get(process_id, {}), host_clock)
        for process_id in sorted({*told, *recorded})
    )
    return RanksSeen(
        sizes=_sizes(asked, processes, told),
        processes=processes,
        named=frozenset(process_id for process_id, line in told.items() if line.get("ranks")),
        recorded=frozenset(recorded),
        patched=frozenset(process_id for process_id, is_patched in recorded.items() if is_patched),
        is_partial=is_partial
        or (asked is None and any(line.get("several_hosts") for line in told.values())),
    )


def explain_absent(seen: RanksSeen) -> str | None:
    """Say in one sentence which ranks never attached, and what to look at; null if all did.

    A run of one rank is judged by what it recorded.
    """
    if seen.sizes.total == 1 or not (seen.missing or seen.unattached):
        return None
    parts = [
        f"rank {seen.name_of(one)}: process {one.process_id} recorded nothing"
        for one in seen.unattached
    ]
    if not seen.named:
        parts.append("the engine plug-in told of none, so they have no names")
    elif seen.missing:
        parts.append(f"rank {', '.join(seen.missing)}: no process said to be it")
    shape = ", ".join(f"{name} {size}" for name, size in vars(seen.sizes).items() if size > 1)
    return (
        f"{seen.attached} of {seen.sizes.total} ranks ({shape} parallel) attached; never did: "
        f"{'; '.join(parts)}; see whether those processes get the variables that `-v` lists, and "
        "docs/ranks.md"
    )


def _step_files(run_dir: RunDir) -> Mapping[int, Path]:
    try:
        return run_dir.step_files()
    except RunDirError:  # there twice: a matter of reading
        return {}


def _started(path: Path) -> dict[str, Any] | None:
    """Return the first line, which is written at once; null where it cannot be had."""
    try:
        with path.open("rb") as file:
            line = json.loads(file.readline(_MOST_LINE_BYTES))
    except (OSError, ValueError):
        return None
    return line if isinstance(line, dict) and line.get("event") == "started" else None


def _process(process_id: int, started: Mapping[str, Any], host_clock: str) -> RankProcess:
    clock, host = started.get("host_clock"), started.get("host")
    ranks = _numbers(started.get("ranks"))
    return RankProcess(
        process_id,
        **{name: ranks.get(name) for name in (TENSOR, PIPELINE, DATA, "world")},
        host=host if isinstance(host, str) else None,
        clock=OTHER_HOST if clock and host_clock and clock != host_clock else THIS_HOST,
    )


def _sizes(
    asked: ParallelSizes | None,
    processes: tuple[RankProcess, ...],
    told: Mapping[int, Mapping[str, Any]],
) -> ParallelSizes:
    known = [_numbers(line.get("world_sizes")) for line in told.values()]
    known += [vars(asked)] if asked is not None else []
    return ParallelSizes(
        **{
            name: max(
                [
                    1,
                    *(one.get(name, 1) for one in known),
                    *((getattr(one, name) or 0) + 1 for one in processes),
                ]
            )
            for name in LETTERS
        }
    )


def _numbers(values: Any) -> dict[str, int]:
    if not isinstance(values, dict):
        return {}
    return {name: value for name, value in values.items() if type(value) is int and value >= 0}
