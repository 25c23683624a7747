"""Whether ranks that share their rows launched and entered the same, by step and layer.

The k-th forward step of one rank is held against the k-th of another, and in it the n-th launch of
a target kernel against the n-th.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kvtrace_cli.analysis.joined import JoinedEvents, slices
from kvtrace_cli.analysis.rank_model import Rank, RankDifference, RankRule
from kvtrace_cli.analysis.row_mapping import ROW_AXIS, row_of_block, with_row_axis
from kvtrace_cli.analysis.steps import STEP_KEY, STEP_KIND, STEP_STAMP
from kvtrace_cli.dumps.schema import LAUNCH_INDEX, LAYER_INDEX, PROCESS_ID

FORWARD_NUMBER: Final = "forward_number"

_FORWARD: Final = "forward"
_PLACE: Final = (FORWARD_NUMBER, "launch_number")
_GRID: Final = ("grid_dim_x", "grid_dim_y", "grid_dim_z")
_COMPARED: Final = (LAUNCH_INDEX, *_GRID, "matched_blocks")


@dataclass(frozen=True)
class ForwardLaunches:
    """The launches of forward steps.

    `launches` and `journal` are of all processes; `steps` is from `forward_numbers`.
    """

    launches: pl.DataFrame
    steps: pl.DataFrame
    journal: Sequence[dict[str, Any]]

    def of(self, rank: Rank) -> pl.DataFrame:
        """Return those of one rank: `_COMPARED`, forward_number, launch_number (of the step)."""
        of_rank = pl.col(PROCESS_ID) == rank.process_id
        launches = self.launches.lazy().filter(of_rank).select(*_COMPARED, STEP_STAMP)
        steps = self.steps.lazy().filter(of_rank).select(STEP_STAMP, FORWARD_NUMBER)
        return (
            launches.join(steps, on=STEP_STAMP, maintain_order="left")
            .with_columns(
                pl.int_range(pl.len(), dtype=pl.UInt32).over(FORWARD_NUMBER).alias("launch_number")
            )
            .drop(STEP_STAMP)
            .collect()
        )

    def row(self, launch_index: int) -> dict[str, Any]:
        """Return everything of one launch."""
        return self.launches.row(by_predicate=pl.col(LAUNCH_INDEX) == launch_index, named=True)


def forward_numbers(steps: pl.DataFrame) -> pl.DataFrame:
    """Number the forward steps of each process from 0.

    Args:
        steps: from `step_frame`.

    Returns:
        process_id, step_stamp, forward_number, and the step's `rows`.
    """
    forward = steps.filter(pl.col(STEP_KIND) == _FORWARD).select(*STEP_KEY, "rows")
    number = pl.int_range(pl.len(), dtype=pl.UInt32).over(PROCESS_ID)
    return forward.with_columns(number.alias(FORWARD_NUMBER))


def row_differences(
    ranks: Sequence[Rank],
    launches: ForwardLaunches,
    contexts: Sequence[JoinedEvents],
    lossy: set[int],
    layers: Mapping[int, Sequence[int]],
) -> Iterator[RankDifference]:
    """Yield where each tensor rank first launched, or entered, other rows than the first one.

    Args:
        ranks: the tensor ranks of one pipeline rank, each with a process.
        launches: of all processes.
        contexts: the joined events, read only where ranks part.
        lossy: processes that lost events, of which only the launches are compared.
        layers: of each process, if known, the layers that it holds, in order.
    """
    first, *others = ranks
    of_first = launches.of(first)
    for rank in others:
        are_whole = not {first.process_id, rank.process_id} & lossy
        parted = _first_parting(of_first, launches.of(rank), compare_entries=are_whole)
        if parted is not None:
            held = layers.get(rank.process_id or 0, ())
            yield _row_difference((first, rank), parted, contexts, launches, held)


def silent_steps(ranks: Sequence[Rank], launches: ForwardLaunches) -> Iterator[RankDifference]:
    """Yield the first forward step of each rank in which it launched nothing, while another did.

    Args:
        ranks: of one engine, pipeline ranks among them, each with a process.
        launches: of all processes.
    """
    names = {rank.process_id: rank.name for rank in ranks}
    of_engine = pl.col(PROCESS_ID).is_in([pid for pid in names if pid is not None])
    steps = launches.steps.filter(of_engine, pl.col("rows") > 0)
    launched = launches.launches.lazy().select(STEP_KEY).unique().collect()
    ran = steps.join(launched, on=STEP_KEY, how="semi")
    by_someone = ran.group_by(FORWARD_NUMBER).agg(pl.col(PROCESS_ID).min().alias("by"))
    silent = (
        steps.join(ran, on=(PROCESS_ID, FORWARD_NUMBER), how="anti", maintain_order="left")
        .join(by_someone, on=FORWARD_NUMBER, maintain_order="left")
        .sort(PROCESS_ID, FORWARD_NUMBER)
        .unique(PROCESS_ID, keep="first", maintain_order=True)
    )
    for row in silent.iter_rows(named=True):
        name, other = names[row[PROCESS_ID]], names[row["by"]]
        yield RankDifference(
            rule=RankRule.ROWS,
            rank=name,
            other=other,
            text=f"{name} launched no target kernel in step {row[STEP_STAMP]}; {other} did.",
            step_stamp=row[STEP_STAMP],
        )


def _first_parting(
    first: pl.DataFrame, other: pl.DataFrame, *, compare_entries: bool
) -> dict[str, Any] | None:
    """Return the first launch that differs; columns of the second have the suffix `_other`."""
    compared = [*_GRID, *(["matched_blocks"] if compare_entries else [])]
    # What is nearly always so takes no join.
    if first.select(*_PLACE, *compared).equals(other.select(*_PLACE, *compared)):
        return None
    same = [pl.col(name).eq_missing(pl.col(f"{name}_other")) for name in compared]
    # A step that one side lacks altogether is told of by itself.
    common = first.select(FORWARD_NUMBER).unique().join(other, on=FORWARD_NUMBER, how="semi")
    parted = (
        first.join(other, on=_PLACE, how="full", coalesce=True, suffix="_other", validate="1:1")
        .filter(~pl.all_horizontal(same))
        .join(common, on=FORWARD_NUMBER, how="semi")
        .sort(_PLACE)
        .head(1)
    )
    return parted.row(0, named=True) if parted.height else None


def _row_difference(
    pair: tuple[Rank, Rank],
    parted: dict[str, Any],
    contexts: Sequence[JoinedEvents],
    launches: ForwardLaunches,
    held: Sequence[int],
) -> RankDifference:
    first, rank = pair
    one, other = parted[LAUNCH_INDEX], parted[f"{LAUNCH_INDEX}_other"]
    launch = launches.row(one if other is None else other)
    number, row = launch[LAYER_INDEX], None
    # A pipeline rank counts its own layers from 0.
    layer = held[number] if number is not None and number < len(held) else number
    if None in (one, other):
        # Which of its launches one side lacks cannot be told, so no layer is named.
        layer = None
        counts = [_launches_of(launches, parted, each) for each in (rank, first)]
        text = f"with {counts[0]} launches, {counts[1]} on {first.name}"
    elif any(parted[name] != parted[f"{name}_other"] for name in _GRID):
        text = f"layer {layer}: grid {_grid(parted, '_other')}, {_grid(parted, '')} on {first.name}"
    else:
        row, text = _entries_part(pair, parted, _entered_rows(contexts, launches, (one, other)))
        text = f"layer {layer}: {text}"
    # The stamp of the first rank, if the other has no such launch.
    stamp = launch[STEP_STAMP]
    return RankDifference(
        rule=RankRule.ROWS,
        rank=rank.name,
        other=first.name,
        text=f"{rank.name} parts from {first.name} in step {stamp}, {text}.",
        step_stamp=stamp,
        layer_index=layer,
        row=row,
    )


def _entries_part(
    pair: tuple[Rank, Rank], parted: dict[str, Any], entered: Sequence[set[int]]
) -> tuple[int | None, str]:
    """Return the first row that entered on one side only, and say so."""
    names = [rank.name for rank in pair]
    alone = [entered[0] - entered[1], entered[1] - entered[0]]
    found = [(min(rows), name) for name, rows in zip(names, alone, strict=True) if rows]
    if found:
        row, name = min(found)
        return row, f"row {row} entered on {name} alone"
    counts = parted["matched_blocks_other"], parted["matched_blocks"]
    return None, f"{counts[0]:,} blocks entered, {counts[1]:,} on {names[0]}"


def _launches_of(launches: ForwardLaunches, parted: dict[str, Any], rank: Rank) -> int:
    """Count a rank's launches in the step that parts."""
    return launches.of(rank).filter(pl.col(FORWARD_NUMBER) == parted[FORWARD_NUMBER]).height


def _grid(parted: dict[str, Any], suffix: str) -> str:
    return "x".join(str(parted[f"{name}{suffix}"]) for name in _GRID)


def _entered_rows(
    contexts: Sequence[JoinedEvents], launches: ForwardLaunches, wanted: tuple[int, int]
) -> tuple[set[int], set[int]]:
    """Return the rows of which a block entered, of two launches; empty where rows are not known."""
    both = launches.launches.filter(pl.col(LAUNCH_INDEX).is_in(wanted))
    axes = with_row_axis(both, launches.journal).select(LAUNCH_INDEX, ROW_AXIS)
    rows: dict[int, set[int]] = {index: set() for index in wanted}
    for part in slices(contexts, "block_idx_x", "block_idx_y"):
        entered = (
            part.filter(pl.col(LAUNCH_INDEX).is_in(wanted), "matched")
            .join(axes, on=LAUNCH_INDEX, maintain_order="left")
            .select(LAUNCH_INDEX, row_of_block())
            .drop_nulls()
            .unique()
        )
        for index, row in entered.iter_rows():
            rows[index].add(row)
    return rows[wanted[0]], rows[wanted[1]]
