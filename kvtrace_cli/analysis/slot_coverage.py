"""Where each request's stores went, told by position in its own table instead of KV block ids."""

from typing import Any, Final

import polars as pl

from kvtrace_cli.analysis.model import Attribution
from kvtrace_cli.analysis.run_facts import SlotCoverage
from kvtrace_cli.analysis.steps import KV_GROUP, StepTables
from kvtrace_cli.analysis.wrong_cells import CELL, block_sizes
from kvtrace_cli.dumps.schema import LAYER_INDEX, PROCESS_ID, REQUEST_INDEX, Recording

_NEVER: Final = 2**32 - 1
# One latent that stands for both counts for both.
_WRITES: Final = pl.when(pl.col("part") == "KV").then(2).otherwise(1)


def slot_coverage(attribution: Attribution) -> dict[int, SlotCoverage]:
    """Say of each of our requests whether its rows stored into their own slots.

    Args:
        attribution: counts what was stored at all, and has the cells that were stored elsewhere.

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
    wrong = attribution.wrong_cells
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
        .sort(CELL)
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
        .join(block_sizes(recording), on=[PROCESS_ID, KV_GROUP])
        .filter(pl.col("writes_from") < end)
        .sort("first_step")
    )
    # A holding without an end lasts.
    ended = pl.col("end_step").fill_null(_NEVER)
    ended_before = ended.cum_max().shift(1).over(block)
    overlapping = writable.filter(pl.col("first_step") < ended_before)
    return overlapping.select(block).unique().height


def _in_words(cell: dict[str, Any]) -> str:
    """Say where a store went; out of the KV block only that it did, as block ids differ."""
    away = cell["slots_away"]
    where = f"{away:+d} slots in its own KV block" if away else "into another KV block"
    return f"position {cell['position']}, layer {cell[LAYER_INDEX]}, {cell['part']}: {where}"
