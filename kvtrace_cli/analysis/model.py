"""What reconciling finds out, as plain values."""

from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Final

import polars as pl

from kvtrace_cli.analysis.activity_targets import TargetRuns
from kvtrace_cli.analysis.joined import JoinedEvents, all_entries
from kvtrace_cli.analysis.kernel_names import kernel_title
from kvtrace_cli.analysis.rank_model import RankAccount, RankBooks
from kvtrace_cli.dumps.schema import DECODE_STEP, LAUNCH_INDEX, LAYER_INDEX


class Verdict(Enum):
    """Whether host and device tell the same story."""

    AGREES = "agrees"
    MISMATCH = "mismatch"
    INCONCLUSIVE = "inconclusive"


# Flags of the files of a run in which no launch can have an event, by design, and why not.
WITHOUT_EVENTS: Final = {
    "no_patch": "No block event was to be recorded: with --record none no kernel is patched.",
    "no_op_patch": "No block event was to be recorded: with --patch no-op the device callback "
    "returns at once.",
}


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

    `written` and `dropped` count all records; `stores_written` and `stores_dropped` those of them
    that are stores to memory, so that the rest are block entries. `stores_dropped` is None if
    nobody knows. `expected_blocks` and `books_balance` are None for launch files. The blocks of
    dropped launch records are expected too, if the injector could still count them; if not,
    `expected_blocks` is only a lower bound and `books_balance` is None.
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
    stores_written: int = 0
    stores_dropped: int | None = 0

    @property
    def entries_written(self) -> int:
        """Records that are block entries."""
        return self.written - self.stores_written

    @property
    def entries_dropped(self) -> int | None:
        """Block entries that found no space; None if nobody knows."""
        return None if self.stores_dropped is None else self.dropped - self.stores_dropped


@dataclass(frozen=True)
class StoreCounts:
    """Recorded stores to memory; those that matched are of a block that entered for a launch."""

    recorded: int
    matched: int

    @property
    def unexpected(self) -> int:
        """Stores without a launch, or of a block that never entered."""
        return self.recorded - self.matched


@dataclass(frozen=True)
class KernelEvidence:
    """A target kernel of one context and the blocks that were matched to its launches."""

    process_id: int
    context_index: int
    kernel_slot: int
    name: str | None
    entry_points: int
    matched_blocks: int

    @property
    def title(self) -> str:
        """The name as people know it, or the slot's number."""
        return kernel_title(self.name) or f"kernel slot {self.kernel_slot}"


@dataclass(frozen=True)
class RowCounts:
    """Block entries, or stores, by what their row of the batch was.

    `owned` rows are of requests, the engine's own warm-up requests among them (`engine_own`);
    `unknown` ones belong to no known step, or to a kernel whose rows are not known.
    """

    owned: int = 0
    engine_own: int = 0
    padding: int = 0
    dummy: int = 0
    draft: int = 0
    unknown: int = 0

    @property
    def total(self) -> int:
        """All of them; `engine_own` is a part of `owned`."""
        return self.owned + self.padding + self.dummy + self.draft + self.unknown


@dataclass(frozen=True)
class RequestWrites:
    """What the rows of one request did, over all processes that ran it.

    `request_index` is that of requests.jsonl, None for requests of others. `positions` counts the
    token positions that its steps computed, `cached_positions` those that were found in the prefix
    cache. `expected` is positions times layers; `entered`, `k_written` and `v_written` count the
    pairs of position and layer that have an entered block, a store to K, a store to V. The last two
    are None if stores were not recorded or the process has no layout. `lacks` says what is missing.
    """

    request_index: int | None
    request_id: str
    is_engine_own: bool
    prompt_tokens: int | None
    returned_tokens: int | None
    cached_positions: int
    positions: int
    layers: int
    expected: int
    entered: int
    k_written: int | None
    v_written: int | None
    lacks: tuple[str, ...]


@dataclass(frozen=True)
class Attribution:
    """Whose the rows were that entered and wrote; everything is empty without recorded steps.

    So it is of a run that CUPTI observed, whatever steps it has: no row of it was seen.

    `tokens` has one row per process, request and position: `process_id`, `request_id`, `position`,
    `layers` (expected), `layers_entered`, `k_layers`, `v_layers` (null: not recorded).
    `wrong_cells` is what `WrongCells` collects.
    """

    has_steps: bool
    measured: RowCounts | None
    whole_life: RowCounts
    measured_stores: RowCounts | None
    stores: RowCounts | None
    requests: tuple[RequestWrites, ...]
    notes: tuple[str, ...]
    tokens: pl.DataFrame = field(compare=False, repr=False)
    wrong_cells: pl.DataFrame = field(compare=False, repr=False)


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

    Frames: `block_events` has one row per block entry with the launch it was joined to
    (`launch_index`, null if none) and whether it was `matched`; `launches` has one row per launch
    record with its counts. Both have the derived `layer_index` and `decode_step`. `stores` is None
    if stores to memory were not recorded. `doubts` are those `reasons` that are no mismatch.
    `target_runs` is None unless CUPTI observed the run, which then has no launches and no blocks.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    emulated: bool
    incomplete: bool
    graph_join_method: str | None
    measured: Section | None
    measured_requests: int
    whole_life: Section
    measured_graphs: tuple[GraphShape, ...]
    graphs: tuple[GraphShape, ...]
    files: tuple[FileBooks, ...]
    kernels: tuple[KernelEvidence, ...]
    kernel_disagreements: int
    order_join: OrderJoin
    stores: StoreCounts | None
    unjudged_processes: tuple[int, ...]
    ranks: RankBooks
    target_runs: TargetRuns | None
    contexts: tuple[JoinedEvents, ...] = field(compare=False, repr=False)
    launches: pl.DataFrame = field(compare=False, repr=False)

    @property
    def is_seen_by_cupti(self) -> bool:
        """True for a run that CUPTI observed: by design it has no launch records and no blocks."""
        return self.target_runs is not None

    @property
    def records_blocks(self) -> bool:
        """False for a run that was asked to record launches only, to measure what that costs."""
        return WITHOUT_EVENTS.keys().isdisjoint(chain(*(books.flags for books in self.files)))

    @property
    def block_events(self) -> pl.DataFrame:
        """All block entries in one frame, made when asked for: it is as large as the recording."""
        steps = self.launches.select(LAUNCH_INDEX, LAYER_INDEX, DECODE_STEP)
        return all_entries(self.contexts).join(
            steps, on=LAUNCH_INDEX, how="left", maintain_order="left", validate="m:1"
        )


def rank_verdict(account: RankAccount) -> Verdict:
    """Return what is to be said of one rank by itself."""
    if account.faults or account.has_file_faults:
        return Verdict.MISMATCH
    return Verdict.INCONCLUSIVE if account.doubts else Verdict.AGREES
