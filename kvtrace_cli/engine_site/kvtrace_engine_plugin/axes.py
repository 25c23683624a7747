"""What each dimension of a KV tensor counts.

The order differs by version and attention backend, so it is asked for, never assumed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

# From vLLM 0.32 on every layer's view is [B, H, N, C]; the module says so, no backend does.
_FIXED_ORDER_MODULE = "vllm.v1.kv_cache_layout"
# Backends that split a dimension of twice the head size into K and V, in this order; others, such
# as the CPU's, arrange the same shape in another way.
_HALVES = frozenset(
    {
        "FLASH_ATTN",
        "FLASHINFER",
        "FLEX_ATTENTION",
        "HPC_ATTN",
        "ROCM_AITER_UNIFIED_ATTN",
        "TRITON_ATTN",
    }
)
# Sizes that no other dimension has, so that a shape tells which is which.
_PROBE_BLOCKS = 7919
_PROBE_HEADS = (13, 1)
_PROBE_BLOCK_SIZES = (976, 3904, 1024, 64)


def tell_axes(
    tensor: Any, backend: Any, spec: Any, *, kv_blocks: int, block_size: int, cache_dtype: str
) -> list[str] | None:
    """Return what each dimension of a layer's KV tensor counts, or None if it cannot be told.

    Args:
        tensor: the layer's view.
        backend: the layer's attention backend, or None.
        spec: the layer's `KVCacheSpec`.
        kv_blocks: blocks of the tensor, in kernel blocks.
        block_size: tokens of a kernel block.
        cache_dtype: vLLM's name for the cache's data type.
    """
    axes = _probe(backend, spec, cache_dtype) or _fixed_order(tensor, spec)
    if axes is None or len(axes) != len(tensor.shape):
        return None
    if "kv_dim" in axes and _name_of(backend) not in _HALVES:
        return None
    expected = {"block": kv_blocks, "offset": block_size, "kv": 2, "head": _heads(spec)}
    fits = all(expected.get(axis, size) == size for axis, size in zip(axes, tensor.shape))
    return axes if fits else None


def _probe(backend: Any, spec: Any, cache_dtype: str) -> list[str] | None:
    """Ask the backend for the shape of a cache of distinctive sizes."""
    ask = getattr(backend, "get_kv_cache_shape", None)
    head_size = getattr(spec, "head_size", None)
    if ask is None or head_size is None:
        return None
    for heads in _PROBE_HEADS:
        for block_size in _PROBE_BLOCK_SIZES:
            try:
                shape = ask(
                    _PROBE_BLOCKS, block_size, heads, head_size, cache_dtype_str=cache_dtype
                )
            except Exception:  # noqa: BLE001, S112  a size that this backend does not take
                continue
            names = {_PROBE_BLOCKS: "block", block_size: "offset", heads: "head", 2: "kv"}
            return _name(shape, names, spec)
    return None


def _fixed_order(tensor: Any, spec: Any) -> list[str] | None:
    if _FIXED_ORDER_MODULE not in sys.modules or len(tensor.shape) != 4:  # noqa: PLR2004
        return None
    content = _content(tensor.shape[3], spec, has_kv_axis=False)
    return ["block", "head", "offset", content] if content is not None else None


def _name(shape: Sequence[int], names: dict[int, str], spec: Any) -> list[str] | None:
    """Name a probed shape's dimensions; the last is the content of a head."""
    axes = [names.get(size) for size in shape[:-1]]
    content = _content(shape[-1], spec, has_kv_axis="kv" in axes)
    named = [axis for axis in (*axes, content) if axis is not None]
    whole = len(named) == len(shape) == len(set(named)) and {"block", "offset"} <= set(named)
    return named if whole else None


def _content(size: int, spec: Any, *, has_kv_axis: bool) -> str | None:
    """Say whether the last dimension holds one vector, or K and V in two halves."""
    if has_kv_axis or "MLA" in type(spec).__name__:
        return "dim"
    head_size = getattr(spec, "head_size", None)
    if getattr(spec, "head_size_v", None) not in (None, head_size):
        return None  # K and V of unlike sizes: not two halves
    scaled = getattr(getattr(spec, "kv_quant_mode", None), "is_per_token_head", False)
    if head_size is not None and size == 2 * head_size:
        return "kv_dim"
    # Each half is a quantised vector and its scale.
    return "kv_dim" if scaled and size % 2 == 0 else None


def _name_of(backend: Any) -> str:
    ask = getattr(backend, "get_name", None)
    return str(ask()) if ask is not None else ""


def _heads(spec: Any) -> int:
    heads = getattr(spec, "num_kv_heads", None)
    return int(heads if heads is not None else spec.num_heads)
