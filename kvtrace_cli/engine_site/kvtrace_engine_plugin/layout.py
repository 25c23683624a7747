"""Where the KV tensors of this process are, as docs/format.md has it.

Only addresses and shapes are read: no tensor is kept, copied or waited for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .axes import tell_axes
from .windows import describe_window

if TYPE_CHECKING:
    from collections.abc import Iterator

NULL_BLOCK = 0  # vLLM's block pool takes its first block out and never hands it to a request

_LAYER_NUMBER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")
_ANY_NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
# Views into the layer's cache that the Triton backend makes in its first pass.
_SCALES = {"k_scale": "_k_scale_cache", "v_scale": "_v_scale_cache"}
# One scale for each token and head of a block.
_SCALE_AXES = ("block", "offset", "head")


def scheduled_groups(config: Any) -> list[Any]:
    """Return the KV groups that requests have blocks in, in the scheduler's order.

    The first model runner appends groups of its own, for layers without a cache.
    """
    return [
        group
        for group in config.kv_cache_groups
        if "EncoderOnly" not in type(group.kv_cache_spec).__name__
    ]


def block_sizes(config: Any) -> list[int]:
    """Return the tokens of a KV block, one a KV group, as the scheduler counts."""
    return [int(group.kv_cache_spec.block_size) for group in scheduled_groups(config)]


def describe_layout(runner: Any) -> dict[str, Any]:
    """Return the layout of a model runner whose KV cache is initialised.

    Raises:
        AttributeError, TypeError: the runner is not as this plug-in knows it.
    """
    config = runner.kv_cache_config
    kv_blocks = int(config.num_blocks)
    groups: list[dict[str, Any]] = []
    tensors: list[dict[str, Any]] = []
    for number, group in enumerate(scheduled_groups(config)):
        block_size = int(group.kv_cache_spec.block_size)
        kernel_block_size = _kernel_block_size(runner, number, block_size)
        groups.append(
            {
                "block_size": block_size,
                "kernel_block_size": kernel_block_size,
                "layer_names": list(group.layer_names),
                **describe_window(group.kv_cache_spec),
            }
        )
        for layer_name in group.layer_names:
            sizes = (kv_blocks * (block_size // kernel_block_size), kernel_block_size)
            tensors.extend(
                {"layer_name": layer_name, "group": number, **tensor}
                for tensor in _layer_tensors(runner, group, layer_name, sizes)
            )
    for tensor in tensors:
        tensor["layer_index"] = _layer_index(tensor["layer_name"], groups)
    return {
        "num_blocks": kv_blocks,
        "null_block": NULL_BLOCK,
        "groups": groups,
        "tensors": tensors,
    }


def waits_for_scales(runner: Any) -> bool:
    """Say whether a layer will have tensors of scales that do not exist yet."""
    layers = runner.compilation_config.static_forward_context
    return any(
        _is_scaled(_layer_spec(group, layer_name))
        and getattr(getattr(layers.get(layer_name), "impl", None), attribute, False) is None
        for group in scheduled_groups(runner.kv_cache_config)
        for layer_name in group.layer_names
        for attribute in _SCALES.values()
    )


def _layer_tensors(
    runner: Any, group: Any, layer_name: str, sizes: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    """Describe the views of one layer; a layer without any (a Mamba state) has none."""
    spec = _layer_spec(group, layer_name)
    layer = runner.compilation_config.static_forward_context.get(layer_name)
    if layer is None or "Mamba" in type(spec).__name__:
        return
    ask = getattr(layer, "get_attn_backend", None)
    cache = layer.kv_cache
    for tensor in cache if isinstance(cache, (list, tuple)) else (cache,):
        if _has_memory(tensor):
            axes = tell_axes(
                tensor,
                ask() if ask is not None else None,
                spec,
                kv_blocks=sizes[0],
                block_size=sizes[1],
                cache_dtype=_cache_dtype(runner, spec),
            )
            yield _describe(tensor, "kv", axes)
    for role, attribute in _SCALES.items():
        scales: Any = getattr(getattr(layer, "impl", None), attribute, None)
        if _has_memory(scales):
            fits = tuple(scales.shape) == (*sizes, getattr(spec, "num_kv_heads", None))
            yield _describe(scales, role, list(_SCALE_AXES) if fits else None)


def _describe(tensor: Any, role: str, axes: list[str] | None) -> dict[str, Any]:
    return {
        "role": role,
        "address": tensor.data_ptr(),
        "shape": [int(size) for size in tensor.shape],
        "stride": [int(stride) for stride in tensor.stride()],
        "axes": axes,
        "dtype": str(tensor.dtype).rpartition(".")[2],
        "element_size": tensor.element_size(),
    }


def _kernel_block_size(runner: Any, group: int, block_size: int) -> int:
    """Return the tokens of a block of the tensors: kernels may want smaller ones."""
    sizes = getattr(runner, "kernel_block_sizes", None) or getattr(
        runner, "_kernel_block_sizes", None
    )
    if sizes is not None and group < len(sizes):
        return int(sizes[group])
    # Versions whose runner keeps no such list have it in the group's block table.
    tables = getattr(getattr(runner, "input_batch", None), "block_table", None)
    return block_size if tables is None else int(tables[group].block_size)


def _layer_spec(group: Any, layer_name: str) -> Any:
    """Return a layer's own spec, where a group holds layers of several sizes."""
    spec = group.kv_cache_spec
    each = getattr(spec, "kv_cache_specs", None)
    return each[layer_name] if each else spec


def _is_scaled(spec: Any) -> bool:
    return bool(getattr(getattr(spec, "kv_quant_mode", None), "is_per_token_head", False))


def _cache_dtype(runner: Any, spec: Any) -> str:
    """Return the name that the layer's backend was given: layers may opt out of quantisation."""
    mode = getattr(spec, "kv_quant_mode", None)
    if getattr(mode, "name", None) == "NONE" and not hasattr(spec, "cache_dtype_str"):
        return "auto"
    return getattr(spec, "cache_dtype_str", None) or str(runner.cache_config.cache_dtype)


def _has_memory(tensor: Any) -> bool:
    return hasattr(tensor, "data_ptr") and bool(tensor.numel())


def _layer_index(layer_name: str, groups: list[dict[str, Any]]) -> int:
    """Return the number in a layer's name, or else its place among all layers."""
    found = _LAYER_NUMBER.search(layer_name) or _ANY_NUMBER.search(layer_name)
    if found is not None:
        return int(found.group(1))
    return [name for group in groups for name in group["layer_names"]].index(layer_name)
