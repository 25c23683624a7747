"""Which block entries and stores are of rows that a request owns, and of which others.

A launch of which every block entered needs no look at its events: its grid says which rows it had.
So only launches that lack entries are looked at block by block, and memory stays small.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from kvtrace_cli.analysis.joined import JoinedEvents, slices
from kvtrace_cli.analysis.launches import IS_MEASURED
from kvtrace_cli.analysis.model import RowCounts
from kvtrace_cli.analysis.row_mapping import ROW_AXIS, row_of_block
from kvtrace_cli.analysis.steps import STEP_KEY, STEP_KIND, STEP_STAMP, StepTables
from kvtrace_cli.dumps.schema import CONTEXT_INDEX, LAUNCH_INDEX, PROCESS_ID

ROW_ID: Final = "row_id"
# What counting looks at, of the many columns of launches.
LAUNCH_COLUMNS: Final = (
    LAUNCH_INDEX,
    PROCESS_ID,
    CONTEXT_INDEX,
    STEP_STAMP,
    STEP_KIND,
    IS_MEASURED,
    "kernel_slot",
    "grid_dim_x",
    "grid_dim_y",
    "is_patched",
    "expected_blocks",
    "matched_blocks",
)
IS_ENGINE_OWN: Final = "is_engine_own"
_ENGINE_REQUESTS: Final = r"^_(?:v2_mixed_)?warmup_"
_FORWARD: Final = "forward"
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class Entries:
    """Block entries by the owner of their row.

    `by_row`: `row_id`, and `launches`, how many launches each owned row entered whole.
    """

    whole_life: RowCounts
    measured: RowCounts
    by_row: pl.DataFrame


def is_engine_own() -> pl.Expr:
    """Say of each `request_id` whether the engine made the request itself, to warm up."""
    return pl.col("request_id").str.contains(_ENGINE_REQUESTS).alias(IS_ENGINE_OWN)


def owned_rows(tables: StepTables) -> pl.DataFrame:
    """Return the `rows` of forward steps with `row_id` (their number) and `is_engine_own`."""
    forward = tables.steps.filter(pl.col(STEP_KIND) == _FORWARD).select(STEP_KEY)
    return (
        tables.rows.join(forward, on=STEP_KEY, how="semi", maintain_order="left")
        .with_columns(is_engine_own())
        .with_row_index(ROW_ID)
    )


def count_entries(
    launches: pl.DataFrame, contexts: Sequence[JoinedEvents], rows: pl.DataFrame
) -> Entries:
    """Count block entries by the owner of their row.

    Args:
        launches: `LAUNCH_COLUMNS` and `row_axis`, from `with_row_axis`.
        contexts: the joined events.
        rows: from `owned_rows`.

    Returns:
        Entries; those that match no block of a launch are `unknown`, of the whole life only.
    """
    launches = launches.filter("is_patched").with_columns(_owner(), _grid_rows())
    of_rows = pl.concat([_of_whole_launches(launches, rows), *_of_others(launches, contexts, rows)])
    entries = sum(context.counts.entries for context in contexts)
    strange = entries - int(launches["matched_blocks"].sum())
    whole_life = _row_counts(launches, of_rows)
    return Entries(
        whole_life=replace(whole_life, unknown=whole_life.unknown + strange),
        measured=_row_counts(launches.filter(IS_MEASURED), of_rows.filter(IS_MEASURED)),
        by_row=of_rows.group_by(ROW_ID).agg(pl.col("launches").sum()),
    )


def count_stores(stores: pl.DataFrame) -> RowCounts:
    """Count stores by the owner of their row.

    Args:
        stores: with `step_kind`, `row`, and `row_id` and `is_engine_own` of owned rows.
    """
    kind = stores.with_columns(_owner(pl.col("row").is_not_null()))["owner"]
    is_owned = stores[ROW_ID].is_not_null()
    return RowCounts(
        owned=int(is_owned.sum()),
        engine_own=int(stores[IS_ENGINE_OWN].sum()),
        padding=int(((kind == _FORWARD) & ~is_owned).sum()),
        dummy=int((kind == "dummy").sum()),
        draft=int((kind == "draft").sum()),
        unknown=int((kind == _UNKNOWN).sum()),
    )


def _owner(has_row: pl.Expr | None = None) -> pl.Expr:
    """Return the step's kind where it says whose the rows are."""
    has_row = pl.col(ROW_AXIS).is_not_null() if has_row is None else has_row
    kind = pl.col(STEP_KIND)
    return pl.when((kind != _FORWARD) | has_row).then(kind).fill_null(_UNKNOWN).alias("owner")


def _grid_rows() -> pl.Expr:
    return (
        pl.when(pl.col(ROW_AXIS) == "x")
        .then(pl.col("grid_dim_x").cast(pl.UInt32))
        .when(pl.col(ROW_AXIS) == "y")
        .then(pl.col("grid_dim_y").cast(pl.UInt32))
        .alias("grid_rows")
    )


def _of_whole_launches(launches: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return per owned row and launch geometry the entries of launches that lack none."""
    return (
        launches.filter(
            pl.col("owner") == _FORWARD,
            pl.col("matched_blocks") == pl.col("expected_blocks"),
            pl.col("grid_rows") > 0,
        )
        .group_by(*STEP_KEY, IS_MEASURED, "grid_rows")
        .agg(
            (pl.col("expected_blocks") // pl.col("grid_rows")).sum().alias("entries"),
            pl.len().alias("launches"),
        )
        .join(rows, on=STEP_KEY)
        .filter(pl.col("row") < pl.col("grid_rows"))
        .select(ROW_ID, IS_ENGINE_OWN, IS_MEASURED, "entries", "launches")
    )


def _of_others(
    launches: pl.DataFrame, contexts: Sequence[JoinedEvents], rows: pl.DataFrame
) -> list[pl.DataFrame]:
    """Return the same of launches that lack entries, from their events; nothing without any."""
    lacking = launches.filter(
        pl.col("owner") == _FORWARD,
        pl.col("matched_blocks") < pl.col("expected_blocks"),
        pl.col("matched_blocks") > 0,
    ).select(LAUNCH_INDEX, *STEP_KEY, IS_MEASURED, ROW_AXIS, "expected_blocks", "grid_rows")
    if lacking.is_empty():
        return []
    entered = pl.concat(
        part.filter("matched")
        .select(LAUNCH_INDEX, "block_idx_x", "block_idx_y")
        .join(lacking.select(LAUNCH_INDEX, ROW_AXIS), on=LAUNCH_INDEX)
        .group_by(LAUNCH_INDEX, row_of_block())
        .agg(pl.len().alias("entries"))
        for part in slices(contexts, "block_idx_x", "block_idx_y")
    )
    blocks_of_row = pl.col("expected_blocks") // pl.col("grid_rows")
    return [
        entered.group_by(LAUNCH_INDEX, "row")
        .agg(pl.col("entries").sum().cast(pl.UInt64))
        .join(lacking, on=LAUNCH_INDEX, validate="m:1")
        .join(rows, on=[*STEP_KEY, "row"], validate="m:1")
        .select(
            ROW_ID,
            IS_ENGINE_OWN,
            IS_MEASURED,
            "entries",
            (pl.col("entries") == blocks_of_row).cast(pl.get_index_type()).alias("launches"),
        )
    ]


def _row_counts(launches: pl.DataFrame, of_rows: pl.DataFrame) -> RowCounts:
    by_owner: dict[str, int] = dict(
        launches.group_by("owner").agg(pl.col("matched_blocks").sum()).iter_rows()
    )
    owned = int(of_rows["entries"].sum())
    return RowCounts(
        owned=owned,
        engine_own=int(of_rows.filter(IS_ENGINE_OWN)["entries"].sum()),
        padding=by_owner.get(_FORWARD, 0) - owned,
        dummy=by_owner.get("dummy", 0),
        draft=by_owner.get("draft", 0),
        unknown=by_owner.get(_UNKNOWN, 0),
    )
