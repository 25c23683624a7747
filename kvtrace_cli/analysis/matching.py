"""Which launch each event belongs to: the join that everything else rests on."""

from itertools import accumulate

import polars as pl

from kvtrace_cli.analysis.joined import SLICE_EVENTS, entries_of, has_stores, is_store
from kvtrace_cli.analysis.store_join import join_stores
from kvtrace_cli.dumps.schema import LAUNCH_INDEX

_MAX_UINT32 = (1 << 32) - 1


def match_events(events: pl.DataFrame, launches: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Give each event of one context to a launch and say whether that launch asks for it.

    Block entries and launches meet on the grid id and the launch stamp. Where several launches
    share both (no stamps, or stamps that came round), the k-th group of a launch's expected blocks,
    in sequence order, belongs to the k-th launch in publish order. Stores go to the launch of their
    block's entry: see `join_stores`.

    Args:
        events: one row per event of the context, in sequence order.
        launches: the context's launches with `is_patched`, from `launch_frame`.

    Returns:
        Of each event its `launch_index` (null: no launch has room for it), and `matched`: true for
        exactly one entry for each block index inside the launch's grid, so a repeated or
        out-of-range block index is not matched; and for each store of a block that entered.

    Units: block indices. Assumes: replays of one graph exec never overlap; with counting, that no
    event is missing. Source: dump ABI v1, kvtrace_block_event and kvtrace_launch_record.
    """
    matcher = _Matcher(launches)
    parts = [
        matcher.join(events.head(0)),
        *(matcher.join(entries_of(part)) for part in events.iter_slices(SLICE_EVENTS)),
    ]
    launch_index = pl.concat(part[LAUNCH_INDEX] for part in parts)
    matched = _first_entries(parts)
    if not has_stores(events):
        return launch_index, matched
    joined = join_stores(events, launch_index, pl.concat(part["block_number"] for part in parts))
    return _put_together(events, (launch_index, matched), joined)


def _put_together(
    events: pl.DataFrame,
    of_entries: tuple[pl.Series, pl.Series],
    of_stores: tuple[pl.Series, pl.Series],
) -> tuple[pl.Series, pl.Series]:
    """Return what is known of entries and of stores in the order of all events."""
    entries_before = stores_before = 0
    parts = []
    for part in events.iter_slices(SLICE_EVENTS):
        stores = part.select(is_store()).to_series()
        count = int(stores.sum())
        order = pl.concat([(~stores).arg_true(), stores.arg_true()]).arg_sort()
        known = [
            pl.concat(
                [
                    entries.slice(entries_before, part.height - count),
                    others.slice(stores_before, count),
                ]
            ).gather(order)
            for entries, others in zip(of_entries, of_stores, strict=True)
        ]
        parts.append(known)
        entries_before += part.height - count
        stores_before += count
    launch_index, matched = (pl.concat(column) for column in zip(*parts, strict=True))
    return launch_index, matched


def count_same_by_order(launch_index: pl.Series, launches: pl.DataFrame) -> int:
    """Count the block entries that the join by order of atomics gives to the same launch.

    By order, the n-th entry belongs to the n-th expected block.

    Args:
        launch_index: of each block entry of one context, in sequence order.
        launches: the context's launches with `is_patched`, in publish order.

    Assumes: one stream and no missing event; otherwise it gives wrong launches.
    """
    starts = _blocks_before(launches["expected_blocks"])
    total = int(launches["expected_blocks"].sum())
    same = 0
    for first in range(0, min(len(launch_index), total), SLICE_EVENTS):
        end = min(first + SLICE_EVENTS, len(launch_index), total)
        position = pl.int_range(first, end, dtype=pl.UInt64, eager=True)
        by_order = launches[LAUNCH_INDEX].gather(_rows_at(starts, position))
        same += int((launch_index.slice(first, end - first) == by_order).sum())
    return same


def _first_entries(parts: list[pl.DataFrame]) -> pl.Series:
    """Say of each event whether it is the first with its `block_number`; false without one.

    A block can come again only in a slice that its launch reaches into: few launches reach into
    more than one, so only their blocks are looked at across slices.
    """
    number = pl.col("block_number")
    is_first = pl.concat(
        part.select(number.is_not_null() & number.is_first_distinct()).to_series() for part in parts
    )
    seen = pl.concat(part[LAUNCH_INDEX].unique() for part in parts)
    across = seen.filter(seen.is_duplicated()).unique()
    again = pl.concat(
        part.with_row_index("position", offset=offset)
        .filter(pl.col(LAUNCH_INDEX).is_in(across.implode()), number.is_not_null())
        .select("position", "block_number")
        for part, offset in zip(parts, _offsets(parts), strict=True)
    ).filter(~number.is_first_distinct())
    return is_first.scatter(again["position"], False)


def _offsets(parts: list[pl.DataFrame]) -> list[int]:
    ends = list(accumulate(part.height for part in parts))
    return [0, *ends[:-1]]


class _Matcher:
    """Joins the events of one context slice by slice, in sequence order."""

    def __init__(self, launches: pl.DataFrame) -> None:
        ordered = _by_key(launches)
        columns = [LAUNCH_INDEX, "blocks_before", "grid_dim_x", "grid_dim_y", "grid_dim_z"]
        self._ordered = ordered.select(columns)
        self._keys = (
            ordered.group_by("grid_id", "join_stamp")
            .agg(
                pl.col("row").first().alias("first_row"),
                pl.len().alias("launches"),
                pl.col("blocks_before").first().alias("first_block"),
                pl.col("expected_blocks").sum().alias("blocks"),
            )
            .with_row_index("key")
        )
        # Kept for every event until all slices are joined, so no wider than need be.
        blocks = int(ordered["expected_blocks"].sum())
        self._number_type = pl.UInt32 if blocks <= _MAX_UINT32 else pl.UInt64
        self._counts = not (self._keys["launches"] == 1).all()
        self._seen = pl.zeros(self._keys.height, pl.UInt64, eager=True)

    def join(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return of each event `launch_index` and, inside the launch's grid, `block_number`.

        The number counts the blocks of all launches, so it tells whether a block entered before.
        """
        rows = self._launch_rows(events)
        of_launch = [self._ordered[name].gather(rows) for name in self._ordered.columns]
        joined = events.select("block_idx_x", "block_idx_y", "block_idx_z").hstack(of_launch)
        x, y, z = (pl.col(f"block_idx_{axis}").cast(pl.UInt64) for axis in "xyz")
        dim_x, dim_y, dim_z = (pl.col(f"grid_dim_{axis}") for axis in "xyz")
        in_grid = ((x < dim_x) & (y < dim_y) & (z < dim_z)).fill_null(value=False)
        number = (pl.col("blocks_before") + x + dim_x * (y + dim_y * z)).cast(
            self._number_type, strict=False
        )
        return joined.select(LAUNCH_INDEX, pl.when(in_grid).then(number).alias("block_number"))

    def _launch_rows(self, events: pl.DataFrame) -> pl.Series:
        """Return for each event the row of its launch in `ordered`, null if there is none."""
        found = events.select("grid_id", "launch_stamp").join(
            self._keys,
            left_on=["grid_id", "launch_stamp"],
            right_on=["grid_id", "join_stamp"],
            how="left",
            maintain_order="left",
            validate="m:1",
        )
        if not self._counts:
            return found["first_row"].alias("row")
        occurrence = self._count(found["key"])
        found = found.with_columns(
            pl.when(occurrence < pl.col("blocks"))
            .then(pl.col("first_block") + occurrence)
            .alias("at")
        )
        counted = _rows_at(self._ordered["blocks_before"], found["at"])
        return found.select(
            pl.when(pl.col("launches") == 1)
            .then("first_row")
            .when(pl.col("at").is_not_null())
            .then(counted)
            .alias("row")
        )["row"]

    def _count(self, keys: pl.Series) -> pl.Series:
        """Return how many events of the same key came before each, in all slices so far."""
        number = pl.int_range(pl.len(), dtype=pl.UInt64)
        within = keys.to_frame().select(number.over(keys.name)).to_series()
        before = self._seen.gather(keys)
        counts = keys.drop_nulls().value_counts(name="count")
        at = counts[keys.name]
        self._seen = self._seen.scatter(at, self._seen.gather(at) + counts["count"])
        occurrence: pl.Series = within + before
        return occurrence


def _by_key(launches: pl.DataFrame) -> pl.DataFrame:
    """Sort launches so that those with one join key follow each other in publish order."""
    dims = ["grid_dim_x", "grid_dim_y", "grid_dim_z"]
    ordered = (
        launches.select("grid_id", "join_stamp", LAUNCH_INDEX, "expected_blocks", *dims)
        .sort("grid_id", "join_stamp", LAUNCH_INDEX)
        .with_row_index("row")
    )
    before = _blocks_before(ordered["expected_blocks"]).alias("blocks_before")
    return ordered.with_columns(before)


def _blocks_before(expected_blocks: pl.Series) -> pl.Series:
    before: pl.Series = expected_blocks.cum_sum() - expected_blocks
    return before


def _rows_at(blocks_before: pl.Series, position: pl.Series) -> pl.Series:
    """Return the row whose range of blocks holds each position."""
    found = blocks_before.search_sorted(position, side="right").cast(pl.Int64) - 1
    rows: pl.Series = found.clip(lower_bound=0).cast(pl.UInt32).alias("row")
    return rows
