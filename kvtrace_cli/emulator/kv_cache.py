"""Where the KV tensors would be: fictional addresses in the memory layout of vLLM 0.26."""

from dataclasses import dataclass
from typing import Any

from kvtrace_cli.emulator.kv_blocks import NULL_BLOCK

_FIRST_ADDRESS = 0x4000_0000_0000
_ALIGNMENT = 2 << 20
# No cache is larger, so the addresses of two ranks are never the same.
_DEVICE_SPACING = 1 << 40
# One engine, one kind of attention layer.
_GROUP = 0


@dataclass(frozen=True)
class KvCache:
    """One tensor a layer, logical shape (KV block, head, offset, K then V), stored by offset.

    Nothing is ever stored: stores have these addresses and touch no memory. Between two tensors
    lies a gap as large as a tensor, so that a slot beyond the last one is in none.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    element_size: int
    num_blocks: int
    block_size: int
    # Of the model's layers, the first that this rank has.
    first_layer: int = 0
    # Number of the GPU among all of the engine's.
    device: int = 0

    @property
    def layer_indices(self) -> range:
        """The layers that are here, by their numbers in the model."""
        return range(self.first_layer, self.first_layer + self.layers)

    @property
    def offset_stride(self) -> int:
        """Bytes from one token of a KV block to the next."""
        return self.kv_heads * 2 * self.head_dim * self.element_size

    @property
    def block_stride(self) -> int:
        """Bytes from one KV block to the next."""
        return self.block_size * self.offset_stride

    @property
    def slots(self) -> int:
        """KV slots of a layer."""
        return self.num_blocks * self.block_size

    def key_address(self, layer_index: int) -> int:
        """Return the address of the first key of a layer, which is that of its tensor."""
        spacing = -(-2 * self.num_blocks * self.block_stride // _ALIGNMENT) * _ALIGNMENT
        return _FIRST_ADDRESS + self.device * _DEVICE_SPACING + layer_index * spacing

    def value_address(self, layer_index: int) -> int:
        """Return the address of the first value of a layer."""
        return self.key_address(layer_index) + self.head_dim * self.element_size

    def layout(self) -> dict[str, Any]:
        """Return the layout file's fields, see docs/format.md."""
        names = {index: f"model.layers.{index}.self_attn.attn" for index in self.layer_indices}
        group = {
            "block_size": self.block_size,
            "kernel_block_size": self.block_size,
            "layer_names": list(names.values()),
        }
        return {
            "num_blocks": self.num_blocks,
            "null_block": NULL_BLOCK,
            "groups": [group],
            "tensors": [self._tensor(*layer) for layer in names.items()],
        }

    def _tensor(self, layer_index: int, layer_name: str) -> dict[str, Any]:
        row = 2 * self.head_dim
        by_offset = self.kv_heads * row
        return {
            "layer_name": layer_name,
            "layer_index": layer_index,
            "group": _GROUP,
            "role": "kv",
            "address": self.key_address(layer_index),
            "shape": [self.num_blocks, self.kv_heads, self.block_size, row],
            "stride": [self.block_size * by_offset, row, by_offset, 1],
            "axes": ["block", "head", "offset", "kv_dim"],
            "dtype": self.dtype,
            "element_size": self.element_size,
        }
