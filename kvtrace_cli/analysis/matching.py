"""Which launch each block event belongs to: the join that everything else rests on."""

import polars as pl

from kvtrace_cli.dumps.schema import LAUNCH_INDEX


def match_blocks(events: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Give each block event of one context to a launch and say whether that launch asks for it.

    Events and launches meet on the grid id and the launch stamp. Where several launches share
    both (no stamps, or stamps that came round), the k-th group of a launch's expected blocks, in
    sequence order, belongs to the k-th launch in publish order.

    Args:
        events: one row per event of the context, in sequence order.
        launches: the context's launches with `is_patched`, from `launch_frame`.

    Returns:
        `events` with `launch_index` (null: no launch has room for it) and `matched`: true for
        exactly one event for each block index inside the launch's grid, so a repeated or
        out-of-range block index is not matched.

    Units: block indices. Assumes: replays of one graph exec never overlap; with counting, that no
    event is missing. Source: dump ABI v1, kvtrace_block_event and kvtrace_launch_record.
    """
    ordered = _by_key(launches)
    columns = [LAUNCH_INDEX, "blocks_before", "grid_dim_x", "grid_dim_y", "grid_dim_z"]
    joined = events.with_columns(_launch_rows(events, ordered)).join(
        ordered.select("row", *columns), on="row", how="left", maintain_order="left"
    )
    x, y, z = (pl.col(f"block_idx_{axis}").cast(pl.UInt64) for axis in "xyz")
    dim_x, dim_y, dim_z = (pl.col(f"grid_dim_{axis}") for axis in "xyz")
    in_grid = ((x < dim_x) & (y < dim_y) & (z < dim_z)).fill_null(value=False)
    # Numbers the blocks of all launches, so one column tells whether a block entered before.
    block_number = pl.col("blocks_before") + x + dim_x * (y + dim_y * z)
    return joined.with_columns(
        (in_grid & pl.when(in_grid).then(block_number).is_first_distinct()).alias("matched")
    ).drop("row", *columns[1:])


def match_by_order(events: pl.DataFrame, launches: pl.DataFrame) -> pl.Series:
    """Join by order of atomics: the n-th event belongs to the n-th expected block.

    Args:
        events: one row per event of one context, in sequence order.
        launches: the context's launches with `is_patched`, in publish order.

    Returns:
        `launch_index` of each event, null beyond the last expected block.

    Assumes: one stream and no missing event; otherwise it gives wrong launches.
    """
    starts = _blocks_before(launches["expected_blocks"])
    position = pl.int_range(events.height, dtype=pl.UInt64, eager=True)
    inside = position < launches["expected_blocks"].sum()
    row = pl.when(inside).then(_rows_at(starts, position))
    matches: pl.Series = pl.select(pl.lit(launches[LAUNCH_INDEX]).gather(row)).to_series()
    return matches


def _by_key(launches: pl.DataFrame) -> pl.DataFrame:
    """Sort launches so that those with one join key follow each other in publish order."""
    ordered = launches.sort("grid_id", "join_stamp", LAUNCH_INDEX).with_row_index("row")
    before = _blocks_before(ordered["expected_blocks"]).alias("blocks_before")
    return ordered.with_columns(before)


def _launch_rows(events: pl.DataFrame, ordered: pl.DataFrame) -> pl.Series:
    """Return for each event the row of its launch in `ordered`, null if there is none."""
    keys = ordered.group_by("grid_id", "join_stamp").agg(
        pl.col("row").first().alias("first_row"),
        pl.len().alias("launches"),
        pl.col("blocks_before").first().alias("first_block"),
        pl.col("expected_blocks").sum().alias("blocks"),
    )
    found = events.select("grid_id", "launch_stamp").join(
        keys,
        left_on=["grid_id", "launch_stamp"],
        right_on=["grid_id", "join_stamp"],
        how="left",
        maintain_order="left",
        validate="m:1",
    )
    if (keys["launches"] == 1).all():
        return found["first_row"].alias("row")
    occurrence = pl.int_range(pl.len(), dtype=pl.UInt64).over("first_row")
    found = found.with_columns(
        pl.when(occurrence < pl.col("blocks")).then(pl.col("first_block") + occurrence).alias("at")
    )
    counted = _rows_at(ordered["blocks_before"], found["at"])
    return found.select(
        pl.when(pl.col("launches") == 1)
        .then("first_row")
        .when(pl.col("at").is_not_null())
        .then(counted)
        .alias("row")
    )["row"]


def _blocks_before(expected_blocks: pl.Series) -> pl.Series:
    before: pl.Series = expected_blocks.cum_sum() - expected_blocks
    return before


def _rows_at(blocks_before: pl.Series, position: pl.Series) -> pl.Series:
    """Return the row whose range of blocks holds each position."""
    found = blocks_before.search_sorted(position, side="right").cast(pl.Int64) - 1
    rows: pl.Series = found.clip(lower_bound=0).cast(pl.UInt32).alias("row")
    return rows
