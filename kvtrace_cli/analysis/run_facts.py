"""What two runs are compared by, as plain values: the typed part of a summary.

Lists that grow with the run are cut: the first so many are kept, with the number of all and a
digest of all, so that a change further on is still noticed.
"""

from dataclasses import dataclass
from typing import Any, Final

# What a figure keeps of its durations, and so what comparing takes time for.
MOST_SAMPLES: Final = 128
# No graph has as many nodes that write the cache.
MOST_NODES: Final = 1_000_000


@dataclass(frozen=True)
class RequestKind:
    """So many requests in a row that ask for the same; None where a run did not record it."""

    role: str | None
    prompt_tokens: int | None
    max_tokens: int | None
    streamed: bool
    requests: int


@dataclass(frozen=True)
class KvView:
    """A sort of KV tensor: how many layers have one, and what a token takes in it.

    `axes` are the dimensions, the widest stride first, each with its size; the number of KV blocks
    is left out, as it follows from the free memory.
    """

    group: int
    role: str
    layers: int
    axes: tuple[str, ...]
    dtype: str


@dataclass(frozen=True)
class Settings:
    """What was asked of a run, and on what it ran.

    The named fields decide whether runs can be compared; `listed` has all the rest, by name.
    `kv_views` is None if the engine's layout was not recorded. `request_kinds` is cut:
    `requests_digest` is over all.
    """

    engine: str | None
    model: str | None
    tensor_parallel: int | None
    kv_views: tuple[KvView, ...] | None
    request_kinds: tuple[RequestKind, ...]
    requests_digest: str
    concurrency: int | None
    record: str
    steps: bool
    kernels_asked: tuple[str, ...]
    listed: dict[str, Any]
    # Not in summaries of version 2.
    pipeline_parallel: int | None = None
    data_parallel: int | None = None


@dataclass(frozen=True)
class LaunchRun:
    """So many launches in a row, or of a phase, of one kernel with one geometry."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    launches: int


@dataclass(frozen=True)
class GraphOutline:
    """Graph execs of one shape, added up: what matches them is their nodes, never an address.

    `node_runs` are the nodes in order, and repeat `repeats` times; cut, see `node_runs_total` and
    `digest`. `first_in` is the phase of the first replay.
    """

    nodes: int
    node_runs: tuple[LaunchRun, ...]
    node_runs_total: int
    repeats: int
    digest: str
    execs: int
    replays: int
    measured_replays: int
    same_nodes_in_every_replay: bool
    first_in: str


@dataclass(frozen=True)
class CourseRun:
    """One stretch of a request: replays of a graph (its number), or plain launches."""

    graph: int | None
    replays: int
    plain: LaunchRun | None


@dataclass(frozen=True)
class Course:
    """What one process launched for a measured request that was alone, in order.

    `runs` is cut, see `runs_total` and `digest`.
    """

    request_index: int
    replays: int
    plain_launches: int
    runs: tuple[CourseRun, ...]
    runs_total: int
    digest: str


@dataclass(frozen=True)
class PhaseReplays:
    """Replays of a graph, by its number, in one phase."""

    graph: int
    replays: int


@dataclass(frozen=True)
class Phase:
    """What was launched in `start-up`, `warm-up request`, `measured`, `between requests`.

    `plain` is a histogram over kernel and geometry, the most frequent kept, and `replays` are by
    graph, in the order of their first; `digest` is over all of both.
    """

    name: str
    plain_launches: int
    plain: tuple[LaunchRun, ...]
    replays: tuple[PhaseReplays, ...]
    digest: str


@dataclass(frozen=True)
class LayerBlocks:
    """So many neighbouring layers, each with so many blocks."""

    layers: int
    blocks: int


@dataclass(frozen=True)
class ProcessFacts:
    """What a process launched; `processes` of them did just the same.

    `ranks` are the names of those processes, empty if there is one rank in all or none is known.
    `courses` is cut at 64 requests, `courses_digest` is over all.
    `blocks_per_layer` is of measured launches whose layer is known, in the order of layers.
    """

    processes: int
    graphs: tuple[GraphOutline, ...]
    courses: tuple[Course, ...]
    courses_digest: str
    phases: tuple[Phase, ...]
    blocks_per_layer: tuple[LayerBlocks, ...]
    # Not in summaries of version 2.
    ranks: tuple[str, ...] = ()


@dataclass(frozen=True)
class SlotCoverage:
    """Where a request's stores went, in pairs of position, layer and part (K or V).

    `in_place`: into the slot of the request's own table; `elsewhere`: into another; `unjudged`: its
    table has no KV block there. `first_elsewhere` names the first in words that do not depend on
    block ids.
    """

    in_place: int
    elsewhere: int
    unjudged: int
    first_elsewhere: str | None


@dataclass(frozen=True)
class RequestFacts:
    """A measured request, over all processes; None where steps, or stores, were not recorded.

    `alone`: no other measured request was under way in its stretch.
    """

    request_index: int
    alone: bool
    prompt_tokens: int | None
    returned_tokens: int | None
    cached_positions: int | None
    positions: int | None
    layers: int | None
    expected: int | None
    entered: int | None
    k_written: int | None
    v_written: int | None
    lacks: tuple[str, ...]
    slots: SlotCoverage | None


@dataclass(frozen=True)
class KernelFacts:
    """A kernel that writes the cache: its base name, family, and full names as bound."""

    kernel: str
    family: str
    names: tuple[str, ...]
    measured_launches: int
    launches: int


@dataclass(frozen=True)
class RowFacts:
    """How many entries, or stores, were of rows that no request owns."""

    padding: int
    dummy: int
    unknown: int


@dataclass(frozen=True)
class Structure:
    """How a run wrote the cache. `requests` is cut, see `requests_total` and `requests_digest`.

    None where steps, stores or layouts were not recorded: `measured_rows` (entries of the measured
    stretches), `measured_stores`, `stores` (of the whole life), and `blocks_with_two_writers`: KV
    blocks that two requests held at the same time and both could write.
    """

    kernels: tuple[KernelFacts, ...]
    processes: tuple[ProcessFacts, ...]
    requests: tuple[RequestFacts, ...]
    requests_total: int
    requests_digest: str
    all_alone: bool
    measured_rows: RowFacts | None
    measured_stores: RowFacts | None
    stores: RowFacts | None
    blocks_with_two_writers: int | None


@dataclass(frozen=True)
class Figure:
    """Durations of one sort; at most 128 `samples` in ms, taken evenly from `count`.

    `of` says of what: a replay of so many nodes, say; `launches` counts its nodes.
    """

    name: str
    of: str
    launches: int
    clock: str
    count: int
    samples: tuple[float, ...]


@dataclass(frozen=True)
class LayerMedians:
    """Median ms from each layer's first block entry to the next layer's, cut at 256 layers.

    `lows` to `highs` is where each median lies with 95 % confidence: ranks of the sorted passes.
    """

    of: str
    passes: int
    medians: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]


@dataclass(frozen=True)
class Times:
    """The times of the measured stretches; each figure is of one clock."""

    figures: tuple[Figure, ...]
    layer_medians: tuple[LayerMedians, ...]


@dataclass(frozen=True)
class RunFacts:
    """Settings, structure and times of one run."""

    settings: Settings
    structure: Structure
    times: Times


@dataclass(frozen=True)
class DumpCounts:
    """Drops of a run, over all its files."""

    events_dropped: int
    launches_dropped: int


@dataclass(frozen=True)
class OldGraph:
    """What summaries of every version say of a graph exec of the measured requests."""

    nodes: int
    replays: int


@dataclass(frozen=True)
class OldKernel:
    """What summaries of every version say of a kernel."""

    name: str


@dataclass(frozen=True)
class Summary:
    """One side of a comparison: a summary of any version.

    `settings`, `structure` and `times` are None in version 1.
    """

    schema_version: int
    verdict: str
    reasons: tuple[str, ...]
    emulated: bool
    incomplete: bool
    engine: str | None
    model: str | None
    dumps: DumpCounts
    measured_graphs: tuple[OldGraph, ...]
    kernels: tuple[OldKernel, ...]
    settings: Settings | None = None
    structure: Structure | None = None
    times: Times | None = None


def fault_in(summary: Summary) -> str | None:
    """Return what no run has in a summary that was read from a file; None if nothing is wrong."""
    figures = summary.times.figures if summary.times else ()
    if any(len(figure.samples) > MOST_SAMPLES for figure in figures):
        return f"a figure has more than {MOST_SAMPLES} samples"
    layers = summary.times.layer_medians if summary.times else ()
    if any(not len(one.medians) == len(one.lows) == len(one.highs) for one in layers):
        return "layer medians without an interval"
    processes = summary.structure.processes if summary.structure else ()
    return next(filter(None, map(_fault_in_process, processes)), None)


def _fault_in_process(process: ProcessFacts) -> str | None:
    runs = [run for course in process.courses for run in course.runs]
    if any((run.graph is None) == (run.plain is None) for run in runs):
        return "a stretch of a request is neither replays nor plain launches"
    numbers = [run.graph for run in runs if run.graph is not None]
    numbers += [replays.graph for phase in process.phases for replays in phase.replays]
    if any(number >= len(process.graphs) for number in numbers):
        return "a graph is named that is not listed"
    return next(filter(None, map(_fault_in_graph, process.graphs)), None)


def _fault_in_graph(graph: GraphOutline) -> str | None:
    listed = graph.repeats * sum(run.launches for run in graph.node_runs)
    if not listed or listed > graph.nodes:
        return f"a graph of {graph.nodes} nodes lists {listed}"
    return f"a graph has {graph.nodes} nodes" if graph.nodes > MOST_NODES else None
