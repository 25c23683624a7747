"""Which servers run together, in which order they are asked, and how each is started."""

from collections import Counter

import pytest

from kvtrace_cli.capture import overhead_arms
from kvtrace_cli.capture.gpus import Gpu
from kvtrace_cli.capture.model import Model, resolve_model
from kvtrace_cli.capture.overhead_arms import ARMS, find_arms
from kvtrace_cli.capture.overhead_memory import (
    ModelSize,
    asked_share,
    model_size,
    parse_used_mib,
    servers_that_fit,
)
from kvtrace_cli.capture.overhead_plan import OverheadPlan
from kvtrace_cli.config import GIB, EngineConfig, Weights
from kvtrace_cli.errors import ConfigError

FOUR = ("clean", "blocks", "steps", "writes")
H200 = Gpu("NVIDIA H200", "580.1", 143771, 143000, "9.0")


def plan(**changes):
    return OverheadPlan("Qwen3-14B", **changes)


def test_over_two_rounds_every_arm_is_asked_at_the_same_mean_place():
    orders = [plan().order(FOUR, 1, number) for number in range(1, 9)]
    for one, other in zip(orders[::2], orders[1::2], strict=True):
        assert one == other[::-1]
    places = Counter((name, order.index(name)) for order in orders for name in FOUR)
    assert set(places.values()) == {2}


def test_orders_come_from_the_seed_and_differ_between_starts():
    firsts = {tuple(plan().order(FOUR, start, 1)) for start in range(1, 9)}
    assert len(firsts) > 1
    assert plan().order(FOUR, 3, 2) == plan().order(FOUR, 3, 2)


def test_all_that_fit_run_together():
    (group,) = plan().groups(FOUR, 1, 4)
    assert sorted(group) == sorted(FOUR)


def test_one_after_another_in_another_order_each_start():
    drawn = [plan().groups(FOUR, start, 1) for start in range(1, 9)]
    assert all(sorted(name for (name,) in groups) == sorted(FOUR) for groups in drawn)
    assert len({tuple(map(tuple, groups)) for groups in drawn}) > 1


@pytest.mark.parametrize("at_once", [2, 3])
def test_groups_that_cannot_hold_all_have_a_clean_server_each(at_once):
    groups = plan().groups(FOUR, 1, at_once)
    assert all(group[0] == "clean" and len(group) <= at_once for group in groups)
    others = [name for group in groups for name in group[1:]]
    assert sorted(others) == ["blocks", "steps", "writes"]


def test_every_arm_is_asked_the_same_and_no_prompt_twice():
    first = list(plan().decode("1 2 8", 8))
    assert first == list(plan().decode("1 2 8", 8))
    prompts = {one.prompt_token_ids for one in [*first, *plan().decode("1 3 8", 8)]}
    assert len(prompts) == 16
    (long,) = plan(prefill=100).prefills("1 2", 1)
    assert (len(long.prompt_token_ids), long.max_tokens, long.stream) == (100, 1, True)


def test_the_server_holds_every_batch_and_a_prefill_in_one_step():
    config = plan(batches=(1, 24), arms=FOUR).run_config(163_840, 0.2)
    assert config.engine.max_num_seqs == 24
    assert config.engine.capture_sizes == (1, 2, 4, 8, 16, 24)
    assert config.engine.max_num_batched_tokens == 4096
    assert config.max_model_len == 5120
    assert config.engine.kv_cache_memory_bytes == GIB
    assert config.engine.arguments == ("--gpu-memory-utilization", "0.20")


def test_the_users_arguments_come_last_and_an_unknown_model_keeps_the_usual_cache():
    mine = EngineConfig(arguments=("--gpu-memory-utilization", "0.5"))
    config = plan(engine=mine).run_config(None, 0.2)
    assert config.engine.arguments[-1] == "0.5"
    assert config.engine.kv_cache_memory_bytes == EngineConfig.kv_cache_memory_bytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"starts": 0}, "--starts: found 0"),
        ({"rounds": 0}, "--rounds: found 0"),
        ({"tokens": 2}, "--tokens: found 2, expected 3"),
        ({"prefill": 1}, "--prefill: found 1"),
        ({"seed": -1}, "--seed: found -1"),
        ({"side_by_side": 0}, "--side-by-side: found 0"),
        ({"batches": ()}, "--batch: found nothing"),
        ({"batches": (1, 1)}, "--batch: found 1,1"),
    ],
)
def test_bad_values(changes, message):
    with pytest.raises(ConfigError, match=message):
        plan(**changes)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("clean", "nope"), "found 'nope', expected some of clean, "),
        (("clean", "blocks", "blocks"), "each arm once"),
        (("blocks",), "expected clean and others"),
    ],
)
def test_bad_arms(names, message):
    with pytest.raises(ConfigError, match=message):
        find_arms(names)


def test_the_cupti_arm_needs_a_real_engine():
    assert ARMS["cupti"].lacks(True) == "the emulated engine has no CUPTI"
    assert ARMS["cupti"].lacks(False) is None


def test_memcheck_says_what_it_lacks(monkeypatch):
    memcheck = ARMS["memcheck"]
    assert "real GPU" in memcheck.lacks(True)
    monkeypatch.setattr(overhead_arms.shutil, "which", lambda _name: None)
    assert "no compute-sanitizer in PATH" in memcheck.lacks(False)
    monkeypatch.setattr(overhead_arms.shutil, "which", lambda name: f"/bin/{name}")
    assert memcheck.lacks(False) is None


def test_four_servers_of_qwen3_14b_fit_on_an_h200():
    size = model_size(resolve_model("Qwen3-14B", Weights.DUMMY), "bfloat16")
    # 14.8 billion parameters but for the norms, two bytes each.
    assert size.weights == pytest.approx(2 * 14.768e9, rel=0.001)
    assert size.kv_token == 163_840
    cache = plan().run_config(size.kv_token, None).engine.kv_cache_memory_bytes
    assert cache == 2 * GIB
    assert servers_that_fit([H200], size, cache) == 4
    assert asked_share(4) == pytest.approx(0.2)
    assert asked_share(1) is None


def test_the_hub_name_of_a_model_whose_config_we_have_is_known_too():
    assert model_size(resolve_model("Qwen3-14B", Weights.AUTO), "bfloat16").kv_token == 163_840
    assert model_size(resolve_model("org/model", Weights.AUTO), "bfloat16") == ModelSize()


@pytest.mark.parametrize("text", ['{"num_experts": 8, "hidden_size": 8}', "{}", "[]", "no JSON"])
def test_of_other_models_nothing_is_known(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert model_size(Model(str(tmp_path), "m", Weights.DUMMY), "bfloat16") == ModelSize()


def test_how_many_fit_is_not_known_without_a_size_or_free_memory():
    assert servers_that_fit([], ModelSize(1, 1), GIB) is None
    assert servers_that_fit([H200], ModelSize(), GIB) is None
    assert servers_that_fit([H200], ModelSize(1, 1), None) is None
    assert servers_that_fit([H200], ModelSize(10**12, 1), GIB) == 1


def test_the_memory_of_a_server_is_that_of_its_processes():
    text = "10, 30000\n11, 512\n12, 7\n13, [N/A]\nno line of ours\n"
    assert parse_used_mib(text, {10, 11, 13}) == 30512
    assert parse_used_mib(text, {99}) is None
    assert parse_used_mib("", {10}) is None
