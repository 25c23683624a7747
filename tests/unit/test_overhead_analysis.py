"""What an arm costs: known effects, spread, drift, and how often the interval is right."""

import random

import pytest

from kvtrace_cli.analysis.overhead import bar_verdict, interval, overhead, student
from kvtrace_cli.analysis.overhead_model import BarVerdict, Cost, Sample

ITL = "ITL, batch 1, ms"
ARMS = ("clean", "blocks")
ROUND_S = 10.0


def measured(
    effect, *, starts=3, rounds=6, spread=0.0, noise=0.0, drift=0.0, seed=1, figure=ITL, level=8.0
):
    """Samples of two arms side by side.

    `effect`, `spread` of a server's start and `noise` of a round in percent, `drift` in percent a
    minute. The arms change places from round to round, as the command lets them.
    """
    chance = random.Random(seed)
    samples = []
    for start in range(1, starts + 1):
        server = {arm: chance.gauss(0, spread) for arm in ARMS}
        for number in range(rounds):
            order = ARMS if number % 2 else ARMS[::-1]
            for place, arm in enumerate(order):
                at_s = ROUND_S * (number + place / 2)
                percent = server[arm] + chance.gauss(0, noise) + drift * at_s / 60
                percent += effect if arm == "blocks" else 0
                value = level * (1 + percent / 100)
                samples.append(Sample(figure, arm, start, 1, number + 1, at_s, value))
    return samples


def cost_of(samples, arm="blocks", **options):
    found = overhead(samples, ARMS, **options)
    return next(cost for cost in found.costs if cost.arm == arm)


def test_an_effect_without_spread_is_found_as_it_is():
    found = overhead(measured(2.0), ARMS)
    clean, blocks = found.costs
    assert (clean.arm, clean.median, clean.change_percent) == ("clean", 8.0, None)
    assert blocks.median == pytest.approx(8.16)
    assert blocks.change_percent == pytest.approx(2.0)
    assert (blocks.low_percent, blocks.high_percent) == pytest.approx((2.0, 2.0))
    assert blocks.starts_percent == pytest.approx((2.0, 2.0, 2.0))
    assert found.drifts == ()


@pytest.mark.parametrize("starts", [3, 6])
def test_the_interval_has_the_truth_in_it_about_as_often_as_it_says(starts):
    """Starts differ by more than rounds do, there is drift, and three starts are few."""
    times, inside = 80, 0
    for seed in range(times):
        cost = cost_of(measured(1.0, starts=starts, spread=0.3, noise=0.1, drift=0.5, seed=seed))
        inside += cost.low_percent <= 1.0 <= cost.high_percent
    assert 0.89 <= inside / times <= 1.0


def test_rounds_alone_would_claim_too_much():
    """The interval knows that a start has one value of its own, not six."""
    samples = measured(1.0, spread=0.3, noise=0.01, seed=4)
    cost = cost_of(samples)
    of_starts = max(cost.starts_percent) - min(cost.starts_percent)
    assert cost.high_percent - cost.low_percent > of_starts


def test_more_starts_make_it_narrower():
    few, many = (cost_of(measured(1.0, starts=n, spread=0.3, noise=0.1)) for n in (3, 12))
    assert many.high_percent - many.low_percent < (few.high_percent - few.low_percent) / 2


def test_a_drift_is_taken_out_and_told():
    found = overhead(measured(1.0, noise=0.05, drift=2.0), ARMS)
    assert [(one.figure, one.start, one.group) for one in found.drifts] == [
        (ITL, start, 1) for start in (1, 2, 3)
    ]
    for one in found.drifts:
        assert one.percent_per_minute == pytest.approx(2.0, abs=0.15)
        assert one.percent_in_all == pytest.approx(2.0 * 55 / 60, abs=0.15)
    blocks = found.costs[1]
    # Without that, the rounds of one start would lie 0.17 % to both sides.
    assert blocks.change_percent == pytest.approx(1.0, abs=0.05)


def test_noise_alone_is_hardly_ever_taken_for_drift():
    found = [overhead(measured(1.0, noise=0.1, seed=seed), ARMS).drifts for seed in range(60)]
    assert sum(map(len, found)) <= 6  # of 180 groups, 1 % of them


def test_two_looks_at_the_same_samples_agree():
    samples = measured(1.0, spread=0.3, noise=0.1)
    assert overhead(samples, ARMS) == overhead(list(samples), ARMS)


def test_one_start_has_no_interval():
    cost = cost_of(measured(0.1, starts=1))
    assert (cost.low_percent, cost.high_percent) == (None, None)
    assert cost.change_percent == pytest.approx(0.1)
    assert interval([[0.1, 0.2]]) is None


@pytest.mark.parametrize(
    ("effect", "starts", "verdict"),
    [
        (0.2, 3, BarVerdict.MET),
        (2.0, 3, BarVerdict.MISSED),
        (0.5, 3, BarVerdict.CANNOT_TELL),
        (0.2, 1, BarVerdict.CANNOT_TELL),
    ],
)
def test_a_bar_is_told_only_by_a_whole_interval(effect, starts, verdict):
    found = overhead(measured(effect, starts=starts, spread=0.02, noise=0.02), ARMS)
    assert [(bar.figure, bar.most_percent, bar.verdict) for bar in found.bars] == [
        (ITL, 0.5, verdict)
    ]
    assert found.verdict is verdict


def test_the_bar_itself_is_met():
    assert bar_verdict(Cost(ITL, "blocks", 8.0, 0.4, 0.3, 0.5), 0.5) is BarVerdict.MET


def test_each_figure_with_a_bar_counts():
    prefill = measured(0.8, figure="prefill TTFT, ms", level=200.0)
    rate = measured(-5.0, figure="tokens/s, batch 1", level=120.0)
    good, bad = measured(0.2), measured(3.0, figure="ITL, batch 64, ms")
    assert overhead([*good, *prefill, *rate], ARMS).verdict is BarVerdict.MET
    found = overhead([*good, *prefill, *rate, *bad], ARMS)
    assert found.verdict is BarVerdict.MISSED
    assert [bar.most_percent for bar in found.bars] == [0.5, 1.0, 0.5]


def test_where_nothing_is_judged_nothing_can_be_told():
    assert overhead(measured(0.2), ARMS, judge=False).bars == ()
    assert overhead(measured(0.2), ARMS, judge=False).verdict is BarVerdict.CANNOT_TELL
    others = [one for one in measured(0.2) if one.arm == "clean"]
    assert overhead(others, ARMS).verdict is BarVerdict.CANNOT_TELL


def test_the_clean_server_of_the_own_group_comes_first():
    def sample(arm, group, value):
        return Sample(ITL, arm, 1, group, 1, 0.0, value)

    samples = [sample("clean", 1, 10.0), sample("clean", 2, 20.0)]
    beside = cost_of([*samples, sample("blocks", 2, 21.0)])
    assert beside.change_percent == pytest.approx(5.0)
    alone = cost_of([*samples, sample("blocks", 3, 11.0)])
    assert alone.change_percent == pytest.approx(10.0)


def test_a_switched_server_is_compared_with_itself_and_what_is_off_with_the_clean_one():
    values = {"clean": 10.0, "switched off": 10.2, "switched": 10.251}
    samples = [
        Sample(ITL, arm, start, 1, number, 0.0, value)
        for start in (1, 2)
        for number in (1, 2)
        for arm, value in values.items()
    ]
    # Of a whole server there is one figure, and no part of it was switched off.
    samples += [Sample("start-up, s", arm, 1, 1, 0, 0.0, 9.0) for arm in ("clean", "switched")]
    found = overhead(samples, ("clean", "switched"))
    assert [
        (cost.figure, cost.arm, cost.against, cost.change_percent and round(cost.change_percent, 6))
        for cost in found.costs
    ] == [
        (ITL, "clean", None, None),
        (ITL, "switched off", "clean", 2.0),
        (ITL, "switched", "switched off", 0.5),
        ("start-up, s", "clean", None, None),
        ("start-up, s", "switched", "clean", 0.0),
    ]


def test_a_sample_without_a_clean_one_changes_nothing():
    samples = [one for one in measured(1.0) if one.arm == "blocks" or one.start == 1]
    assert len(cost_of(samples).starts_percent) == 1


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (30, 2.042)]
)
def test_the_quantiles_of_student(freedom, quantile):
    assert student(freedom, 0.025) == pytest.approx(quantile, rel=0.01)
