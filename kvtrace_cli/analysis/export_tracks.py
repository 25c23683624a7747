"""A reconciled recording as tracks of slices for a timeline, all on the GPU globaltimer.

A slice runs from the first block entry of what it stands for to the last one. What has no matched
entry has no time, so no slice. Nothing of the host's clock is here: no two clocks share an axis.
"""

from dataclasses import dataclass
from typing import Final

import polars as pl

from kvtrace_cli.analysis.export_frames import ExportSource
from kvtrace_cli.analysis.export_lanes import with_lanes
from kvtrace_cli.analysis.export_slice_schema import LEVELS, SLICE_SCHEMA
from kvtrace_cli.analysis.export_slices import all_slices, by_weight
from kvtrace_cli.dumps.schema import PROCESS_ID

TRACK_KEY: Final = (PROCESS_ID, "track_order", "track_name")
# A replay is shown with all of its nodes or with none; so is a request with its steps.
_WHOLE_LEVELS: Final = ("steps of requests", "nodes")


@dataclass(frozen=True)
class LeftOut:
    """Slices of one level that would have gone beyond the limit."""

    level: str
    slices: int
    total: int


@dataclass(frozen=True)
class Timeline:
    """Tracks and their slices.

    `slices` has one row per slice, in the order to draw them: process_id, track_order, track_name;
    `lane` (slices of one lane never overlap, but that a child lies inside its parent), `depth` (0,
    or 1: inside the slice of depth 0 before it), begin_ns, end_ns, name, and what is known of it,
    null where that says nothing. What has no slice: `timeless` launches, which no matched block
    entry gives a time, and `unmatched` block entries, which are no launch's.
    """

    slices: pl.DataFrame
    left_out: tuple[LeftOut, ...]
    timeless: int
    unmatched: int


def timeline(source: ExportSource, max_slices: int) -> Timeline:
    """Turn a recording into at most `max_slices` slices.

    What is kept, if there are more: level by level in the order of LEVELS, and of each level what
    was launched during measured requests before the rest, the earlier before the later.

    Units: ns of %globaltimer at block entry.
    """
    whole_life = source.result.whole_life
    found = all_slices(source, max_slices)
    kept = _within(found.frame, max_slices)
    counts = dict(kept.group_by("level").agg(pl.len()).iter_rows())
    left_out = tuple(
        LeftOut(level, total - counts.get(number, 0), total)
        for number, level in enumerate(LEVELS)
        if (total := found.totals.get(number, 0)) > counts.get(number, 0)
    )
    return Timeline(
        slices=with_lanes(kept, TRACK_KEY).select(*SLICE_SCHEMA, "lane"),
        left_out=left_out,
        timeless=source.result.launches["first_globaltimer_ns"].null_count(),
        unmatched=whole_life.graph_nodes.unexpected_blocks
        + whole_life.plain_launches.unexpected_blocks,
    )


def _within(found: pl.DataFrame, max_slices: int) -> pl.DataFrame:
    """Return the first `max_slices` by level and importance; children all or none of a parent."""
    if found.height <= max_slices:
        return found
    # Sorting is stable. What belongs to one parent stays together, as by_weight has its root.
    ordered = by_weight(found).sort("level", maintain_order=True).with_row_index("place")
    kept = ordered.filter(pl.col("place") < max_slices)
    last = kept.tail(1)
    if LEVELS[last["level"].item()] not in _WHOLE_LEVELS:
        return kept
    key = ("level", *TRACK_KEY, "root")
    cut = ordered.filter(pl.col("place") >= max_slices).head(1).join(last, on=key, how="semi")
    return kept.join(cut, on=key, how="anti", maintain_order="left")
