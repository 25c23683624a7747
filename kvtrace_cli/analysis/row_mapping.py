"""Which block index of a kernel is the row of the batch.

Source: vLLM's kernels, versions 0.20 to 0.33. Kernels that lay their rows out over warps, or whose
source was not read, are left out: their rows are unknown and said to be.
"""

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from kvtrace_cli.analysis.kernel_names import kernel_base_name
from kvtrace_cli.analysis.kernels import bound_functions
from kvtrace_cli.dumps.schema import CONTEXT_INDEX, PROCESS_ID

ROW_AXIS: Final = "row_axis"

_KERNEL_KEY: Final = (PROCESS_ID, CONTEXT_INDEX, "kernel_slot")
_ROW_AXES: Final = {
    "reshape_and_cache_flash_kernel": "x",
    "reshape_and_cache_nvfp4_kernel": "x",
    "reshape_and_cache_kernel": "x",
    "concat_and_cache_mla_kernel": "x",
    "concat_and_cache_ds_mla_kernel": "x",
    "concat_and_cache_mla_rope_fused_kernel": "x",
    "concat_and_cache_mla_grouped_kernel": "x",
    "indexer_k_quant_and_cache_kernel": "x",
    # Triton kernels from here on.
    "reshape_and_cache_kernel_flash": "x",
    "reshape_and_cache_kernel_flash_diffkv": "x",
    "_reshape_cache_per_token_head": "x",
    "_reshape_cache_int4_kernel": "x",
    "quantize_and_insert_k_kernel": "x",
    "_save_partial_states_kernel": "x",
    "_finalize_norm_rope_quant_store_sparse_attn": "x",
    "_fused_norm_rope_kernel": "y",
}


def row_axis(kernel_name: str | None) -> str | None:
    """Return `x` or `y`, the block index that is the row; None if it is not known."""
    return _ROW_AXES.get(kernel_base_name(kernel_name) or "")


def with_row_axis(launches: pl.DataFrame, journal: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Add to each launch `kernel` (base name, null if the journals do not name it) and `row_axis`.

    Args:
        launches: from `launch_frame`.
        journal: lines of the journals, which name the kernel slots.
    """
    bound = bound_functions(journal).group_by(_KERNEL_KEY).agg(pl.col("name").first())
    names = [kernel_base_name(name) for name in bound["name"]]
    kernels = bound.select(_KERNEL_KEY).with_columns(
        pl.Series("kernel", names, pl.String),
        pl.Series(ROW_AXIS, [row_axis(name) for name in names], pl.String),
    )
    return launches.join(kernels, on=_KERNEL_KEY, how="left", maintain_order="left", validate="m:1")


def row_of_block() -> pl.Expr:
    """Return the row of a block entry or store that has `row_axis`; null if it is not known."""
    return (
        pl.when(pl.col(ROW_AXIS) == "x")
        .then(pl.col("block_idx_x").cast(pl.UInt32))
        .when(pl.col(ROW_AXIS) == "y")
        .then(pl.col("block_idx_y").cast(pl.UInt32))
        .alias("row")
    )
