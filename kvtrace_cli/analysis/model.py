"""What reconciling finds out, as plain values."""

from dataclasses import dataclass, field
from enum import Enum

import polars as pl

from kvtrace_cli.analysis.joined import JoinedEvents, all_events
from kvtrace_cli.dumps.schema import DECODE_STEP, LAUNCH_INDEX, LAYER_INDEX


class Verdict(Enum):
    """Whether host and device tell the same story."""

    AGREES = "agrees"
    MISMATCH = "mismatch"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Population:
    """Launches of one sort, the blocks their geometry asks for, and the events found for them.

    `matched_blocks + missing_blocks == expected_blocks`. Launches of functions that were not
    patched have no events by nature, so their blocks are counted apart.
    """

    launches: int = 0
    expected_blocks: int = 0
    matched_blocks: int = 0
    unexpected_blocks: int = 0
    launches_before_patching: int = 0
    blocks_before_patching: int = 0

    @property
    def missing_blocks(self) -> int:
        """Blocks that a launch asks for and no event tells of."""
        return self.expected_blocks - self.matched_blocks


@dataclass(frozen=True)
class Section:
    """The two populations of a stretch of the run; they are never mixed."""

    graph_nodes: Population
    plain_launches: Population


@dataclass(frozen=True)
class Durations:
    """Shortest, middle and longest of some durations in ms; both ends on the GPU globaltimer."""

    count: int
    min_ms: float
    median_ms: float
    max_ms: float


@dataclass(frozen=True)
class GraphShape:
    """One graph exec: its nodes and replays, and when their blocks entered.

    `replay_span` runs from the first block entry of a replay's first node to the last block entry
    of its last node; `replay_gap` from there to the next replay's first block entry.
    """

    process_id: int
    context_index: int
    graph_exec: int
    exec_generation: int
    nodes: int
    replays: int
    first_launch_id: int
    last_launch_id: int
    same_nodes_in_every_replay: bool
    expected_blocks: int
    matched_blocks: int
    first_sequence: int | None
    last_sequence: int | None
    sequences_consecutive: bool
    timer_steps_backwards: int
    replay_span: Durations | None
    replay_gap: Durations | None


@dataclass(frozen=True)
class FileBooks:
    """One dump file: what its header claims and what its records show.

    `expected_blocks` and `books_balance` are None for launch files. The blocks of dropped launch
    records are expected too, if the injector could still count them; if not, `expected_blocks` is
    only a lower bound and `books_balance` is None.
    """

    name: str
    process_id: int
    context_index: int
    written: int
    dropped: int
    sequence_gaps: int
    timer_steps_backwards: int
    expected_blocks: int | None
    books_balance: bool | None
    flags: tuple[str, ...]
    first_failure_site: str
    first_failure_result: int


@dataclass(frozen=True)
class KernelEvidence:
    """A target kernel of one context and the blocks that were matched to its launches."""

    process_id: int
    context_index: int
    kernel_slot: int
    name: str | None
    entry_points: int
    matched_blocks: int


@dataclass(frozen=True)
class OrderJoin:
    """The join by order of atomics beside the main join: blocks that both give to one launch.

    It says something only where every launch of a context is on one stream.
    """

    matches: int
    total: int
    single_stream: bool

    @property
    def agrees(self) -> bool | None:
        """Say whether both joins agree on every block; None if there is no block."""
        return self.matches == self.total if self.total else None


@dataclass(frozen=True)
class Reconciliation:
    """Everything that `kvtrace reconcile` concludes from a recording.

    Frames: `block_events` has one row per event with the launch it was joined to (`launch_index`,
    null if none) and whether it was `matched`; `launches` has one row per launch record with its
    counts. Both have the derived `layer_index` and `decode_step`.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    emulated: bool
    incomplete: bool
    graph_join_method: str | None
    measured: Section | None
    whole_life: Section
    measured_graphs: tuple[GraphShape, ...]
    graphs: tuple[GraphShape, ...]
    files: tuple[FileBooks, ...]
    kernels: tuple[KernelEvidence, ...]
    kernel_disagreements: int
    order_join: OrderJoin
    unjudged_processes: tuple[int, ...]
    contexts: tuple[JoinedEvents, ...] = field(compare=False, repr=False)
    launches: pl.DataFrame = field(compare=False, repr=False)

    @property
    def block_events(self) -> pl.DataFrame:
        """All events in one frame, made when asked for: it is as large as the recording."""
        steps = self.launches.select(LAUNCH_INDEX, LAYER_INDEX, DECODE_STEP)
        return all_events(self.contexts).join(
            steps, on=LAUNCH_INDEX, how="left", maintain_order="left", validate="m:1"
        )
