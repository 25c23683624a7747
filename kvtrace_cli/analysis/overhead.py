"""What each arm costs: changes against the clean server, intervals, drift and bars."""

import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, log, pi, sqrt, tan
from statistics import NormalDist, fmean, median
from typing import Final

from kvtrace_cli.analysis.overhead_model import (
    CLEAN,
    Bar,
    BarVerdict,
    Cost,
    Drift,
    Overhead,
    Sample,
)

# An arm whose server is also asked with recording off, and what those rounds are called.
OFF_OF: Final = {"switched": "switched off"}
# What block entries may cost, percent, by the beginning of the figure's name: issue 6.
BARRED_ARM: Final = "blocks"
BARS: Final = {"ITL,": 0.5, "prefill TTFT,": 1.0}

_PERCENT: Final = 100.0
_RESAMPLES: Final = 1000
_SEED: Final = 20260101
_TAIL: Final = 0.025
# Slopes are looked for in each figure of each start: at 5 % many would be found in nothing.
_SLOPE_TAIL: Final = 0.005
_Z: Final = NormalDist().inv_cdf(1 - _TAIL)


def overhead(samples: Sequence[Sample], arms: Sequence[str], *, judge: bool = True) -> Overhead:
    """Compare every arm with the clean one.

    Args:
        samples: of one measurement, of all arms; in any order.
        arms: their names, in the order of the result.
        judge: whether the bars mean anything, which they do not on the emulator.

    Returns:
        A cost for each figure, in the order of the samples, and each arm that has it. A change is
        that against the clean server of the same group and round, or of the same start and round
        if its group has none; a sample without such a partner changes nothing. Rounds of a server
        that is switched are compared with those of it while recording was off, and these with the
        clean ones.

    Method: a slope over time that all servers of a group share is taken out first, where it is
    significant at 1 %. A start's change is the median over its rounds; an arm's is the mean of its
    starts. Its interval is a bootstrap of starts, and of rounds within them, widened about the
    estimate for the number of starts as Student's distribution is: three starts alone resampled
    would claim far too much. The seed is fixed, so the same samples give the same interval.
    """
    drifts: list[Drift] = []
    costs: list[Cost] = []
    by_figure: dict[str, list[Sample]] = defaultdict(list)
    for one in samples:
        by_figure[one.figure].append(one)
    for figure, found in by_figure.items():
        level, taken = _without_drift(found)
        drifts += taken
        for arm, against in _compared(arms, {one.arm for one in level}):
            costs += _cost(figure, arm, against, level)
    bars = tuple(_bars(costs)) if judge else ()
    return Overhead(tuple(costs), tuple(drifts), bars)


def _compared(arms: Sequence[str], found: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each arm and what it is compared with; what a figure lacks is compared with nothing."""
    for arm in arms:
        off = OFF_OF.get(arm, arm)
        if off != arm and off in found:
            yield off, CLEAN
            yield arm, off
        else:
            yield arm, CLEAN


def _cost(figure: str, arm: str, against: str, samples: Sequence[Sample]) -> Iterator[Cost]:
    """Yield what a figure of an arm comes to, unless the arm has no such figure."""
    values = [one.value for one in samples if one.arm == arm]
    if not values:
        return
    cost = Cost(figure, arm, median(values))
    changes = changes_by_start(samples, arm, against) if arm != CLEAN else {}
    if not changes:
        yield cost
        return
    ordered = [changes[start] for start in sorted(changes)]
    starts = tuple(median(rounds) for rounds in ordered)
    low, high = interval(ordered) or (None, None)
    yield replace(
        cost,
        against=against,
        change_percent=fmean(starts),
        low_percent=low,
        high_percent=high,
        starts_percent=starts,
    )


def changes_by_start(
    samples: Sequence[Sample], arm: str, against: str = CLEAN
) -> dict[int, list[float]]:
    """Return {start: the change of each round in percent of that of `against`}."""
    beside: dict[tuple[int, int, int], float] = {}
    same_start: dict[tuple[int, int], float] = {}
    for one in samples:
        if one.arm == against:
            beside[one.start, one.group, one.round] = one.value
            same_start.setdefault((one.start, one.round), one.value)
    changes: dict[int, list[float]] = defaultdict(list)
    for one in samples:
        if one.arm != arm:
            continue
        partner = beside.get(
            (one.start, one.group, one.round), same_start.get((one.start, one.round))
        )
        if partner is not None:
            changes[one.start].append((one.value / partner - 1) * _PERCENT)
    return dict(changes)


def interval(starts: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean over starts of the median over rounds.

    Args:
        starts: the changes of each round of each start, percent.

    Returns:
        Low and high; null with fewer than two starts.
    """
    count = len(starts)
    if count < 2:  # noqa: PLR2004  one start does not tell how starts differ
        return None
    chance = random.Random(_SEED)  # noqa: S311  resampling, no secret
    middles = [_medians(rounds, chance) for rounds in starts]
    means = sorted(
        sum(chance.choice(middles)[number] for _ in range(count)) / count
        for number in range(_RESAMPLES)
    )
    centre = fmean(median(rounds) for rounds in starts)
    # Resampling n starts gives (n - 1) / n of their variance, and knows it no better than n allow.
    factor = sqrt(count / (count - 1)) * student(count - 1, _TAIL) / _Z
    low, high = (means[int(share * (_RESAMPLES - 1))] for share in (_TAIL, 1 - _TAIL))
    return centre + (low - centre) * factor, centre + (high - centre) * factor


def _medians(rounds: Sequence[float], chance: random.Random) -> list[float]:
    """Return the median of rounds drawn anew, as many times as there are resamples."""
    size = len(rounds)
    drawn = chance.choices(rounds, k=size * _RESAMPLES)
    return [median(drawn[i : i + size]) for i in range(0, len(drawn), size)]


def student(freedom: int, tail: float) -> float:
    """Return the quantile of Student's distribution with `tail` above it.

    Exact for one and two degrees of freedom, within 1 % of it for more: Hill's expansion in the
    normal quantile (Abramowitz and Stegun, 26.7.5).
    """
    inside = 1 - 2 * tail
    if freedom == 1:
        return 1 / tan(pi * tail)
    if freedom == 2:  # noqa: PLR2004  its closed form
        return inside * sqrt(2 / (1 - inside**2))
    z = NormalDist().inv_cdf(1 - tail)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))


def _without_drift(samples: Sequence[Sample]) -> tuple[list[Sample], list[Drift]]:
    """Take the slope over time out of each group of servers in which it is significant."""
    groups: dict[tuple[int, int], list[Sample]] = defaultdict(list)
    for one in samples:
        groups[one.start, one.group].append(one)
    level: list[Sample] = []
    drifts: list[Drift] = []
    for (start, group), found in groups.items():
        slope = significant_slope(found)
        if slope is None:
            level += found
            continue
        times = [one.at_s for one in found]
        centre, length = fmean(times), max(times) - min(times)
        level += [
            replace(one, value=one.value * exp(-slope * (one.at_s - centre))) for one in found
        ]
        drifts.append(
            Drift(
                found[0].figure,
                start,
                group,
                percent_per_minute=(exp(slope * 60) - 1) * _PERCENT,
                percent_in_all=(exp(slope * length) - 1) * _PERCENT,
            )
        )
    return level, drifts


def significant_slope(samples: Sequence[Sample]) -> float | None:
    """Return the slope of log(value) over seconds that all arms share; null if it may be none.

    Each arm has its own level. Least squares, and Student's test at 1 %.
    """
    by_arm: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in samples:
        by_arm[one.arm].append((one.at_s, log(one.value)))
    points = [point for arm in by_arm.values() for point in _centred(arm)]
    freedom = len(points) - len(by_arm) - 1
    spread = sum(at * at for at, _ in points)
    if freedom < 1 or spread == 0:
        return None
    slope = sum(at * value for at, value in points) / spread
    rest = sum((value - slope * at) ** 2 for at, value in points) / freedom
    error = sqrt(rest / spread)
    return slope if abs(slope) > student(freedom, _SLOPE_TAIL) * error else None


def _centred(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    at, value = (fmean(one) for one in zip(*points, strict=True))
    yield from ((x - at, y - value) for x, y in points)


def _bars(costs: Iterable[Cost]) -> Iterator[Bar]:
    for cost in costs:
        if cost.arm == BARRED_ARM:
            most = _bar_of(cost.figure, BARS)
            if most is not None:
                yield Bar(cost.arm, cost.figure, most, bar_verdict(cost, most))


def _bar_of(figure: str, bars: Mapping[str, float]) -> float | None:
    return next((most for begin, most in bars.items() if figure.startswith(begin)), None)


def bar_verdict(cost: Cost, most_percent: float) -> BarVerdict:
    """Say on which side of the bar the whole interval is, if it is on one."""
    if cost.low_percent is None or cost.high_percent is None:
        return BarVerdict.CANNOT_TELL
    if cost.high_percent <= most_percent:
        return BarVerdict.MET
    return BarVerdict.MISSED if cost.low_percent > most_percent else BarVerdict.CANNOT_TELL
