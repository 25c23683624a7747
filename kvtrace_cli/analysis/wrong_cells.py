"""Stores that are not in their row's own slot, by position, layer and part: each cell once."""

from typing import Final

import polars as pl

from kvtrace_cli.analysis.steps import KV_GROUP, STEP_KEY, STEP_KIND, StepTables
from kvtrace_cli.dumps.schema import LAYER_INDEX, PROCESS_ID, REQUEST_INDEX, Recording

CELL: Final = (REQUEST_INDEX, "position", PROCESS_ID, LAYER_INDEX, "part")
WRONG_CELLS_SCHEMA: Final = {
    REQUEST_INDEX: pl.UInt32,
    "position": pl.UInt32,
    PROCESS_ID: pl.UInt32,
    LAYER_INDEX: pl.UInt32,
    "part": pl.String,
    "is_judged": pl.Boolean,
    "slots_away": pl.Int64,
}
_PARTS: Final = ["K", "V", "KV"]
_ROW_KEY: Final = (*STEP_KEY, "row", KV_GROUP)


def block_sizes(recording: Recording) -> pl.DataFrame:
    """Return `process_id`, `kv_group` and the tokens of the scheduler's `block_size`."""
    return pl.DataFrame(
        [
            (process.process_id, group, size)
            for process in recording.steps
            for group, size in enumerate((process.started or {}).get("block_sizes") or ())
        ],
        schema={PROCESS_ID: pl.UInt32, KV_GROUP: pl.UInt16, "block_size": pl.Int64},
        orient="row",
    )


class WrongCells:
    """Collects them from located stores, a slice at a time."""

    def __init__(self, recording: Recording, tables: StepTables, ours: pl.DataFrame) -> None:
        """Take the rows of our requests.

        Args:
            recording: says how large KV blocks are.
            tables: its `step_tables`.
            ours: `request_id` of the engine and `request_index` of those that kvtrace sent.
        """
        self._rows = (
            tables.rows.join(ours, on="request_id", validate="m:1")
            .join(tables.slots, on=[*STEP_KEY, "row"])
            .select(*_ROW_KEY, REQUEST_INDEX, "position", "expected_slot")
            .join(block_sizes(recording), on=[PROCESS_ID, KV_GROUP], how="left")
        )
        self._parts = [pl.DataFrame(schema=WRONG_CELLS_SCHEMA)]

    def add(self, stores: pl.DataFrame) -> None:
        """Add one slice of `located_stores`."""
        in_block = pl.col("written_slot") // pl.col("block_size") == pl.col(
            "expected_slot"
        ) // pl.col("block_size")
        wrong = (
            stores.lazy()
            .filter("in_kv_tensor", pl.col("part").is_in(_PARTS), pl.col(STEP_KIND) == "forward")
            .select(*_ROW_KEY, LAYER_INDEX, "part", "written_slot")
            .join(self._rows.lazy(), on=_ROW_KEY, maintain_order="left")
            .filter(
                pl.col("expected_slot").is_null()
                | (pl.col("written_slot") != pl.col("expected_slot"))
            )
            .with_columns(
                pl.col("expected_slot").is_not_null().alias("is_judged"),
                pl.when(in_block)
                .then(pl.col("written_slot") - pl.col("expected_slot"))
                .otherwise(0)
                .alias("slots_away"),
            )
            .select(*WRONG_CELLS_SCHEMA)
            .unique(CELL, keep="first", maintain_order=True)
            .collect()
        )
        if wrong.height:
            self._parts.append(wrong)

    def frame(self) -> pl.DataFrame:
        """Return what was collected, columns of WRONG_CELLS_SCHEMA.

        Returns:
            Of each cell the first store: `is_judged` (false: its request's table has no KV block
            there) and `slots_away`, from its own slot, in its own KV block; 0: in another one.
        """
        return pl.concat(self._parts).unique(CELL, keep="first", maintain_order=True)
