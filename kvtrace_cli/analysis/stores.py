"""Each store to memory: the launch, row and step it belongs to, and what it wrote in the cache."""

from collections.abc import Iterator
from typing import Final

import polars as pl

from kvtrace_cli.analysis.joined import store_slices
from kvtrace_cli.analysis.kv_layout import KvLayout
from kvtrace_cli.analysis.model import Reconciliation
from kvtrace_cli.analysis.row_mapping import ROW_AXIS, row_of_block, with_row_axis
from kvtrace_cli.analysis.steps import STEP_KIND, STEP_STAMP
from kvtrace_cli.dumps.schema import (
    CONTEXT_INDEX,
    LAUNCH_INDEX,
    LAYER_INDEX,
    PROCESS_ID,
    SEQUENCE,
    Recording,
)

_SCHEMA: Final = {
    PROCESS_ID: pl.UInt32,
    CONTEXT_INDEX: pl.UInt16,
    SEQUENCE: pl.UInt64,
    LAUNCH_INDEX: pl.UInt32,
    STEP_STAMP: pl.UInt32,
    STEP_KIND: pl.String,
    "row": pl.UInt32,
    LAYER_INDEX: pl.UInt32,
    "kv_group": pl.UInt16,
    "part": pl.String,
    "kv_block_id": pl.UInt32,
    "offset": pl.UInt32,
    "written_slot": pl.Int64,
    "head": pl.UInt32,
    "address": pl.UInt64,
    "access_size": pl.UInt8,
    "thread_index": pl.UInt16,
    "in_kv_tensor": pl.Boolean,
}
# What is looked at of a store's event.
_OF_EVENT: Final = (
    SEQUENCE,
    "block_idx_x",
    "block_idx_y",
    "address",
    "access_size",
    "thread_index",
)
_LAYER_RANK: Final = "layer_rank"


def located_stores(result: Reconciliation, recording: Recording) -> pl.DataFrame:
    """Say of each store where it came from and where it went.

    Returns:
        One row per store event, in the order of contexts and sequences: process_id,
        context_index, sequence, launch_index, step_stamp (0: the launch belongs to no step),
        step_kind (null: no step is known), row (null: the kernel's rows are not known), layer_index
        (of the tensor), kv_group, part (`K`, `V`, `K scale`, `V scale`; `KV` where one latent
        stands for both), kv_block_id and offset (of the scheduler's blocks), written_slot (flat, in
        tokens), head, address, access_size, thread_index, in_kv_tensor (false: outside every KV
        tensor; null: the process has no layout). What cannot be told is null.

    Units: `address` and `access_size` in bytes. Assumes: where tensors share memory, the layer is
    the one whose rank the launch has, if that tensor has such an element. Source: docs/format.md,
    Layout.
    """
    return pl.concat([pl.DataFrame(schema=_SCHEMA), *located_slices(result, recording)])


def located_slices(result: Reconciliation, recording: Recording) -> Iterator[pl.DataFrame]:
    """Yield the rows of `located_stores` a slice at a time, so that memory stays bounded."""
    key = (PROCESS_ID, CONTEXT_INDEX, "kernel_slot")
    known = result.launches.select(*key, STEP_STAMP, STEP_KIND, LAYER_INDEX)
    launches = with_row_axis(known, recording.journal).select(
        STEP_STAMP, STEP_KIND, ROW_AXIS, pl.col(LAYER_INDEX).alias(_LAYER_RANK)
    )
    layouts = {
        process.process_id: KvLayout(process.layout)
        for process in recording.steps
        if process.layout
    }
    for part in store_slices(result.contexts, *_OF_EVENT):
        of_launch = [launches[name].gather(part[LAUNCH_INDEX]) for name in launches.columns]
        yield _located(part.hstack(of_launch), layouts.get(part[PROCESS_ID][0]))


def _located(stores: pl.DataFrame, layout: KvLayout | None) -> pl.DataFrame:
    known = stores.with_columns(row_of_block()).with_row_index("store")
    if layout is None:
        empty = (pl.lit(None, dtype).alias(name) for name, dtype in _SCHEMA.items())
        return known.with_columns(
            column for column in empty if column.meta.output_name() not in known.columns
        ).select(*_SCHEMA)
    found = layout.locate(known["address"], known[_LAYER_RANK]).with_columns(
        pl.lit(value=True).alias("in_kv_tensor")
    )
    return (
        known.join(found, on="store", how="left", maintain_order="left", validate="1:1")
        .with_columns(pl.col("in_kv_tensor").fill_null(value=False))
        .select(*_SCHEMA)
    )
