"""What was measured, in full: overhead.json of the output directory, typed and checked."""

import gzip
import json
from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

from kvtrace_cli import __version__
from kvtrace_cli.dumps.json_lines import parsed, text_of
from kvtrace_cli.dumps.typed import KindError, from_document
from kvtrace_cli.errors import RunDirError

SCHEMA_VERSION: Final = 1
KIND: Final = "kvtrace-overhead"
NAME: Final = "overhead.json"
_PACKED: Final = f"{NAME}.gz"
_LARGEST_PLAIN_BYTES: Final = 1024**2


@dataclass(frozen=True)
class BatchTimes:
    """What so many requests at once brought: every gap between tokens, ms, as they arrived."""

    size: int
    gaps_ms: tuple[float, ...]
    tokens_per_s: float
    # Of one processor: near 1, the times are those of the client that took them.
    client_cpu_share: float


@dataclass(frozen=True)
class RoundTimes:
    """What one server answered in one round. `begin_s` counts from the start's first round."""

    start: int
    group: int
    round: int
    arm: str
    begin_s: float
    batches: tuple[BatchTimes, ...]
    prefill_ttft_ms: tuple[float, ...]

    def figures(self) -> dict[str, float]:
        """Return the round's figures by name."""
        found = {f"ITL, batch {one.size}, ms": median(one.gaps_ms) for one in self.batches}
        found |= {f"tokens/s, batch {one.size}": one.tokens_per_s for one in self.batches}
        return found | {"prefill TTFT, ms": median(self.prefill_ttft_ms)}


@dataclass(frozen=True)
class ServerFacts:
    """One server from its start to its end; null where it is not known."""

    start: int
    group: int
    arm: str
    ready_s: float
    gpu_memory_mib: int | None
    # What it recorded: of blocks and stores, or CUPTI's activities; and of launches.
    events: int | None = None
    launches: int | None = None
    dropped: int | None = None
    # Its exit status in words, and the last signal that it took from us.
    engine_ended: str | None = None
    engine_last_signal: str | None = None

    def figures(self) -> dict[str, float]:
        """Return the figures of the whole server by name."""
        memory = self.gpu_memory_mib
        found = {"start-up, s": self.ready_s}
        return found if memory is None else found | {"GPU memory, MiB": float(memory)}


@dataclass(frozen=True)
class Setup:
    """What must be alike for measurements to be put together."""

    engine: str
    emulated: bool
    model: str
    weights: str
    rounds: int
    batches: tuple[int, ...]
    tokens: int
    prefill: int
    side_by_side: int
    gpus: tuple[str, ...]
    versions: dict[str, Any]
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Measurement:
    """All that was measured, and how far it came: `ended` is complete, failed or interrupted."""

    setup: Setup
    arms: tuple[str, ...]
    # Arm -> why it was not measured.
    skipped: dict[str, Any]
    seed: int
    starts: int
    servers: tuple[ServerFacts, ...] = ()
    rounds: tuple[RoundTimes, ...] = ()
    ended: str = "running"
    error: str = ""


_Started = TypeVar("_Started", RoundTimes, ServerFacts)


def save(directory: Path, measured: Measurement) -> Path:
    """Write what was measured in place of what was written before; gzip if it is large."""
    head = {"kind": KIND, "schema_version": SCHEMA_VERSION, "kvtrace_version": __version__}
    data = (json.dumps(head | asdict(measured)) + "\n").encode()
    is_large = len(data) > _LARGEST_PLAIN_BYTES
    path, other = (directory / name for name in ((_PACKED, NAME) if is_large else (NAME, _PACKED)))
    new = directory / f"{path.name}.new"
    new.write_bytes(gzip.compress(data, mtime=0) if is_large else data)
    new.replace(path)
    other.unlink(missing_ok=True)
    return path


def load(directory: Path) -> Measurement:
    """Read what `save` wrote.

    Raises:
        RunDirError: it is not there, damaged, or of another kind or schema version.
        DumpFormatError: it is packed, and damaged as such.
    """
    path = directory / _PACKED
    if not path.exists():
        path = directory / NAME
    if not path.exists():
        raise RunDirError(
            f"{directory}: no {NAME} in it; expected what `kvtrace overhead --out` wrote"
        )
    found = parsed(path, text_of(path))
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise RunDirError(f"{path}: no {KIND} document; expected what `kvtrace overhead` wrote")
    if found.get("schema_version") != SCHEMA_VERSION:
        raise RunDirError(
            f"{path}: schema version {found.get('schema_version')}, this kvtrace reads "
            f"{SCHEMA_VERSION}; measure again, or read it with the kvtrace that wrote it"
        )
    try:
        measured = from_document(Measurement, found, "overhead")
        _demand_values(measured)
    except KindError as error:
        raise RunDirError(f"{path}: {error}; the file is damaged, copy it again") from error
    return measured


def merged(found: list[tuple[Path, Measurement]]) -> Measurement:
    """Put the starts of several measurements together, numbered on.

    Raises:
        RunDirError: they were not made alike, or one is there twice.
    """
    twice = [
        str(path)
        for path, count in Counter(path.resolve() for path, _ in found).items()
        if count > 1
    ]
    if twice:
        raise RunDirError(f"{', '.join(twice)}: given twice; its starts count once only")
    (first_path, first), *others = found
    servers, rounds, offset = list(first.servers), list(first.rounds), first.starts
    ended, errors = first.ended, [first.error] if first.error else []
    for path, other in others:
        unlike = [
            one.name
            for one in fields(Setup)
            if getattr(first.setup, one.name) != getattr(other.setup, one.name)
        ]
        if unlike or first.arms != other.arms:
            raise RunDirError(
                f"{path}: not measured as {first_path} was ({', '.join(unlike) or 'arms'} differ); "
                "give --from only what can be put together"
            )
        servers += [_renumbered(one, offset) for one in other.servers]
        rounds += [_renumbered(one, offset) for one in other.rounds]
        offset += other.starts
        ended = ended if ended != "complete" else other.ended
        errors += [other.error] if other.error else []
    return Measurement(
        first.setup,
        first.arms,
        first.skipped,
        first.seed,
        offset,
        tuple(servers),
        tuple(rounds),
        ended,
        "; ".join(errors),
    )


def _renumbered(one: _Started, offset: int) -> _Started:
    return replace(one, start=one.start + offset)


def _demand_values(measured: Measurement) -> None:
    """Refuse a round without times: no median could be told of it."""
    for number, one in enumerate(measured.rounds):
        batches = all(batch.gaps_ms and batch.tokens_per_s > 0 for batch in one.batches)
        if not (batches and one.prefill_ttft_ms):
            raise KindError(f"overhead.rounds[{number}] has no times")
