"""Which row wrote each KV slot last, for a map of the KV blocks."""

from typing import Final

import polars as pl

from kvtrace_cli.analysis.audit_input import audit_input, processes_with_stores
from kvtrace_cli.analysis.audit_model import Audit, Rule
from kvtrace_cli.analysis.audit_survey import store_source
from kvtrace_cli.analysis.audit_writes import OWNED, step_slices
from kvtrace_cli.analysis.model import Attribution, Reconciliation
from kvtrace_cli.analysis.report_model import SlotMap
from kvtrace_cli.analysis.steps import KV_GROUP, STEP_STAMP, StepTables
from kvtrace_cli.dumps.schema import PROCESS_ID, Recording

HELD, NULL_BLOCK, UNHELD = "held", "null block", "held by no request"
NEVER_WRITTEN: Final = "never written"
ENGINE_OWN: Final = "the engine's own"

# So many cells, about as many as the other pictures have marks.
_MOST_SLOTS: Final = 4_000
_MOST_BLOCKS: Final = 240
_GROUP_KEY: Final = (PROCESS_ID, KV_GROUP)
_SLOT: Final = ("kv_block_id", "offset")
_ROW: Final = (*_GROUP_KEY, *_SLOT, STEP_STAMP, "row")
_ROWS_SCHEMA: Final = {
    PROCESS_ID: pl.UInt32,
    KV_GROUP: pl.UInt16,
    "kv_block_id": pl.Int64,
    "offset": pl.Int64,
    STEP_STAMP: pl.UInt32,
    "row": pl.UInt32,
    "owner": pl.String,
    "request_id": pl.String,
    "position": pl.UInt32,
    "k_layers": pl.UInt32,
    "v_layers": pl.UInt32,
}


def slot_map(
    recording: Recording,
    result: Reconciliation,
    tables: StepTables,
    attribution: Attribution,
    audit: Audit,
) -> SlotMap | None:
    """Return who wrote each slot last; None if no store was given to a KV slot.

    Args:
        recording: of one run.
        result: from `reconcile`.
        tables: from `step_tables`.
        attribution: from `attribute`; it tells which requests are ours.
        audit: from `audit`; its findings are put on their slots.

    Units: KV blocks and offsets in tokens, as the scheduler counts. Of several processes and KV
    groups the one with the most writes is shown.
    """
    rows = _rows(recording, result, tables)
    if rows.is_empty():
        return None
    groups = (
        rows.group_by(_GROUP_KEY).len().sort("len", *_GROUP_KEY, descending=[True] + [False] * 2)
    )
    process_id, kv_group, _ = groups.row(0)
    is_shown = (pl.col(PROCESS_ID) == process_id) & (pl.col(KV_GROUP) == kv_group)
    process = next(one for one in recording.steps if one.process_id == process_id)
    layout = process.layout
    if layout is None:  # then no store would have been given to a slot
        return None
    block_size = layout.groups[kv_group].block_size
    found = _found(audit).filter(is_shown).drop(_GROUP_KEY)
    slots = _slots(rows.filter(is_shown), found, attribution)
    held = tables.holdings.filter(is_shown)["kv_block_id"].cast(pl.Int64).unique()
    kv_blocks = _kv_blocks(slots, held, layout.null_block)
    shown = _shown_blocks(kv_blocks, slots, max(1, _MOST_SLOTS // block_size))
    return SlotMap(
        process_id=process_id,
        rank=result.ranks.names.get(process_id, ""),
        kv_group=kv_group,
        other_groups=groups.height - 1,
        block_size=block_size,
        num_blocks=layout.num_blocks,
        written_blocks=kv_blocks.height,
        shown_blocks=shown.height,
        slots=slots.join(shown, on="kv_block_id", how="semi", maintain_order="left"),
        kv_blocks=shown,
    )


def no_slot_map(recording: Recording, result: Reconciliation) -> str:
    """Say why there is no map of KV slots."""
    if not result.stores:
        return "Stores were not recorded; `kvtrace run --record writes` records them."
    if not recording.steps:
        return "The engine plug-in did not run, so no store has an owner or a KV slot."
    if not any(process.layout for process in recording.steps):
        return "The layout of the KV tensors was not recorded, so addresses have no KV slot."
    if not processes_with_stores(recording):
        return "No process with a target kernel recorded stores."
    return "No recorded store went into a KV slot of a known step."


def _rows(recording: Recording, result: Reconciliation, tables: StepTables) -> pl.DataFrame:
    """Return one row for each slot that a row of a step wrote, in the order of steps."""
    given = audit_input(recording, result, tables, store_source(result, recording))
    parts = [pl.DataFrame(schema=_ROWS_SCHEMA)]
    for step_slice in step_slices(given):
        writes = step_slice.writes.filter(pl.col("written_slot").is_not_null())
        layers = pl.col("layer_index")
        parts.append(
            writes.group_by(_ROW, maintain_order=True)
            .agg(
                pl.col("owner", "request_id", "position").first(),
                layers.filter(pl.col("part").is_in(["K", "KV"])).n_unique().alias("k_layers"),
                layers.filter(pl.col("part").is_in(["V", "KV"])).n_unique().alias("v_layers"),
            )
            .select(pl.col(name).cast(dtype) for name, dtype in _ROWS_SCHEMA.items())
        )
    return pl.concat(parts)


def _found(audit: Audit) -> pl.DataFrame:
    """Return the first rule that each slot breaks, and whether it should have been written."""
    return (
        audit.findings.filter(pl.col("kv_block_id").is_not_null())
        .group_by(*_GROUP_KEY, *_SLOT)
        .agg(
            pl.col("rule").cast(pl.String).first().alias("finding"),
            pl.col("request_id", "position", STEP_STAMP).first(),
        )
    )


def _slots(rows: pl.DataFrame, found: pl.DataFrame, attribution: Attribution) -> pl.DataFrame:
    writers = _writer_names(attribution)
    last = (
        rows.sort(STEP_STAMP, maintain_order=True)
        .group_by(_SLOT, maintain_order=True)
        .agg(
            pl.col("owner", "request_id", "position", STEP_STAMP, "k_layers", "v_layers").last(),
            pl.len().alias("rows_wrote"),
        )
        .join(found.select(*_SLOT, "finding"), on=_SLOT, how="left", maintain_order="left")
    )
    missing = found.filter(pl.col("finding") == Rule.MISSING_WRITE.value).join(
        last, on=_SLOT, how="anti"
    )
    never = missing.with_columns(
        pl.lit(NEVER_WRITTEN).alias("owner"),
        *(
            pl.lit(0, last.schema[name]).alias(name)
            for name in ("k_layers", "v_layers", "rows_wrote")
        ),
    ).select(last.columns)
    name = pl.col("request_id").replace_strict(writers, default=pl.col("request_id"))
    return (
        pl.concat([last, never])
        .with_columns(
            pl.when(pl.col("owner") == OWNED)
            .then(name)
            .when(pl.col("owner") == NEVER_WRITTEN)
            .then("owner")
            .otherwise(pl.concat_str("owner", pl.lit(" row")))
            .alias("writer")
        )
        .select(
            *_SLOT,
            "writer",
            "position",
            STEP_STAMP,
            "k_layers",
            "v_layers",
            "rows_wrote",
            "finding",
        )
        .sort(_SLOT)
    )


def _writer_names(attribution: Attribution) -> dict[str, str]:
    return {
        request.request_id: (
            ENGINE_OWN
            if request.is_engine_own
            else request.request_id
            if request.request_index is None
            else f"request {request.request_index}"
        )
        for request in attribution.requests
    }


def _kv_blocks(slots: pl.DataFrame, held: pl.Series, null_block: int | None) -> pl.DataFrame:
    """Return the KV blocks that were written or held, and the null block; each with its state."""
    nulls = pl.Series([] if null_block is None else [null_block], dtype=pl.Int64)
    block = pl.col("kv_block_id")
    return (
        pl.DataFrame({"kv_block_id": pl.concat([slots["kv_block_id"], held, nulls])})
        .unique()
        .sort("kv_block_id")
        .with_columns(
            pl.when(block.is_in(nulls.implode()))
            .then(pl.lit(NULL_BLOCK))
            .when(block.is_in(held.implode()))
            .then(pl.lit(HELD))
            .otherwise(pl.lit(UNHELD))
            .alias("state")
        )
    )


def _shown_blocks(kv_blocks: pl.DataFrame, slots: pl.DataFrame, most: int) -> pl.DataFrame:
    """Keep the first blocks, but those with a finding or without a holder before all others."""
    faulty = slots.filter(pl.col("finding").is_not_null())["kv_block_id"].unique()
    matters = pl.col("kv_block_id").is_in(faulty.implode()) | (pl.col("state") != HELD)
    return (
        kv_blocks.sort(~matters, "kv_block_id", maintain_order=True)
        .head(min(most, _MOST_BLOCKS))
        .sort("kv_block_id")
    )
