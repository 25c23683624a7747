"""Which rank of its engine each process was, as the engine plug-in told, and what it is called."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from kvtrace_cli.analysis.rank_model import Rank
from kvtrace_cli.dumps.rank_names import DATA, LETTERS, PIPELINE, TENSOR, rank_name
from kvtrace_cli.dumps.schema import Recording

# The rank within an engine, as the engine counts.
_WORLD: Final = "world"
# No engine has as many ranks; a damaged number must not fill the memory.
_MOST_ABSENT: Final = 1024


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run, in order; those whose process told none are not among them.

    `sizes` of each dimension: as asked or told, and never less than what was seen. `absent` are
    ranks that were asked for and that no process told to be; empty if nobody knows the sizes.
    `engines` has the ranks that ran steps of one scheduler: of each data rank, and of each time
    that it was started. Where its ranks were not all started as often, which belong together is
    not known: those are `unpaired`.
    """

    sizes: Mapping[str, int]
    present: tuple[Rank, ...] = ()
    absent: tuple[Rank, ...] = ()
    engines: tuple[tuple[Rank, ...], ...] = ()
    unpaired: tuple[tuple[Rank, ...], ...] = ()

    @property
    def total(self) -> int:
        """How many ranks the sizes make."""
        return self.sizes[TENSOR] * self.sizes[PIPELINE] * self.sizes[DATA]

    @property
    def names(self) -> dict[int, str]:
        """The name of each process that told its rank; none if there is one rank in all."""
        return {
            rank.process_id: rank.name
            for rank in self.present
            if rank.process_id is not None and rank.name
        }


def ranks_of(recording: Recording) -> Ranks:
    """Return the ranks of a run, as the plug-in told them, and those that were asked for.

    Args:
        recording: its manifest says what was asked (`parallel`), its steps who was which rank. Old
            recordings lack sizes: then none is absent.
    """
    told = {process.process_id: process.started for process in recording.steps if process.started}
    known = [
        _numbers(recording.manifest.get("parallel")),
        *(_numbers(started.get("world_sizes")) for started in told.values()),
    ]
    ranks = {pid: _numbers(started.get("ranks")) for pid, started in told.items()}
    sizes = {
        name: max(1, *(one.get(name, 1) for one in known), *_ends(ranks.values(), name))
        for name in LETTERS
    }
    # An engine of unknown sizes may still count its own ranks.
    engine = max(sizes[TENSOR] * sizes[PIPELINE], *_ends(ranks.values(), _WORLD))
    present = [
        replace(
            _at(_place(one, sizes), sizes, engine, one.get(_WORLD)),
            process_id=process_id,
            host=_text(told[process_id], "host"),
            host_clock=_text(told[process_id], "host_clock"),
        )
        for process_id, one in ranks.items()
        if one
    ]
    present.sort(key=lambda rank: (rank.place, rank.process_id))
    taken = {rank.place for rank in present}
    absent = (_at(place, sizes, engine) for place in _places(sizes) if place not in taken)
    engines, unpaired = _engines(recording, present)
    return Ranks(
        sizes=sizes,
        present=tuple(present),
        absent=tuple(islice(absent, _MOST_ABSENT)) if any(known) else (),
        engines=engines,
        unpaired=unpaired,
    )


def _engines(
    recording: Recording, present: Iterable[Rank]
) -> tuple[tuple[tuple[Rank, ...], ...], tuple[tuple[Rank, ...], ...]]:
    """Put together the ranks that ran steps of one scheduler, and those that cannot be."""
    began = {
        process.process_id: (process.started or {}).get("host_monotonic_ns") or 0
        for process in recording.steps
        if process.lines
    }
    by_data: dict[int, dict[tuple[int, int, int], list[Rank]]] = {}
    for rank in present:
        if rank.process_id in began:
            by_data.setdefault(rank.data, {}).setdefault(rank.place, []).append(rank)
    engines: list[tuple[Rank, ...]] = []
    unpaired: list[tuple[Rank, ...]] = []
    for places in by_data.values():
        if len({len(started) for started in places.values()}) > 1:
            unpaired.append(tuple(rank for started in places.values() for rank in started))
            continue
        # The k-th start of one rank was that of every other one.
        in_order = (
            sorted(started, key=lambda rank: began[rank.process_id or 0])
            for started in places.values()
        )
        engines += zip(*in_order, strict=True)
    return tuple(engines), tuple(unpaired)


def _ends(ranks: Iterable[Mapping[str, int]], name: str) -> Iterator[int]:
    """Yield a size that is large enough for all ranks of one dimension."""
    yield from (1 + one.get(name, 0) for one in ranks)
    yield 1


def _places(sizes: Mapping[str, int]) -> Iterator[tuple[int, int, int]]:
    return (
        (data, pipeline, tensor)
        for data in range(sizes[DATA])
        for pipeline in range(sizes[PIPELINE])
        for tensor in range(sizes[TENSOR])
    )


def _numbers(values: Any) -> dict[str, int]:
    """Return the whole numbers of an object, by name."""
    if not isinstance(values, dict):
        return {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0
    }


def _place(told: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """Return data, pipeline and tensor rank; what was not told follows from the engine's count."""
    world = told.get(_WORLD, 0)
    return (
        told.get(DATA, 0),
        told.get(PIPELINE, world // sizes[TENSOR] % sizes[PIPELINE]),
        told.get(TENSOR, world % sizes[TENSOR]),
    )


def _text(started: Mapping[str, Any], name: str) -> str | None:
    value = started.get(name)
    return value if isinstance(value, str) and value else None


def _at(
    place: tuple[int, int, int], sizes: Mapping[str, int], engine: int, world: int | None = None
) -> Rank:
    """Return a rank without a process; `engine` is how many ranks an engine has."""
    data, pipeline, tensor = place
    in_engine = pipeline * sizes[TENSOR] + tensor if world is None else world
    by_dimension = {TENSOR: tensor, PIPELINE: pipeline, DATA: data}
    return Rank(
        process_id=None,
        name=rank_name(by_dimension, sizes),
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        number=data * engine + in_engine,
    )
