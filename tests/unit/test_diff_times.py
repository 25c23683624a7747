"""Times of two runs: a regression is past the threshold and past the noise."""

import random
from dataclasses import replace

import pytest
from builders import request
from diff_scenes import compared, decisive, prompt_and_replays, side

from kvtrace_cli.analysis.diff_model import Aspect, DiffVerdict
from kvtrace_cli.analysis.diff_times import compare_times
from kvtrace_cli.analysis.pass_times import BETWEEN_TOKENS, GAP, GPU_CLOCK, INTERVAL, SPAN
from kvtrace_cli.analysis.run_facts import Figure, LayerMedians, Times

REPLAY = "replay of 4, grid 1x1x1"
SHOWN = "replay of 4, grid 1"


def samples(middle, spread=0.01, count=50):
    source = random.Random(7)
    return tuple(middle * (1 + spread * source.uniform(-1, 1)) for _ in range(count))


def times(*figures, layers=()):
    return Times(
        tuple(Figure(name, of, 4, GPU_CLOCK, len(s), s) for name, of, s in figures), layers
    )


def layers(*medians, noise=0.01):
    lows, highs = (tuple(factor * m for m in medians) for factor in (1 - noise, 1 + noise))
    return LayerMedians(REPLAY, 50, medians, lows, highs)


def one(middle, name=SPAN, **options):
    return times((name, REPLAY, samples(middle, **options)))


def regressed(before, after, limit=5.0):
    found, _ = compare_times(before, after, limit)
    return [compared.regressed for compared in found]


def test_a_clear_slowdown_past_the_threshold_is_a_regression():
    (found,), notes = compare_times(one(8.0), one(9.0), 5.0)
    assert found.regressed
    assert (found.name, found.unit, found.clock) == (f"{SPAN}, {SHOWN}", "ms", GPU_CLOCK)
    assert found.change_percent == pytest.approx(12.5, abs=0.5)
    assert found.low_percent <= found.change_percent <= found.high_percent
    assert found.samples == (50, 50)
    assert notes == ()


def test_a_slowdown_within_the_threshold_is_none():
    assert regressed(one(8.0), one(8.3)) == [False]
    assert regressed(one(8.0), one(8.3), limit=2.0) == [True]


def test_faster_is_never_a_failure():
    assert regressed(one(8.0), one(4.0), limit=0.0) == [False]


def test_a_change_within_the_noise_is_none():
    assert regressed(one(8.0, spread=0.8, count=8), one(9.0, spread=0.8, count=8)) == [False]


def test_the_same_samples_give_the_same_interval():
    first, second = (compare_times(one(8.0), one(8.1), 5.0) for _ in range(2))
    assert first == second


def test_few_samples_are_compared_and_not_judged():
    (found,), notes = compare_times(one(8.0, count=4), one(20.0, count=4), 5.0)
    assert not found.regressed
    assert found.has_few_samples
    assert notes == (f"Too few samples to judge: {SPAN}, {SHOWN}.",)


def test_a_gap_counts_by_what_it_adds_to_a_pass():
    """0.1 ms more of 8.7 ms is little, though it is 15 % of the gap."""
    before = times((SPAN, REPLAY, samples(8.0)), (GAP, REPLAY, samples(0.66)))
    for gap, expected in ((0.76, False), (1.4, True)):
        after = times((SPAN, REPLAY, samples(8.0)), (GAP, REPLAY, samples(gap)))
        assert regressed(before, after) == [False, expected]


def test_passes_of_as_many_launches_are_compared_if_none_is_of_the_same_sort():
    before = times((SPAN, REPLAY, samples(8.0)))
    after = times((SPAN, "replay of 4, grid 8x1x1", samples(8.0)))
    (found,), _ = compare_times(before, after, 5.0)
    assert found.name == f"{SPAN}, {SHOWN} against replay of 4, grid 8"


def test_what_only_one_side_has_is_said():
    found, notes = compare_times(one(8.0), times(), 5.0)
    assert found == ()
    assert notes == (f"{SPAN}, {SHOWN}: only the first side has it.",)


def test_a_median_that_is_not_positive_is_no_base():
    found, notes = compare_times(one(-1.0), one(1.0), 5.0)
    assert found == ()
    assert "no positive median" in notes[0]


def test_the_layer_that_changed_most_is_named():
    before, after = times(layers=(layers(0.2, 0.2, 0.2),)), times(layers=(layers(0.2, 0.3, 0.19),))
    _, notes = compare_times(before, after, 5.0)
    assert notes == (f"Of a {SHOWN}, layer 1 to 2 changed most: median 0.200 ms, then 0.300 ms.",)


@pytest.fixture
def base(tmp_path):
    asked = [request(token_host_monotonic_ns=[1_000_000 * n for n in range(8)])]
    return side(tmp_path / "base", prompt_and_replays(), requests=asked)


def test_a_summary_has_each_figure_on_one_clock(base):
    figures = {(one.name, one.of): one for one in base.times.figures}
    span = figures[SPAN, REPLAY]
    assert (span.count, span.clock, span.samples) == (7, GPU_CLOCK, (0.6,) * 7)
    assert figures[GAP, REPLAY].samples == (0.2,) * 6
    assert figures[INTERVAL, REPLAY].samples == (0.2,) * 7
    tokens = figures[BETWEEN_TOKENS, "streamed requests"]
    assert (tokens.clock, tokens.samples) == ("CLOCK_MONOTONIC", (1.0,) * 7)
    assert base.times.layer_medians == (LayerMedians(REPLAY, 7, *[(0.2,) * 3] * 3),)


def test_samples_are_bounded_and_taken_evenly(tmp_path):
    found = side(tmp_path / "long", prompt_and_replays(600))
    span = found.times.figures[0]
    assert (span.count, len(span.samples)) == (600, 128)


def with_layers(base, *found):
    return replace(base, times=replace(base.times, layer_medians=found))


def test_one_layer_that_is_slower_is_found_though_the_pass_is_not(base):
    before = with_layers(base, layers(0.2, 0.2, 0.2))
    after = with_layers(base, layers(0.2, 0.23, 0.4))
    where = f"layer 1 to 2 of a {SHOWN}, and 1 more"
    found = compared(before, after)
    assert decisive(found) == [("each-layer", where, "0.200 ms", "0.230 ms")]
    assert "each-layer" in compared(before, before).checks
    noisy = with_layers(base, layers(0.2, 0.23, 0.2, noise=0.2))
    assert compared(before, noisy).verdict is DiffVerdict.SAME
    assert compared(after, before).verdict is DiffVerdict.SAME, "faster is no failure"


WIDER = "replay of 4, grid 8x1x1"


def with_passes_of(base, sort):
    """Return the same times, of passes of another sort."""
    return replace(
        base,
        times=Times(
            tuple(replace(one, of=sort) for one in base.times.figures),
            tuple(replace(one, of=sort) for one in base.times.layer_medians),
        ),
    )


def test_layers_are_compared_of_the_passes_whose_figures_are(base):
    before = with_layers(base, layers(0.2, 0.2, 0.2))
    after = with_passes_of(with_layers(base, layers(0.2, 0.4, 0.2)), WIDER)
    where = f"layer 1 to 2 of a {SHOWN} against replay of 4, grid 8"
    assert decisive(compared(before, after)) == [("each-layer", where, "0.200 ms", "0.400 ms")]
    assert "each-layer" in compared(before, with_passes_of(before, WIDER)).checks


def test_layers_that_were_not_compared_are_no_check(base):
    assert "each-layer" in compared(base, base).checks
    assert "each-layer" not in compared(base, with_layers(base)).checks
    assert "each-layer" not in compared(base, slowed(base)).checks, "the usual layer is slower"


def test_a_figure_of_few_samples_is_no_check(base):
    few = replace(
        base,
        times=replace(
            base.times,
            figures=tuple(replace(one, samples=one.samples[:4]) for one in base.times.figures),
        ),
    )
    assert "first-to-last-layer" in compared(base, base).checks
    assert "first-to-last-layer" not in compared(base, few).checks
    assert compared(base, few).verdict is DiffVerdict.SAME


def test_the_interval_of_a_layers_median_widens_with_fewer_passes(tmp_path):
    widths = []
    for count in (6, 100):
        trace = prompt_and_replays(count)
        source = random.Random(1)
        for event in trace.events:
            event["gpu_globaltimer_ns"] += source.randrange(50_000)
        (found,) = side(tmp_path / str(count), trace).times.layer_medians
        assert found.passes == count
        ordered = zip(found.lows, found.medians, found.highs, strict=True)
        assert all(low <= median <= high for low, median, high in ordered)
        widths.append(found.highs[0] - found.lows[0])
    assert widths[1] < widths[0] / 2


def slowed(base, factor=2.0):
    figures = tuple(
        replace(one, samples=tuple(factor * sample for sample in one.samples))
        for one in base.times.figures
    )
    return replace(base, times=replace(base.times, figures=figures))


def test_a_slower_run_differs_and_names_each_figure(base):
    found = compared(base, slowed(base))
    assert found.verdict is DiffVerdict.DIFFERS
    assert {one.aspect for one in found.differences} == {Aspect.TIME}
    rules = [rule for rule, *_ in decisive(found)]
    assert rules == ["first-to-last-layer", "gap-to-the-next", "layer-to-layer", "token-to-token"]
    assert not set(rules) & set(found.checks)
    assert compared(base, slowed(base), max_regression=150).verdict is DiffVerdict.SAME


def test_times_can_be_left_out(base):
    found = compared(base, slowed(base), with_times=False)
    assert (found.verdict, found.times) == (DiffVerdict.SAME, ())
    assert "Times were not compared." in found.notes


def test_times_of_an_emulated_run_decide_nothing(base):
    before, after = (replace(one, emulated=True) for one in (base, slowed(base)))
    found = compared(before, after)
    assert found.verdict is DiffVerdict.SAME
    assert found.times
    assert found.emulated
    assert "first-to-last-layer" not in compared(before, before).checks


def test_gaps_of_requests_that_ran_at_once_decide_only_if_asked(base):
    at_once = replace(base, structure=replace(base.structure, all_alone=False))
    rules = [rule for rule, *_ in decisive(compared(at_once, slowed(at_once)))]
    assert rules == ["first-to-last-layer", "layer-to-layer"]
    checks = compared(at_once, at_once).checks
    assert "first-to-last-layer" in checks
    assert "gap-to-the-next" not in checks
    strict = [rule for rule, *_ in decisive(compared(at_once, slowed(at_once), strict=True))]
    assert "gap-to-the-next" in strict
