"""Where each request's stores went, told by position in its own table instead of KV block ids."""

from typing import Any, Final

import polars as pl

from kvtrace_cli.analysis.attribution import our_request_index, sent_request_ids
from kvtrace_cli.analysis.model import Attribution, Reconciliation
from kvtrace_cli.analysis.run_facts import SlotCoverage
from kvtrace_cli.analysis.steps import KV_GROUP, STEP_KEY, STEP_KIND, StepTables
from kvtrace_cli.analysis.stores import located_slices
from kvtrace_cli.dumps.schema import LAYER_INDEX, PROCESS_ID, REQUEST_INDEX, Recording

_CELL: Final = (REQUEST_INDEX, "position", PROCESS_ID, LAYER_INDEX, "part")
_NEVER: Final = 2**32 - 1
_PARTS: Final = ["K", "V", "KV"]
_WRONG_SCHEMA: Final = {
    REQUEST_INDEX: pl.UInt32,
    "position": pl.UInt32,
    PROCESS_ID: pl.UInt32,
    LAYER_INDEX: pl.UInt32,
    "part": pl.String,
    "is_judged": pl.Boolean,
    "slots_away": pl.Int64,
}
# One latent that stands for both counts for both.
_WRITES: Final = pl.when(pl.col("part") == "KV").then(2).otherwise(1)


def slot_coverage(
    result: Reconciliation, attribution: Attribution, recording: Recording, tables: StepTables
) -> dict[int, SlotCoverage]:
    """Say of each of our requests whether its rows stored into their own slots.

    Args:
        result: of `recording`.
        attribution: of `result`; counts what was stored at all.
        recording: its layouts tell where an address is.
        tables: its `step_tables`; empty without recorded steps.

    Returns:
        By request index; nothing without stores, steps or layouts. Rows of other requests, padding
        and dummy rows have no place of their own and are counted elsewhere (Attribution).
    """
    written = {
        one.request_index: (one.k_written, one.v_written)
        for one in attribution.requests
        if one.request_index is not None
    }
    known = {
        index: keys + values
        for index, (keys, values) in written.items()
        if keys is not None and values is not None
    }
    if not known:
        return {}
    wrong = _wrong_cells(result, recording, tables)
    counts = {
        index: (unjudged, elsewhere)
        for index, unjudged, elsewhere in wrong.group_by(REQUEST_INDEX)
        .agg(
            _WRITES.filter(~pl.col("is_judged")).sum().alias("unjudged"),
            _WRITES.filter("is_judged").sum().alias("elsewhere"),
        )
        .iter_rows()
    }
    firsts = {
        row[REQUEST_INDEX]: row
        for row in wrong.filter("is_judged")
        .sort(_CELL)
        .unique(REQUEST_INDEX, keep="first")
        .iter_rows(named=True)
    }
    found = {}
    for index, cells in known.items():
        unjudged, elsewhere = counts.get(index, (0, 0))
        first = firsts.get(index)
        found[index] = SlotCoverage(
            in_place=cells - unjudged - elsewhere,
            elsewhere=elsewhere,
            unjudged=unjudged,
            first_elsewhere=_in_words(first) if first else None,
        )
    return found


def blocks_with_two_writers(recording: Recording, tables: StepTables) -> int | None:
    """Count the KV blocks that two requests held at the same time and both could write.

    Args:
        recording: its layouts say which groups keep a request's KV blocks until it ends; others,
            whose blocks behind a window are given away early, are left out.
        tables: its `step_tables`.

    Returns:
        The count; None without steps or layouts. Blocks that a request found in the prefix cache
        are shared on purpose: it does not write them.
    """
    kept = [
        (process.process_id, number)
        for process in recording.steps
        for number, group in enumerate(process.layout.groups if process.layout else ())
        if not (group.sliding_window or group.attention_chunk_size or group.unknown_window)
    ]
    groups = pl.DataFrame(kept, schema={PROCESS_ID: pl.UInt32, KV_GROUP: pl.UInt16}, orient="row")
    if not kept or tables.steps.is_empty():
        return None
    block = [PROCESS_ID, KV_GROUP, "kv_block_id"]
    end = pl.col("block_index").cast(pl.Int64).add(1) * pl.col("block_size")
    writable = (
        tables.holdings.join(groups, on=[PROCESS_ID, KV_GROUP], how="semi")
        .join(_block_sizes(recording), on=[PROCESS_ID, KV_GROUP])
        .filter(pl.col("writes_from") < end)
        .sort("first_step")
    )
    # A holding without an end lasts.
    ended = pl.col("end_step").fill_null(_NEVER)
    ended_before = ended.cum_max().shift(1).over(block)
    overlapping = writable.filter(pl.col("first_step") < ended_before)
    return overlapping.select(block).unique().height


def _block_sizes(recording: Recording) -> pl.DataFrame:
    return pl.DataFrame(
        [
            (process.process_id, group, size)
            for process in recording.steps
            for group, size in enumerate((process.started or {}).get("block_sizes") or ())
        ],
        schema={PROCESS_ID: pl.UInt32, KV_GROUP: pl.UInt16, "block_size": pl.Int64},
        orient="row",
    )


def _in_words(cell: dict[str, Any]) -> str:
    """Say where a store went; out of the KV block only that it did, as block ids differ."""
    away = cell["slots_away"]
    where = f"{away:+d} slots in its own KV block" if away else "into another KV block"
    return f"position {cell['position']}, layer {cell[LAYER_INDEX]}, {cell['part']}: {where}"


def _wrong_cells(result: Reconciliation, recording: Recording, tables: StepTables) -> pl.DataFrame:
    """Return the cells with a store that is not in its row's own slot, each once."""
    sent = sent_request_ids(recording.requests)
    ids = tables.rows["request_id"].unique()
    ours = pl.DataFrame(
        [(one, our_request_index(one, sent)) for one in ids],
        schema={"request_id": pl.String, REQUEST_INDEX: pl.UInt32},
        orient="row",
    ).drop_nulls()
    rows = (
        tables.rows.join(ours, on="request_id", validate="m:1")
        .join(tables.slots, on=[*STEP_KEY, "row"])
        .select(*STEP_KEY, "row", KV_GROUP, REQUEST_INDEX, "position", "expected_slot")
    )
    rows = rows.join(_block_sizes(recording), on=[PROCESS_ID, KV_GROUP], how="left")
    key = [*STEP_KEY, "row", KV_GROUP]
    parts = [pl.DataFrame(schema=_WRONG_SCHEMA)]
    for stores in located_slices(result, recording):
        of_rows = stores.filter(
            "in_kv_tensor", pl.col("part").is_in(_PARTS), pl.col(STEP_KIND) == "forward"
        ).join(rows, on=key)
        wrong = of_rows.filter(
            pl.col("expected_slot").is_null() | (pl.col("written_slot") != pl.col("expected_slot"))
        )
        in_block = pl.col("written_slot") // pl.col("block_size") == pl.col(
            "expected_slot"
        ) // pl.col("block_size")
        parts.append(
            wrong.with_columns(
                pl.col("expected_slot").is_not_null().alias("is_judged"),
                pl.when(in_block)
                .then(pl.col("written_slot") - pl.col("expected_slot"))
                .otherwise(0)
                .alias("slots_away"),
            )
            .select(*_WRONG_SCHEMA)
            .unique(_CELL, maintain_order=True)
        )
    return pl.concat(parts).unique(_CELL, keep="first", maintain_order=True)
