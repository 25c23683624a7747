"""What the emulated engine takes from a model's config.json, and where that puts its KV tensors."""

import json
from itertools import pairwise

import pytest
from emulated import ROOT

from kvtrace_cli.emulator.kv_cache import KvCache
from kvtrace_cli.emulator.model_shape import ModelShape, read_shape
from kvtrace_cli.errors import ConfigError

QWEN = ROOT / "kvtrace_cli/data/qwen3-14b"
CONFIG = json.loads((QWEN / "config.json").read_text())


def cache(num_blocks):
    return KvCache(
        layers=40,
        kv_heads=8,
        head_dim=128,
        dtype="bfloat16",
        element_size=2,
        num_blocks=num_blocks,
        block_size=16,
    )


def written(directory, **changes):
    config = {name: value for name, value in (CONFIG | changes).items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_the_shape_of_the_model_we_ship():
    assert read_shape(QWEN) == ModelShape(40, 151936, 8, 128, "bfloat16")


def test_a_head_whose_size_is_not_told_is_its_part_of_the_hidden_size(tmp_path):
    assert read_shape(written(tmp_path, head_dim=None, hidden_size=4096)).head_dim == 102
    assert read_shape(written(tmp_path, torch_dtype=None, dtype="float32")).element_size == 4


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"num_hidden_layers": None}, "KeyError('num_hidden_layers')"),
        ({"num_key_value_heads": None}, "KeyError('num_key_value_heads')"),
        ({"head_dim": None, "num_attention_heads": 0}, "ZeroDivisionError"),
        ({"torch_dtype": "int3"}, "torch_dtype: found 'int3', expected bfloat16"),
    ],
)
def test_a_config_that_lacks_something_is_refused_in_one_sentence(changes, found, tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_shape(written(tmp_path, **changes))
    assert str(tmp_path / "config.json") in str(caught.value)
    assert found in str(caught.value)


def test_tensors_have_the_layout_of_vllm_and_hold_as_many_bytes_as_a_token_needs():
    # 2 x 8 heads x 128 numbers of 2 bytes, the 4,096 bytes that were seen on an H200.
    assert (cache(10).offset_stride, cache(10).block_stride) == (4096, 65536)
    first, *_, last = cache(10).layout()["tensors"]
    assert first["shape"] == [10, 8, 16, 256]
    assert first["stride"] == [32768, 256, 2048, 1]
    assert first["axes"] == ["block", "head", "offset", "kv_dim"]
    assert cache(10).value_address(0) - first["address"] == 256
    assert last["layer_name"] == "model.layers.39.self_attn.attn"


@pytest.mark.parametrize("num_blocks", [2, 33, 12_000])
def test_a_slot_of_twice_the_last_number_is_still_in_no_other_tensor(num_blocks):
    tensors = cache(num_blocks).layout()["tensors"]
    bytes_of_tensor = num_blocks * cache(num_blocks).block_stride
    addresses = [tensor["address"] for tensor in tensors]
    gaps = [late - early for early, late in pairwise(addresses)]
    assert min(gaps) >= 2 * bytes_of_tensor
    assert addresses[-1] + 2 * bytes_of_tensor < 1 << 47
