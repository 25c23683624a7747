"""An address is decoded to exactly the element that is there, in every layout vLLM has."""

import itertools

import polars as pl
import pytest

from kvtrace_cli.analysis import kv_layout
from kvtrace_cli.analysis.kv_layout import KvLayout
from kvtrace_cli.dumps.schema import KvGroup, KvTensor, Layout

# KV blocks, heads, tokens of a KV block, elements of a head.
B, H, N, D = 3, 2, 4, 4
BASE = 1000
BYTES = 2


def tensor(layer, role, address, view, axes, *, group=0, element_size=BYTES):
    shape, stride = view
    return KvTensor(
        f"l{layer}", layer, group, role, address, shape, stride, axes, "x", element_size
    )


def layout(tensors, *groups):
    return Layout(B, None, groups or (KvGroup(N, N, ()),), tuple(tensors))


def packed(order, layers=3, apart=None):
    """K and V in one row, as vLLM 0.26: heads within the token (NHD), or tokens in a head (HND)."""
    size = H * N * 2 * D
    strides = {"NHD": (size, 2 * D, H * 2 * D, 1), "HND": (size, N * 2 * D, 2 * D, 1)}
    apart = B * size * BYTES if apart is None else apart
    axes = ("block", "head", "offset", "kv_dim")
    return [
        tensor(layer, "kv", BASE + layer * apart, ((B, H, N, 2 * D), strides[order]), axes)
        for layer in range(layers)
    ]


def kv_first():
    """(2, B, N, H, D), as vLLM 0.20."""
    strides = (B * N * H * D, N * H * D, H * D, D, 1)
    axes = ("kv", "block", "offset", "head", "dim")
    return [
        tensor(layer, "kv", BASE + 5000 * layer, ((2, B, N, H, D), strides), axes)
        for layer in range(2)
    ]


def split():
    """Views of K and V that lie in one another's gaps: (B, 2, N, H, D), as vLLM 0.23."""
    strides = (2 * N * H * D, H * D, D, 1)
    axes = ("block", "offset", "head", "dim")
    return [
        tensor(layer, role, BASE + 5000 * layer + start, ((B, N, H, D), strides), axes)
        for layer in range(2)
        for role, start in (("k", 0), ("v", N * H * D * BYTES))
    ]


def one_storage():
    """All layers of a KV block side by side: (B, layers, N, H, 2D)."""
    size = H * N * 2 * D
    strides = (3 * size, 2 * D, H * 2 * D, 1)
    axes = ("block", "head", "offset", "kv_dim")
    return [
        tensor(layer, "kv", BASE + layer * size * BYTES, ((B, H, N, 2 * D), strides), axes)
        for layer in range(3)
    ]


def hybrid():
    """Two groups with other block sizes in the same memory."""
    one = packed("NHD", layers=1)[0]
    stride = (2 * N * H * 2 * D, 2 * D, H * 2 * D, 1)
    axes = ("block", "head", "offset", "kv_dim")
    return [one, tensor(1, "kv", BASE, ((1, H, 2 * N, 2 * D), stride), axes, group=1)]


def latent():
    """One latent for K and V, and scales of another element size."""
    axes = ("block", "offset", "head")
    return [
        tensor(0, "kv", BASE, ((B, N, 6), (N * 6, 6, 1)), ("block", "offset", "dim")),
        tensor(0, "k_scale", 4000, ((B, N, H), (N * H, H, 1)), axes, element_size=4),
        tensor(0, "v_scale", 5000, ((B, 1, H), (H, H, 1)), axes, element_size=4),
    ]


LAYOUTS = {
    "packed NHD": layout(packed("NHD")),
    "packed HND": layout(packed("HND")),
    "with gaps between layers": layout(packed("HND", apart=4000)),
    "K before V": layout(kv_first()),
    "split": layout(split()),
    "manager's blocks are twice the kernel's": layout(split(), KvGroup(2 * N, N, ())),
    "one storage": layout(one_storage()),
    "hybrid": layout(hybrid(), KvGroup(N, N, ()), KvGroup(2 * N, 2 * N, ())),
    "latent and scales": layout(latent()),
}


def elements(of_layout):
    """Return address -> every (tensor, index by axis) that is there, by walking all elements."""
    found = {}
    for one in sorted(of_layout.tensors, key=lambda one: (one.address, one.layer_index)):
        for index in itertools.product(*map(range, one.shape)):
            steps = sum(at * stride for at, stride in zip(index, one.stride, strict=True))
            address = one.address + steps * one.element_size
            found.setdefault(address, []).append((one, dict(zip(one.axes, index, strict=True))))
    return found


def part_of(one, at):
    if one.role != "kv":
        return {"k": "K", "v": "V", "k_scale": "K scale", "v_scale": "V scale"}[one.role]
    if "kv" in at:
        return "KV"[at["kv"]]
    return "KV"[at["kv_dim"] * 2 // one.shape[-1]] if "kv_dim" in at else "KV"


def expected(of_layout, one, at):
    group = of_layout.groups[one.group]
    slot = at["block"] * group.kernel_block_size + at["offset"]
    kv_block_id, offset = divmod(slot, group.block_size)
    where = (one.layer_index, one.group, part_of(one, at))
    return (*where, kv_block_id, offset, slot, at.get("head"))


def locate(of_layout, addresses, rank=None):
    ranks = pl.Series([rank] * len(addresses), dtype=pl.UInt32)
    return KvLayout(of_layout).locate(pl.Series(addresses, dtype=pl.UInt64), ranks)


@pytest.mark.parametrize("rank", [None, 0, 1, 2, 9])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_byte_is_decoded_or_lies_outside(name, rank):
    of_layout = LAYOUTS[name]
    there = elements(of_layout)
    addresses = list(range(BASE - 3, max(there) + 9))
    located = {row[0]: row[1:] for row in locate(of_layout, addresses, rank).iter_rows()}
    for number, address in enumerate(addresses):
        if address not in there:
            assert number not in located
            continue
        fitting = [pair for pair in there[address] if pair[0].layer_index == rank]
        one, at = (fitting or there[address])[0]
        assert located[number] == expected(of_layout, one, at)


def test_addresses_at_the_ends_of_memory():
    assert locate(LAYOUTS["split"], [0, 2**64 - 1]).is_empty()


def test_axes_that_are_not_known_leave_only_the_layer():
    one = tensor(4, "kv", BASE, ((B, N, D), (N * D, D, 1)), None)
    (row,) = locate(layout([one]), [BASE + 8]).rows(named=True)
    assert row == {
        "store": 0, "layer_index": 4, "kv_group": 0, "part": None, "kv_block_id": None,
        "offset": None, "written_slot": None, "head": None,
    }  # fmt: skip


def test_a_layer_that_reads_another_layers_tensor_is_not_one_that_writes():
    first, second = packed("NHD", layers=2)
    shared = tensor(5, "kv", first.address, (first.shape, first.stride), first.axes)
    found = KvLayout(layout([shared, first, second]))
    assert found.layer_indices == [0, 1]


@pytest.mark.parametrize("tensors", [[], [tensor(0, "kv", BASE, ((0, 4), (4, 1)), None)]])
def test_a_layout_without_elements(tensors):
    found = KvLayout(layout(tensors))
    assert found.layer_indices == []
    assert locate(layout(tensors), [BASE]).is_empty()


def test_many_tensors_in_one_memory_are_looked_at_in_pieces(monkeypatch):
    addresses = list(range(BASE, BASE + 500))
    whole = locate(LAYOUTS["one storage"], addresses)
    monkeypatch.setattr(kv_layout, "_PAIRS", 6)
    assert locate(LAYOUTS["one storage"], addresses).equals(whole)
