"""An address -> the element of a KV tensor that is there, by the layout of the process."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from kvtrace_cli.dumps.schema import KvTensor, Layout

_LOCATED_SCHEMA: Final = {
    "store": pl.UInt32,
    "layer_index": pl.UInt32,
    "kv_group": pl.UInt16,
    "part": pl.String,
    "kv_block_id": pl.UInt32,
    "offset": pl.UInt32,
    "written_slot": pl.Int64,
    "head": pl.UInt32,
}
_PARTS: Final = {"k": "K", "v": "V", "k_scale": "K scale", "v_scale": "V scale"}
# Pairs of a store and a tensor that are looked at in one go.
_PAIRS: Final = 1 << 20


@dataclass(frozen=True)
class _View:
    """What tensors of different layers share: everything but address and layer."""

    role: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    axes: tuple[str, ...] | None
    element_size: int
    group: int

    @classmethod
    def of(cls, tensor: KvTensor) -> "_View":
        return cls(
            tensor.role,
            tensor.shape,
            tensor.stride,
            tensor.axes,
            tensor.element_size,
            tensor.group,
        )

    def span(self) -> int:
        """Return the bytes from the first element to the end of the last; 0 if there is none."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.element_size

    def dimensions(self) -> list[tuple[int, int, str | None]]:
        """Return (stride, size, axis) of each dimension that moves, the widest first."""
        axes = self.axes or (None,) * len(self.shape)
        moving = (
            part
            for part in zip(self.stride, self.shape, axes, strict=True)
            if part[0] and part[1] > 1
        )
        return sorted(moving, key=lambda part: part[:2], reverse=True)


class KvLayout:
    """The KV tensors of one process, ready to be looked up."""

    def __init__(self, layout: Layout) -> None:
        tensors = sorted(
            _without_shared(tensor for tensor in layout.tensors if _View.of(tensor).span()),
            key=lambda tensor: (tensor.address, tensor.layer_index),
        )
        self.layer_indices = sorted({tensor.layer_index for tensor in tensors})
        self._groups = layout.groups
        self._views = list(dict.fromkeys(map(_View.of, tensors)))
        clusters = _clusters(tensors)
        rank = {index: rank for rank, index in enumerate(self.layer_indices)}
        self._tensors = pl.DataFrame(
            {
                "tensor": list(range(len(tensors))),
                "base": [tensor.address for tensor in tensors],
                "layer_index": [tensor.layer_index for tensor in tensors],
                "layer_rank": [rank[tensor.layer_index] for tensor in tensors],
                "view": [self._views.index(_View.of(tensor)) for tensor in tensors],
                "cluster": clusters,
            },
            schema={
                "tensor": pl.UInt32,
                "base": pl.UInt64,
                "layer_index": pl.UInt32,
                "layer_rank": pl.UInt32,
                "view": pl.UInt32,
                "cluster": pl.UInt32,
            },
        )
        self._cluster_begin = self._tensors.group_by("cluster", maintain_order=True).agg(
            pl.col("base").min()
        )["base"]
        most = max((clusters.count(cluster) for cluster in set(clusters)), default=1)
        self._at_once = max(1, _PAIRS // most)

    def locate(self, addresses: pl.Series, layer_rank: pl.Series) -> pl.DataFrame:
        """Find the element at each address.

        Args:
            addresses: bytes.
            layer_rank: the layer that each is expected in, by rank among the process's layers;
                null if nothing is expected. It decides where tensors share memory.

        Returns:
            One row per address that is in a tensor: `store` (its number in `addresses`),
            layer_index, kv_group, part (`K`, `V`, `K scale`, `V scale`; `KV` of one latent for
            both; null if the tensor's axes are not known), kv_block_id and offset (of the
            scheduler's blocks), written_slot (flat, in tokens), head.

        Assumes: strides nest, as those of permuted, sliced and split tensors do.
        """
        asked = pl.DataFrame({"address": addresses, "layer_rank": layer_rank}).with_row_index(
            "store"
        )
        cluster = self._cluster_begin.search_sorted(asked["address"], side="right").cast(pl.Int64)
        asked = asked.with_columns((cluster - 1).alias("cluster")).filter(pl.col("cluster") >= 0)
        asked = asked.with_columns(pl.col("cluster").cast(pl.UInt32))
        nothing = pl.DataFrame(schema=_LOCATED_SCHEMA)
        expected = self._decode(asked, ("cluster", "layer_rank"))
        rest = asked.join(expected, on="store", how="anti", maintain_order="left")
        others = (self._decode(part, ("cluster",)) for part in rest.iter_slices(self._at_once))
        return pl.concat([nothing, expected, *others])

    def _decode(self, asked: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
        """Try each store with the tensors of the same key; the first that has its element wins."""
        pairs = (
            asked.select("store", "address", *key)
            .join(self._tensors, on=key, how="inner", maintain_order="left_right")
            .filter(pl.col("address") >= pl.col("base"))
        )
        found = (
            self._elements(part, self._views[view])
            for (view,), part in pairs.partition_by("view", as_dict=True).items()
        )
        nothing = pl.DataFrame(schema=_LOCATED_SCHEMA | {"tensor": pl.UInt32})
        return (
            pl.concat([nothing, *found])
            .sort("store", "tensor")
            .unique("store", keep="first", maintain_order=True)
            .drop("tensor")
        )

    def _elements(self, pairs: pl.DataFrame, view: _View) -> pl.DataFrame:
        """Return the pairs whose address is exactly an element of the tensor, decoded."""
        distance = pairs["address"] - pairs["base"]
        rest = distance // view.element_size
        inside = distance % view.element_size == 0
        index: dict[str | None, pl.Series] = {}
        for stride, size, axis in view.dimensions():
            index[axis] = rest // stride
            inside &= index[axis] < size
            rest = rest % stride
        inside &= rest == 0
        group = self._groups[view.group]
        zero = pl.zeros(pairs.height, pl.UInt64, eager=True)
        axes = view.axes or ()
        at = {axis: index.get(axis, zero).cast(pl.Int64) for axis in axes}
        columns = pairs.select("store", "layer_index", "tensor").with_columns(
            pl.lit(view.group, pl.UInt16).alias("kv_group"),
            _part(view, at).alias("part"),
            _column(at.get("head"), "head", pl.UInt32),
        )
        if "block" in at and "offset" in at:
            slot = at["block"] * group.kernel_block_size + at["offset"]
        else:
            slot = None
        return (
            columns.with_columns(_column(slot, "written_slot", pl.Int64))
            .with_columns(
                (pl.col("written_slot") // group.block_size)
                .cast(pl.UInt32, strict=False)
                .alias("kv_block_id"),
                (pl.col("written_slot") % group.block_size).cast(pl.UInt32).alias("offset"),
            )
            .filter(inside)
            .select(*_LOCATED_SCHEMA, "tensor")
        )


def _column(values: pl.Series | None, name: str, dtype: type[pl.DataType]) -> pl.Expr:
    if values is None:
        return pl.lit(None, dtype).alias(name)
    return pl.lit(values.cast(dtype, strict=False)).alias(name)


def _part(view: _View, at: dict[str, pl.Series]) -> pl.Expr:
    """Say which part each element belongs to."""
    if view.role in _PARTS:
        return pl.lit(_PARTS[view.role])
    if view.axes is None:
        return pl.lit(None, pl.String)
    if "kv" in at:
        is_key = at["kv"] == 0
    elif "kv_dim" in at:
        is_key = at["kv_dim"] < view.shape[view.axes.index("kv_dim")] // 2
    else:
        return pl.lit("KV")
    return pl.when(pl.lit(is_key)).then(pl.lit("K")).otherwise(pl.lit("V"))


def _without_shared(tensors: Iterable[KvTensor]) -> list[KvTensor]:
    """Leave out layers that read another layer's tensor: the first of them is the one to write."""
    first: dict[tuple[int, _View], KvTensor] = {}
    for tensor in sorted(tensors, key=lambda tensor: tensor.layer_index):
        first.setdefault((tensor.address, _View.of(tensor)), tensor)
    return list(first.values())


def _clusters(tensors: Sequence[KvTensor]) -> list[int]:
    """Number the stretches of memory: tensors that overlap, in the order of addresses, are one."""
    numbers: list[int] = []
    end = 0
    for tensor in tensors:
        is_apart = not numbers or tensor.address >= end
        numbers.append((numbers[-1] + 1 if numbers else 0) if is_apart else numbers[-1])
        end = max(end, tensor.address + _View.of(tensor).span())
    return numbers
