"""Slices that overlap go to lanes of their own: in one lane they follow or contain each other."""

import heapq
from collections.abc import Iterable, Sequence

import polars as pl


def with_lanes(slices: pl.DataFrame, track_key: Sequence[str]) -> pl.DataFrame:
    """Give each slice a lane of its track and put all in the order to draw them.

    Slices of depth 0 take the first lanes, as few as they need. One of depth 1 stays in its
    parent's lane unless it begins before the one before it ended: then it goes, as a slice of depth
    0, to a lane behind those of its track's parents. No time is changed for it.

    Args:
        slices: with `root` (a parent and its children share it), `depth`, `begin_ns` <= `end_ns`,
            `root_launch`; a child lies within its parent.
        track_key: the columns that name a track.

    Returns:
        `slices` with `lane`, sorted by track, lane and time, each parent before its children.
    """
    parts = [_of_track(part) for part in slices.partition_by(track_key, maintain_order=False)]
    nothing = slices.clear().with_columns(pl.lit(0, pl.UInt32).alias("lane"))
    return pl.concat([nothing, *parts]).sort(track_key, maintain_order=True)


def _of_track(slices: pl.DataFrame) -> pl.DataFrame:
    in_time = ("begin_ns", "end_ns", "root_launch")
    roots = slices.filter(pl.col("depth") == 0).sort(in_time, maintain_order=True)
    lanes = pack(zip(roots["begin_ns"], roots["end_ns"], strict=True))
    roots = roots.with_columns(lanes).with_row_index("drawn")
    children = slices.filter(pl.col("depth") > 0).sort(in_time, maintain_order=True)
    fits = _fit(children)
    inside = children.filter(fits).join(
        roots.select("root", "lane", "drawn"), on="root", maintain_order="left", validate="m:1"
    )
    outside = children.filter(~fits)
    lanes = pack(zip(outside["begin_ns"], outside["end_ns"], strict=True))
    outside = outside.with_columns(
        pl.lit(0, slices.schema["depth"]).alias("depth"), lanes + (roots["lane"].max() or 0) + 1
    ).with_row_index("drawn")
    # Sorting is stable, so children stay in the order of time.
    return (
        pl.concat(
            [part.select(*slices.columns, "lane", "drawn") for part in (roots, inside, outside)]
        )
        .sort("lane", "drawn", "depth", maintain_order=True)
        .drop("drawn")
    )


def _fit(children: pl.DataFrame) -> pl.Series:
    """Say of children in the order of time which can follow each other inside their parents."""
    ended: dict[int, int] = {}
    fits = []
    for root, begin, end in children.select("root", "begin_ns", "end_ns").iter_rows():
        fit = begin >= ended.get(root, 0)
        if fit:
            ended[root] = end
        fits.append(fit)
    return pl.Series(fits, dtype=pl.Boolean)


def pack(spans: Iterable[tuple[int, int]]) -> pl.Series:
    """Return the lane of each (begin, end), sorted by begin: the lowest that is free by then."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    lanes = []
    for begin, end in spans:
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return pl.Series("lane", lanes, pl.UInt32)
