"""Whether two runs can be compared at all, and which settings differ."""

from dataclasses import replace

import pytest
from builders import layout, request, started, step
from diff_scenes import (
    MANIFEST,
    compared,
    decisive,
    prompt_and_replays,
    side,
    with_manifest,
)

from kvtrace_cli.analysis.diff_model import Aspect, DiffVerdict
from kvtrace_cli.analysis.diff_settings import ALLOWABLE

SAME, INCONCLUSIVE = DiffVerdict.SAME, DiffVerdict.INCONCLUSIVE


@pytest.fixture
def base(tmp_path):
    return side(tmp_path / "base", prompt_and_replays())


def with_steps(path, rank_count=1, **options):
    lines = [started(ranks={"tensor": rank_count - 1}), step(1, requests=[("a", 1, 0)])]
    return side(path, prompt_and_replays(), steps=lines, **options)


def other_sides(tmp_path):
    """Yield (rule, first side, second side) of each thing that makes a comparison meaningless."""
    trace = prompt_and_replays()
    plain = side(tmp_path / "plain", trace)
    steps = with_steps(tmp_path / "steps", layout=layout(4))
    yield (
        "engine",
        plain,
        side(tmp_path / "engine", trace, manifest=MANIFEST | {"engine": "sglang"}),
    )
    yield "emulated", plain, replace(plain, emulated=True)
    yield "model-shape", steps, with_steps(tmp_path / "layers", layout=layout(5))
    yield "model-shape", steps, with_steps(tmp_path / "heads", layout=layout(4, heads=4))
    other_model = with_manifest() | {"model": "Llama-3"}
    yield "model-shape", plain, side(tmp_path / "model", trace, manifest=other_model)
    ranks = with_steps(tmp_path / "ranks", rank_count=2, layout=layout(4))
    yield "tensor-parallel", steps, ranks
    asked = [request(max_tokens=9)]
    yield "requests", plain, side(tmp_path / "tokens", trace, requests=asked)
    asked = [request(prompt_token_ids=[1])]
    yield "requests", plain, side(tmp_path / "prompt", trace, requests=asked)
    at_once = with_manifest(requests={"concurrency": 4})
    yield "requests", plain, side(tmp_path / "at-once", trace, manifest=at_once)
    writes = with_manifest(recording={"record": "writes"})
    yield "recording", plain, side(tmp_path / "writes", trace, manifest=writes)
    kernels = with_manifest(recording={"kernels": ["concat_and_cache_mla_kernel"]})
    yield "recording", plain, side(tmp_path / "kernels", trace, manifest=kernels)
    yield "recording", steps, plain


def test_what_makes_a_comparison_meaningless_is_inconclusive_unless_allowed(tmp_path):
    for rule, before, after in other_sides(tmp_path):
        found = compared(before, after)
        assert found.verdict is INCONCLUSIVE, rule
        assert rule in [one[0] for one in decisive(found)]
        assert "Structure and times were not compared." in found.notes
        assert rule not in found.checks
        allowed = compared(before, after, allowed=(rule,), with_times=False)
        assert allowed.verdict is not INCONCLUSIVE, rule
        assert any(one.rule == rule and not one.decides for one in allowed.differences)


def test_more_than_the_first_side_recorded_is_no_hindrance(tmp_path, base):
    found = compared(base, with_steps(tmp_path / "b"))
    assert found.verdict is SAME
    assert any("Rows were not compared" in note for note in found.notes)


@pytest.mark.parametrize(
    ("rule", "manifest"),
    [
        ("setting-vllm-version", MANIFEST | {"versions": {"vllm": "0.27.0", "torch": "2.11.0"}}),
        ("setting-gpus", MANIFEST | {"gpus": [{"name": "B200", "driver_version": "580.1"}]}),
        ("setting-driver-version", MANIFEST | {"gpus": [{"name": "NVIDIA H200"}]}),
        ("setting-capture-sizes", with_manifest(engine={"capture_sizes": [8]})),
        ("setting-flash-attention", with_manifest(engine={"flash_attention": 2})),
        ("setting-engine-arguments", with_manifest(engine={"arguments": ["--enforce-eager"]})),
    ],
)
def test_what_people_compare_on_purpose_is_listed_only(tmp_path, base, rule, manifest):
    found = compared(base, side(tmp_path / "b", prompt_and_replays(), manifest=manifest))
    assert found.verdict is SAME
    (difference,) = found.differences
    assert (difference.aspect, difference.rule) == (Aspect.COMPARABILITY, rule)
    assert difference.before != difference.after


def with_attention(*backends, versions=()):
    return MANIFEST | {
        "attention": {"backends": list(backends), "flash_attention_versions": list(versions)}
    }


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        (with_attention("FLASH_ATTN", versions=[2]), "FLASH_ATTN, FlashAttention 2"),
        (with_attention("FLASHINFER"), "FLASHINFER"),
        (
            with_attention("FLASH_ATTN", "FLEX_ATTENTION", versions=[2, 3]),
            "FLASH_ATTN and FLEX_ATTENTION, FlashAttention 2 and 3",
        ),
        (MANIFEST, "not known"),
        (MANIFEST | {"attention": None}, "not known"),
        (MANIFEST | {"attention": {"backends": "FLASH_ATTN"}}, "not known"),
    ],
)
def test_another_attention_than_the_first_sides_is_listed_only(tmp_path, manifest, text):
    """Neither side asked for a version, so nothing else tells of it."""
    before = side(
        tmp_path / "a",
        prompt_and_replays(),
        manifest=with_attention("FLASH_ATTN", versions=[3]),
    )
    found = compared(before, side(tmp_path / "b", prompt_and_replays(), manifest=manifest))
    assert found.verdict is SAME
    (difference,) = found.differences
    assert difference.rule == "setting-attention"
    assert (difference.before, difference.after) == ("FLASH_ATTN, FlashAttention 3", text)


def test_an_attention_that_no_side_knows_is_not_listed(base):
    """One side is a summary of before it was recorded."""
    listed = {name: value for name, value in base.settings.listed.items() if name != "attention"}
    older = replace(base, settings=replace(base.settings, listed=listed))
    assert compared(older, base).differences == ()
    assert compared(base, older).differences == ()


def test_engine_arguments_are_shown_as_they_are_typed(tmp_path, base):
    typed = ["--hf-overrides", '{"a": 1}']
    after = with_manifest(engine={"arguments": typed})
    (found,) = compared(
        base, side(tmp_path / "b", prompt_and_replays(), manifest=after)
    ).differences
    assert found.after == "--hf-overrides '{\"a\": 1}'"


def test_the_model_runner_is_listed_only(tmp_path):
    before, after = (
        side(
            tmp_path / runner,
            prompt_and_replays(),
            steps=[started(model_runner=runner), step(1, requests=[("a", 1, 0)])],
        )
        for runner in ("v1", "v2")
    )
    found = compared(before, after)
    assert found.verdict is SAME
    assert found.differences[0].text == "model runner: v1, then v2."


def test_a_model_by_another_name_with_the_same_shape_is_listed_only(tmp_path):
    before = with_steps(tmp_path / "a", layout=layout(4))
    manifest = MANIFEST | {"model": "my-finetune"}
    found = compared(before, with_steps(tmp_path / "b", layout=layout(4), manifest=manifest))
    assert (found.verdict, found.differences[0].rule) == (SAME, "setting-model")


def broken_sides(base):
    return {
        "incomplete": replace(base, incomplete=True),
        "inconclusive": replace(base, verdict="inconclusive", reasons=("Nothing ran.",)),
        "mismatch": replace(base, verdict="mismatch", reasons=("3 blocks have no event.",)),
    }


@pytest.mark.parametrize("found", ["incomplete", "inconclusive", "mismatch"])
def test_a_first_side_that_proves_nothing_is_nothing_to_compare_with(base, found):
    result = compared(broken_sides(base)[found], base, allowed=ALLOWABLE)
    assert result.verdict is INCONCLUSIVE
    assert result.differences[0].rule == "run-verdict"
    assert found in result.differences[0].before


@pytest.mark.parametrize("found", ["incomplete", "inconclusive"])
def test_a_second_side_that_is_not_whole_is_never_the_same(base, found):
    result = compared(base, broken_sides(base)[found], allowed=ALLOWABLE)
    assert result.verdict is INCONCLUSIVE


def test_two_broken_sides_are_not_the_same(base):
    broken = broken_sides(base)["mismatch"]
    assert compared(broken, broken).verdict is INCONCLUSIVE


def test_a_new_mismatch_is_a_difference_that_says_why(base):
    result = compared(base, broken_sides(base)["mismatch"])
    assert result.verdict is DiffVerdict.DIFFERS
    assert result.differences[0].text == (
        "what reconciling concluded: agrees, then mismatch (3 blocks have no event)."
    )


def old(base):
    return replace(base, schema_version=1, settings=None, structure=None, times=None)


def test_an_old_summary_is_compared_only_if_allowed_and_says_what_it_lacks(base):
    found = compared(old(base), base)
    assert found.verdict is INCONCLUSIVE
    assert "no settings and hardly any structure" in found.differences[0].where
    found = compared(old(base), base, allowed=("schema",))
    assert found.verdict is SAME
    assert {"kernels", "graphs"} <= set(found.checks)
    assert not {"requests", "recording", "course"} & set(found.checks)


def test_what_an_old_summary_has_is_compared(tmp_path, base):
    after = side(tmp_path / "b", prompt_and_replays(8))
    found = compared(old(base), after, allowed=("schema",))
    assert decisive(found) == [
        (
            "graphs",
            "graphs of the measured requests",
            "7 replays of a 4-node graph",
            "8 replays of a 4-node graph",
        )
    ]
