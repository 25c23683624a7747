import json
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
from fake_runners import (
    Backend,
    FullAttentionSpec,
    Tensor,
    V2Runner,
    as_module,
    cache_config,
    fresh_class,
    group,
    layer,
)

from kvtrace_cli.engine_site.kvtrace_engine_plugin import v2_hooks
from kvtrace_cli.engine_site.kvtrace_engine_plugin.layout import block_sizes, describe_layout
from kvtrace_cli.engine_site.kvtrace_engine_plugin.session import Session

ATTN = "model.layers.0.self_attn.attn"


def spec(name="FullAttentionSpec", **fields):
    return type(name, (FullAttentionSpec,), fields)()


def backend(shape, name="FLASH_ATTN"):
    """An attention backend whose cache has this shape, of blocks b, tokens n, heads h, size d."""

    class OfVersion:
        @staticmethod
        def get_name():
            return name

        @staticmethod
        def get_kv_cache_shape(b, n, h, d, cache_dtype_str="auto"):  # noqa: ARG004
            return shape(b, n, h, d)

    return OfVersion


def runner(layers, *groups, num_blocks=100, **attributes):
    return SimpleNamespace(
        kv_cache_config=cache_config(*(groups or (group(*layers),)), num_blocks=num_blocks),
        compilation_config=SimpleNamespace(static_forward_context=layers),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        **attributes,
    )


def only_tensor(layers, *groups, **attributes):
    (tensor,) = describe_layout(runner(layers, *groups, **attributes))["tensors"]
    return tensor


def axes(shape, of_backend, of_spec=None, **attributes):
    layers = {ATTN: layer(Tensor(shape), of_backend)}
    return only_tensor(layers, group(ATTN, spec=of_spec), **attributes)["axes"]


def test_a_layer_is_described_as_its_tensor_is():
    layout = describe_layout(runner({ATTN: layer(Tensor((100, 8, 16, 256), 0x7000))}))
    assert layout == {
        "num_blocks": 100,
        "null_block": 0,
        "groups": [{"block_size": 16, "kernel_block_size": 16, "layer_names": [ATTN]}],
        "tensors": [
            {
                "layer_name": ATTN,
                "layer_index": 0,
                "group": 0,
                "role": "kv",
                "address": 0x7000,
                "shape": [100, 8, 16, 256],
                "stride": [32768, 4096, 256, 1],
                "axes": ["block", "head", "offset", "kv_dim"],
                "dtype": "bfloat16",
                "element_size": 2,
            }
        ],
    }
    json.dumps(layout)


@pytest.mark.parametrize(
    ("version", "shape", "of_backend", "expected"),
    [
        (
            "0.20",
            (2, 100, 16, 8, 128),
            backend(lambda b, n, h, d: (2, b, n, h, d)),
            ["kv", "block", "offset", "head", "dim"],
        ),
        (
            "0.23",
            (100, 2, 16, 8, 128),
            backend(lambda b, n, h, d: (b, 2, n, h, d)),
            ["block", "kv", "offset", "head", "dim"],
        ),
        ("0.26", (100, 8, 16, 256), Backend, ["block", "head", "offset", "kv_dim"]),
    ],
)
def test_the_order_of_axes_is_asked_of_the_version(version, shape, of_backend, expected):
    assert axes(shape, of_backend) == expected, version


def test_sizes_that_are_alike_do_not_confuse_the_axes():
    """Two blocks, two heads, 16 tokens, head size 16: only the backend can tell which is which."""
    of_backend = backend(lambda b, n, h, d: (2, b, n, h, d))
    tiny = spec(num_kv_heads=2, head_size=16)
    layers = {ATTN: layer(Tensor((2, 2, 16, 2, 16)), of_backend)}
    found = only_tensor(layers, group(ATTN, spec=tiny), num_blocks=2)["axes"]
    assert found == ["kv", "block", "offset", "head", "dim"]


def test_latent_attention_has_neither_heads_nor_values():
    latent = spec("MLAAttentionSpec", num_kv_heads=1, head_size=576)
    found = axes((100, 16, 576), backend(lambda b, n, _h, d: (b, n, d)), latent)
    assert found == ["block", "offset", "dim"]


def test_a_backend_that_takes_some_block_sizes_only_is_asked_for_those():
    def shape(b, n, h, d):
        if n != 64 or h != 1:
            raise AssertionError("unsupported")
        return (b, n, d)

    latent = spec("MLAAttentionSpec", num_kv_heads=1, head_size=576, block_size=64)
    assert axes((100, 64, 576), backend(shape), latent) == ["block", "offset", "dim"]


def test_from_0_32_on_the_order_is_one_for_all_backends(monkeypatch):
    flash = SimpleNamespace(get_name=lambda: "FLASH_ATTN")  # it has no shape to tell
    assert axes((100, 8, 16, 256), flash) is None
    name = "vllm.v1.kv_cache_layout"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert axes((100, 8, 16, 256), flash) == ["block", "head", "offset", "kv_dim"]
    latent = spec("MLAAttentionSpec", num_kv_heads=1, head_size=576)
    assert axes((100, 1, 16, 576), flash, latent) == ["block", "head", "offset", "dim"]
    # Four equal-looking dimensions in another order are not taken for these.
    assert axes((100, 16, 8, 256), flash) is None


@pytest.mark.parametrize(
    ("shape", "of_backend", "of_spec"),
    [
        # Arranges K and V in its own way inside of the same shape.
        ((100, 8, 16, 256), backend(lambda b, n, h, d: (b, h, n, 2 * d), "CPU_ATTN"), None),
        # K and V of unlike sizes, so not two halves.
        ((100, 8, 16, 192), backend(lambda b, n, h, d: (b, h, n, d + 64)), spec(head_size_v=64)),
        # Packed in a way that only its kernels know.
        ((100, 8, 16, 136), backend(lambda b, n, h, _d: (b, h, n, 136)), None),
        ((100, 16, 8, 16, 16), backend(lambda b, n, h, d: (b, n, h, d // 8, 8)), None),
        # Not the shape that the backend says.
        ((100, 8, 16, 256), backend(lambda b, n, h, d: (b, n, h, 2 * d)), None),
        ((50, 8, 16, 256), Backend, None),
        ((100, 8, 16, 256), None, None),
        ((100, 8, 16, 256), SimpleNamespace(get_name=lambda: "NEW"), None),
    ],
)
def test_axes_that_cannot_be_told_are_null(shape, of_backend, of_spec):
    assert axes(shape, of_backend, of_spec) is None


@pytest.mark.parametrize("attribute", ["kernel_block_sizes", "_kernel_block_sizes"])
def test_kernels_may_have_smaller_blocks_than_the_scheduler(attribute):
    of_spec = spec(block_size=64)
    layers = {ATTN: layer(Tensor((400, 8, 16, 256)))}
    layout = describe_layout(runner(layers, group(ATTN, spec=of_spec), **{attribute: [16]}))
    (one,) = layout["groups"]
    assert (layout["num_blocks"], one["block_size"], one["kernel_block_size"]) == (100, 64, 16)
    assert layout["tensors"][0]["axes"] == ["block", "head", "offset", "kv_dim"]


def test_a_runner_that_keeps_no_kernel_block_sizes_has_them_in_its_block_tables():
    of_spec = spec(block_size=64)
    layers = {ATTN: layer(Tensor((400, 8, 16, 256)))}
    tables = SimpleNamespace(block_table=[SimpleNamespace(block_size=16)])
    layout = describe_layout(runner(layers, group(ATTN, spec=of_spec), input_batch=tables))
    assert layout["groups"][0]["kernel_block_size"] == 16


def test_each_group_has_its_layers_and_a_mamba_state_is_no_kv_tensor():
    layers = {
        "model.layers.0.attn": layer(Tensor((100, 8, 16, 256))),
        "model.layers.1.mixer": layer((Tensor((100, 3)), Tensor((100, 4)))),
        "model.layers.2.attn": layer(Tensor((100, 8, 32, 256))),
    }
    groups = (
        group("model.layers.0.attn"),
        group("model.layers.1.mixer", spec=spec("MambaSpec", block_size=400)),
        group("model.layers.2.attn", spec=spec(block_size=32)),
        # Appended by the first runner for layers without a cache: no request has blocks in it.
        group("model.layers.9.attn", spec=spec("EncoderOnlyAttentionSpec")),
    )
    one = runner(layers, *groups)
    assert block_sizes(one.kv_cache_config) == [16, 400, 32]
    layout = describe_layout(one)
    assert [one["block_size"] for one in layout["groups"]] == [16, 400, 32]
    assert [(one["layer_index"], one["group"]) for one in layout["tensors"]] == [(0, 0), (2, 2)]


def test_a_group_of_layers_of_several_sizes_has_a_spec_for_each():
    layers = {
        "model.layers.0.attn": layer(Tensor((100, 8, 16, 256))),
        "model.layers.1.attn": layer(Tensor((100, 4, 16, 128))),
    }
    specs = {
        "model.layers.0.attn": spec(),
        "model.layers.1.attn": spec(num_kv_heads=4, head_size=64),
    }
    uniform = spec("UniformTypeKVCacheSpecs", kv_cache_specs=specs)
    layout = describe_layout(runner(layers, group(*layers, spec=uniform)))
    assert [one["axes"][3] for one in layout["tensors"]] == ["kv_dim", "kv_dim"]


class SlidingWindowSpec:
    block_size, num_kv_heads, head_size, sliding_window = 16, 8, 128, 1024


class ChunkedLocalAttentionSpec:
    block_size, num_kv_heads, head_size, attention_chunk_size = 16, 8, 128, 8192


class CustomSpec:
    block_size, num_kv_heads, head_size = 16, 8, 128


def like(base, name, **fields):
    return type(name, (base,), fields)()


def uniform(*specs):
    each = {f"model.layers.{number}.attn": one for number, one in enumerate(specs)}
    return spec("UniformTypeKVCacheSpecs", kv_cache_specs=each)


UNKNOWN = {"unknown_window": True}


@pytest.mark.parametrize(
    ("of_spec", "expected"),
    [
        (SlidingWindowSpec(), {"sliding_window": 1024}),
        (like(SlidingWindowSpec, "SlidingWindowMLASpec"), {"sliding_window": 1024}),
        (ChunkedLocalAttentionSpec(), {"attention_chunk_size": 8192}),
        # Layers with a window whose blocks are kept, as without the hybrid allocator.
        (spec(sliding_window=1024, attention_chunk_size=None), {}),
        (spec("RSWASpec", rswa_window=128), UNKNOWN),
        (CustomSpec(), UNKNOWN),
        (uniform(SlidingWindowSpec(), like(SlidingWindowSpec, "Other")), {"sliding_window": 1024}),
        (uniform(spec(), spec(sliding_window=1024)), {}),
        (uniform(spec(), SlidingWindowSpec()), UNKNOWN),
    ],
)
def test_a_group_says_what_the_engine_takes_back_early(of_spec, expected):
    layers = {f"model.layers.{number}.attn": layer(None) for number in range(2)}
    (found,) = describe_layout(runner(layers, group(*layers, spec=of_spec)))["groups"]
    for name in ("block_size", "kernel_block_size", "layer_names"):
        del found[name]
    assert found == expected


@pytest.mark.parametrize("cache", [[Tensor((100, 8, 16, 256))], (Tensor((100, 8, 16, 256)),)])
def test_a_cache_in_a_list_of_one_is_that_tensor(cache):
    assert only_tensor({ATTN: layer(cache)})["shape"] == [100, 8, 16, 256]


@pytest.mark.parametrize("cache", [Tensor((0,)), [], None])
def test_a_layer_that_has_no_memory_has_no_tensor(cache):
    assert describe_layout(runner({ATTN: layer(cache)}))["tensors"] == []


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["model.layers.7.self_attn.attn"], [7]),
        (["transformer.h.3.attn"], [3]),
        (["first.attn", "second.attn"], [0, 1]),
    ],
)
def test_a_layers_number_is_in_its_name_or_it_is_its_place(names, expected):
    layers = {name: layer(Tensor((100, 8, 16, 256))) for name in names}
    assert [one["layer_index"] for one in describe_layout(runner(layers))["tensors"]] == expected


@pytest.fixture
def scaled(tmp_path):
    """A hooked runner whose layer has no scales yet."""
    quantised = spec(kv_quant_mode=SimpleNamespace(name="FP8", is_per_token_head=True))
    quantised.cache_dtype_str = "auto"  # the fake backend takes no other
    attn = layer(Tensor((100, 8, 16, 256)), _k_scale_cache=None, _v_scale_cache=None)
    runner_class = fresh_class(V2Runner)
    v2_hooks.install(Session(str(tmp_path), None, "v2"), as_module(runner_class))
    one = runner_class([0])
    one.compilation_config.static_forward_context = {ATTN: attn}
    one.initialize_kv_cache(cache_config(group(ATTN, spec=quantised)))
    return one


def test_a_cache_for_profiling_may_go_before_it_had_its_scales(scaled, tmp_path):
    del scaled.kv_cache_config
    scaled._dummy_run(1)
    (path,) = tmp_path.glob("*.steps.jsonl")
    assert "failed" not in path.read_text()


def test_scales_that_a_first_pass_makes_are_in_the_layout_from_then_on(scaled, tmp_path):
    attn = scaled.compilation_config.static_forward_context[ATTN]
    path = tmp_path / f"{os.getpid()}.layout.json"

    def described():
        tensors = json.loads(path.read_text())["tensors"]
        return [(one["role"], one["element_size"], one["axes"]) for one in tensors]

    packed = ("kv", 2, ["block", "head", "offset", "kv_dim"])
    assert described() == [packed]
    attn.impl._k_scale_cache = Tensor((100, 16, 8), element_size=4)
    attn.impl._v_scale_cache = Tensor((100, 16, 8), element_size=4)
    scaled._dummy_run(1)
    each = ["block", "offset", "head"]
    assert described() == [packed, ("k_scale", 4, each), ("v_scale", 4, each)]
