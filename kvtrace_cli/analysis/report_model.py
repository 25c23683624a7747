"""What the pictures of a report are drawn from, as plain values and small frames."""

from dataclasses import dataclass, field
from enum import Enum

import polars as pl


class Mark(Enum):
    """What one mark of a timeline stands for."""

    POINT = "launch"
    LINE = "replay or step"


@dataclass(frozen=True)
class Stretch:
    """Which launches are pictured: those of one GPU context, in the measured requests or in all.

    `process_id` and `context_index` name the context with the most launches, as each GPU has its
    own clock, and `rank` is its process's; `other_contexts` counts those that are left out.
    `launches` had a block that entered, `unplaced` of them belong to no layer that is known.
    """

    measured: bool
    rank: str
    process_id: int
    context_index: int
    other_contexts: int
    launches: int
    unplaced: int


@dataclass(frozen=True)
class Timeline:
    """When blocks of the cache kernels entered.

    `marks` has one row a mark: `begin_ms` (first block entry), `end_ms` (of a pass, the first entry
    of its last layer), both from the stretch's first block entry, GPU globaltimer; `layer` and
    `last_layer`, `launched` (`graph 1`, `plain`), `pass_name` and `pass_number`, `step_stamp`
    (null: none) and `blocks` that entered. `passes` counts replays and steps, `shown_passes` those
    with a mark; `layers` is the most that any has, and `span_ms` reaches to the last mark's end.
    """

    mark: Mark
    passes: int
    shown_passes: int
    layers: int
    span_ms: float
    marks: pl.DataFrame = field(compare=False, repr=False)


@dataclass(frozen=True)
class HeatMap:
    """How long from one layer's first block entry to the next layer's, us on the GPU globaltimer.

    `cells` has one row a cell: `layer`, `pass_number` (the first of `grouped` passes, of which the
    interval is the median), `interval_us`. `low_us` and `high_us` bound the middle 98 % of the
    cells. `column` says what a pass is: `decode step`, `graph replay` or `step`.
    """

    column: str
    passes: int
    grouped: int
    layers: int
    median_us: float
    low_us: float
    high_us: float
    max_us: float
    slowest_layer: int
    cells: pl.DataFrame = field(compare=False, repr=False)


@dataclass(frozen=True)
class SlotMap:
    """What was written last into each KV slot, by whom; and the KV blocks around them.

    `slots` has one row a slot: `kv_block_id`, `offset`, `writer` (a request, or what else the row
    was), `position`, `step_stamp`, `k_layers` and `v_layers` (written by that row), `rows_wrote`
    (so many rows wrote the slot in the whole run), `finding` (the audit's rule, null: none).
    `kv_blocks` has one row a KV block that is shown: `kv_block_id`, `state` (`held`, `null block`,
    `held by no request`). `written_blocks` counts those that were written, held or are null.
    """

    process_id: int
    rank: str
    kv_group: int
    other_groups: int
    block_size: int
    num_blocks: int
    written_blocks: int
    shown_blocks: int
    slots: pl.DataFrame = field(compare=False, repr=False)
    kv_blocks: pl.DataFrame = field(compare=False, repr=False)


@dataclass(frozen=True)
class SequenceGap:
    """So many events are missing after the event `after` of a dump; None: from the start."""

    file: str
    after: int | None
    missing: int


@dataclass(frozen=True)
class Figure:
    """A median in ms over `samples`; `clock` names the one clock on which both ends were taken."""

    name: str
    of: str
    clock: str
    median_ms: float
    samples: int


@dataclass(frozen=True)
class RankPictures:
    """What is drawn of one rank, or of a run of one; None where there is nothing to draw."""

    stretch: Stretch
    timeline: Timeline | None
    heat_map: HeatMap | None


@dataclass(frozen=True)
class Pictures:
    """Everything a report draws of one run; None where there is nothing to draw.

    `by_rank` has the first ranks of which a block entered, `other_ranks` counts the rest. `gaps`
    holds the first ones; `gap_count` counts all.
    """

    by_rank: tuple[RankPictures, ...]
    other_ranks: int
    slot_map: SlotMap | None
    no_slot_map: str
    gaps: tuple[SequenceGap, ...]
    gap_count: int
    figures: tuple[Figure, ...]
