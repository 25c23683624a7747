"""What became of a KV slot after a token was written there, and where a cached token came from."""

from typing import Any

import polars as pl

from kvtrace_cli.analysis.steps import STEP_KEY, StepTables
from kvtrace_cli.dumps.schema import Recording

_BLOCK = ("process_id", "kv_group", "kv_block_id")


class SlotHistory:
    """Who came after a token in its slot."""

    def __init__(self, tables: StepTables, stores: pl.DataFrame | None) -> None:
        """Know the steps and what was stored.

        Args:
            tables: from `step_tables`.
            stores: those into the slots that will be asked for, in any order; None: not recorded.
        """
        self._tables = tables
        self._stores = stores

    def end(self, token: dict[str, Any]) -> str:
        """Say what became of the slot of a token: process_id, step_stamp, kv_group, expected_slot.

        Without stores, a later row that was assigned the slot is all that can be said.
        """
        if token["expected_slot"] is None:
            return "the request's table had no KV block for it"
        later = self._next(token)
        given_back = self._given_back(token)
        if later is None and given_back is None:
            return "still held at the end"
        if later is None:
            return f"given back before step {given_back}; not written again"
        is_over = given_back is not None and given_back <= later["step_stamp"]
        before = f"given back before step {given_back}; " if is_over else ""
        step, who = later["step_stamp"], _who(later, token)
        if self._stores is None:
            return f"{before}assigned again in step {step} to {who}; stores were not recorded"
        return f"{before}overwritten in step {step} by {who}"

    def _next(self, token: dict[str, Any]) -> dict[str, Any] | None:
        """Return the next row that stored into the slot; without stores, that was assigned it."""
        rows, slot = (
            (self._tables.slots, "expected_slot")
            if self._stores is None
            else (self._stores, "written_slot")
        )
        later = (
            rows.filter(
                pl.col("process_id") == token["process_id"],
                pl.col("kv_group") == token["kv_group"],
                pl.col(slot) == token["expected_slot"],
                pl.col("step_stamp") > token["step_stamp"],
            )
            .sort("step_stamp", maintain_order=True)
            .head(1)
            .select(*STEP_KEY, "row")
            .join(self._tables.rows, on=[*STEP_KEY, "row"], how="left")
        )
        return later.row(0, named=True) if later.height else None

    def _given_back(self, token: dict[str, Any]) -> int | None:
        """Return the first step without the KV block in the request's table; None: it kept it."""
        step = token["step_stamp"]
        held = self._tables.holdings.filter(
            *(pl.col(name) == token[name] for name in (*_BLOCK, "request_id")),
            pl.col("first_step") <= step,
            pl.col("end_step").is_null() | (pl.col("end_step") > step),
        )
        end: int | None = held.row(0, named=True)["end_step"]
        return end


def cached_note(
    recording: Recording, tables: StepTables, request_id: str, position: int
) -> str | None:
    """Say where a token from the prefix cache came from; None if it is not from there."""
    for process in recording.steps:
        for group, size in enumerate((process.started or {}).get("block_sizes") or ()):
            found = tables.holdings.filter(
                pl.col("process_id") == process.process_id,
                pl.col("kv_group") == group,
                pl.col("request_id") == request_id,
                pl.col("block_index") == position // size,
                pl.col("writes_from") > position,
            ).sort("first_step")
            if found.height:
                return _origin(tables, found.row(0, named=True), position % size, size)
    return None


def _origin(tables: StepTables, holding: dict[str, Any], offset: int, block_size: int) -> str:
    slot = holding["kv_block_id"] * block_size + offset
    step = holding["first_step"]
    assigned = tables.slots.filter(
        pl.col("process_id") == holding["process_id"],
        pl.col("kv_group") == holding["kv_group"],
        pl.col("expected_slot") == slot,
        pl.col("step_stamp") <= step,
    ).join(tables.rows, on=[*STEP_KEY, "row"], maintain_order="left")
    text = f"Found in the prefix cache in step {step}, in slot {slot}"
    if assigned.is_empty():
        return f"{text}, which no recorded step was assigned before."
    last = assigned.sort("step_stamp").row(-1, named=True)
    return (
        f"{text}, which step {last['step_stamp']} computed as token {last['position']} of "
        f"request {last['request_id']}."
    )


def _who(row: dict[str, Any], token: dict[str, Any]) -> str:
    if row["request_id"] is None:
        return f"row {row['row']}, which is no request's"
    if (row["request_id"], row["position"]) == (token["request_id"], token["position"]):
        return "the same token"
    return f"token {row['position']} of request {row['request_id']}"
