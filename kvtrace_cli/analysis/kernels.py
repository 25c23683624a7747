"""Which function each program counter stands for, and whether all witnesses agree."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from kvtrace_cli.analysis.joined import JoinedEvents
from kvtrace_cli.analysis.model import KernelEvidence
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.schema import CONTEXT_INDEX, PROCESS_ID

_CONTEXT_KEY = (PROCESS_ID, CONTEXT_INDEX)
_PC_SCHEMA = {
    PROCESS_ID: pl.UInt32,
    CONTEXT_INDEX: pl.UInt16,
    "pc": pl.UInt64,
    "kernel_slot": pl.UInt32,
    "event_slot": pl.UInt32,
    "blocks": pl.UInt64,
}
_BOUND_SCHEMA = {
    PROCESS_ID: pl.UInt32,
    CONTEXT_INDEX: pl.UInt16,
    "kernel_slot": pl.UInt32,
    "name": pl.String,
    "pc": pl.UInt64,
}


def matched_pcs(contexts: Sequence[JoinedEvents]) -> pl.DataFrame:
    """Return the matched entries by context, program counter, and the kernel slots of both sides.

    Returns:
        `process_id`, `context_index`, `pc`, `kernel_slot` (of the launch), `event_slot` (of the
        event, null if the event leaves it to its pc), `blocks`.
    """
    from_pc = abi.constant("KVTRACE_KERNEL_SLOT_FROM_PC")
    counted = (
        context.counts.pcs.select(
            pl.lit(context.process_id, pl.UInt32).alias(PROCESS_ID),
            pl.lit(context.context_index, pl.UInt16).alias(CONTEXT_INDEX),
            "pc",
            "kernel_slot",
            pl.when(pl.col("event_slot") != from_pc).then("event_slot"),
            "blocks",
        )
        for context in contexts
    )
    return pl.concat([pl.DataFrame(schema=_PC_SCHEMA), *counted])


def bound_functions(journal: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Return the target functions that the journals name: one row per `function_bound` line.

    `pc` is null where a line has none. Source: docs/format.md.
    """
    rows = [
        (
            line[PROCESS_ID],
            line.get(CONTEXT_INDEX, 0),
            line["kernel_slot"],
            line.get("name"),
            line.get("pc"),
        )
        for line in journal
        if line.get("event") == "function_bound" and line.get("kernel_slot") is not None
    ]
    return pl.DataFrame(rows, schema=_BOUND_SCHEMA, orient="row").unique(maintain_order=True)


def kernel_evidence(pcs: pl.DataFrame, bound: pl.DataFrame) -> tuple[KernelEvidence, ...]:
    """List the kernels with matched blocks, named from the journals where they name them."""
    key = (*_CONTEXT_KEY, "kernel_slot")
    names = bound.group_by(key).agg(pl.col("name").first())
    kernels = (
        pcs.group_by(key)
        .agg(pl.col("pc").n_unique().alias("entry_points"), pl.col("blocks").sum())
        .join(names, on=key, how="left", validate="1:1")
        .sort(key)
    )
    return tuple(
        KernelEvidence(
            process_id=row[PROCESS_ID],
            context_index=row[CONTEXT_INDEX],
            kernel_slot=row["kernel_slot"],
            name=row["name"],
            entry_points=row["entry_points"],
            matched_blocks=row["blocks"],
        )
        for row in kernels.iter_rows(named=True)
    )


def count_disagreements(pcs: pl.DataFrame, bound: pl.DataFrame) -> int:
    """Count program counters about which launches, events and journals disagree.

    Each (process, context, pc) must stand for one kernel slot, and a slot that an event names must
    be one whose pc, if the journal gives any, is the event's.
    """
    pair = (*_CONTEXT_KEY, "pc", "kernel_slot")
    said = pcs.filter(pl.col("event_slot").is_not_null()).with_columns(
        pl.col("event_slot").alias("kernel_slot")
    )
    known = bound.filter(pl.col("pc").is_not_null())
    claims = pl.concat([pcs.select(pair), said.select(pair), known.select(pair)]).unique()
    seen = claims.join(pcs.select(*_CONTEXT_KEY, "pc"), on=(*_CONTEXT_KEY, "pc"), how="semi")
    split = seen.group_by(*_CONTEXT_KEY, "pc").len().filter(pl.col("len") > 1)
    foreign = said.join(known, on=(*_CONTEXT_KEY, "kernel_slot"), how="semi").join(
        known, on=pair, how="anti"
    )
    key = (*_CONTEXT_KEY, "pc")
    return pl.concat([split.select(key), foreign.select(key)]).unique().height
