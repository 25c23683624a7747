"""Whether the second of two runs is slower: medians, and a bootstrap over the passes."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import polars as pl

from kvtrace_cli.analysis.diff_model import Aspect, Difference, TimeComparison
from kvtrace_cli.analysis.diff_words import passes_in_words
from kvtrace_cli.analysis.pass_times import FEWEST_SAMPLES, GAP, INTERVAL, SPAN
from kvtrace_cli.analysis.run_facts import Figure, LayerMedians, Times

EACH_LAYER: Final = "each-layer"
_RESAMPLES: Final = 1000
_SEED: Final = 20260101
# The middle 95 % of the resampled changes.
_TAIL: Final = 0.025
_PERCENT: Final = 100.0


def compare_times(
    before: Times, after: Times, max_regression: float, *, unjudged: Collection[str] = ()
) -> tuple[tuple[TimeComparison, ...], tuple[str, ...]]:
    """Compare the figures that both sides have.

    Args:
        before: of the first side.
        after: of the second side.
        max_regression: percent that a figure may be slower. A gap counts by what it adds to a
            whole pass, from its first layer to the next pass: small gaps vary from run to run.
        unjudged: names of figures that never count as a regression.

    Returns:
        The comparisons, in the order of the first side's figures, and notes of what was not
        compared or not judged. A regression is one whose interval lies wholly above
        `max_regression`, and that has 5 samples or more on both sides.

    Units: ms; each figure on one clock, the same for both sides.
    """
    spans = {figure.of: _median(figure.samples) for figure in before.figures if figure.name == SPAN}
    found = []
    notes = []
    few = []
    for one, other in _pairs(before.figures, after.figures):
        if other is None:
            notes.append(f"{_title(one, one)}: only the first side has it.")
        elif not (one.samples and other.samples) or _median(one.samples) <= 0:
            notes.append(f"{_title(one, other)}: no positive median to compare with.")
        else:
            base = _median(one.samples) + spans.get(one.of, 0.0) if one.name == GAP else None
            judged = one.name not in unjudged
            compared = _comparison(one, other, max_regression, base, judged=judged)
            found.append(compared)
            if judged and compared.has_few_samples:
                few.append(compared.name)
    if few:
        notes.append(f"Too few samples to judge: {'; '.join(few)}.")
    return tuple(found), (*notes, *_layer_notes(before, after))


def _layer_notes(before: Times, after: Times) -> Iterator[str]:
    """Yield for each sort of pass which step from layer to layer changed most."""
    for layers, other in _paired_layers(before, after):
        pairs = list(zip(layers.medians, other.medians, strict=False))
        changes = [(other - one, number) for number, (one, other) in enumerate(pairs)]
        grown, number = max(changes, key=lambda change: abs(change[0]), default=(0.0, 0))
        if grown:
            medians = pairs[number]
            yield (
                f"Of a {_both(layers.of, other.of)}, layer {number} to {number + 1} changed most: "
                f"median {medians[0]:.3f} ms, then {medians[1]:.3f} ms."
            )


def regressions(times: Sequence[TimeComparison]) -> Iterator[Difference]:
    """Yield a difference for each figure that is too slow."""
    for compared in times:
        if compared.regressed:
            yield Difference(
                Aspect.TIME,
                figure_rule(compared),
                compared.name,
                f"{compared.before:.3f} {compared.unit}",
                f"{compared.after:.3f} {compared.unit} ({compared.change_percent:+.1f} %)",
                decides=True,
            )


def slower_layers(
    before: Times, after: Times, max_regression: float, times: Sequence[TimeComparison]
) -> tuple[tuple[Difference, ...], bool]:
    """Return a difference for each sort of pass in which single layers are slower.

    A layer is if even the least that its median can be is above the most that the first side's can
    be, by more than `max_regression` percent. Passes whose usual layer is slower are not looked at:
    those figures are in `times`.

    Returns:
        The differences, and whether any sort of pass was looked at.
    """
    told = {one.name for one in times if one.regressed}
    found = []
    has_looked = False
    for layers, other in _paired_layers(before, after):
        of = _both(layers.of, other.of)
        if f"{INTERVAL}, {of}" in told:
            continue
        has_looked = True
        slower = [
            number
            for number, (high, low) in enumerate(zip(layers.highs, other.lows, strict=False))
            if high > 0 and (low / high - 1) * _PERCENT > max_regression
        ]
        if slower:
            more = f", and {len(slower) - 1} more" if len(slower) > 1 else ""
            found.append(
                Difference(
                    Aspect.TIME,
                    EACH_LAYER,
                    f"layer {slower[0]} to {slower[0] + 1} of a {of}{more}",
                    f"{layers.medians[slower[0]]:.3f} ms",
                    f"{other.medians[slower[0]]:.3f} ms",
                    decides=True,
                )
            )
    return tuple(found), has_looked


def figure_rule(compared: TimeComparison) -> str:
    """Return the rule that a figure stands for, whatever passes it is of."""
    return rule_of(compared.name.partition(",")[0])


def rule_of(name: str) -> str:
    """Return the rule of the figures of a name."""
    return name.replace(" ", "-")


def _pairs(
    before: Sequence[Figure], after: Sequence[Figure]
) -> Iterator[tuple[Figure, Figure | None]]:
    """Pair figures of the same sort of pass; of the rest those with as many launches."""
    left = {(figure.name, figure.of): figure for figure in after}
    taken = {key for figure in before if (key := (figure.name, figure.of)) in left}
    for one in before:
        if (one.name, one.of) in left:
            yield one, left[one.name, one.of]
            continue
        others = [
            key
            for key, figure in left.items()
            if key not in taken and (key[0], figure.launches) == (one.name, one.launches)
        ]
        taken.update(others[:1])
        yield one, left[others[0]] if others else None


def _paired_layers(before: Times, after: Times) -> Iterator[tuple[LayerMedians, LayerMedians]]:
    """Pair the layers of the passes whose figures are paired; else those of the same sort."""
    pairs = {
        one.of: other.of
        for one, other in _pairs(before.figures, after.figures)
        if other and one.name == INTERVAL
    }
    others = {layers.of: layers for layers in after.layer_medians}
    for layers in before.layer_medians:
        other = others.get(pairs.get(layers.of, layers.of))
        if other:
            yield layers, other


def _comparison(
    one: Figure, other: Figure, max_regression: float, base: float | None, *, judged: bool
) -> TimeComparison:
    before, after = _median(one.samples), _median(other.samples)
    resampled = [_medians(figure.samples, number) for number, figure in enumerate((one, other))]
    is_usable = resampled[0] > 0
    changes = ((resampled[1] / resampled[0] - 1) * _PERCENT).filter(is_usable)
    added = (resampled[1] - resampled[0]) / base * _PERCENT if base else changes
    samples = len(one.samples), len(other.samples)
    return TimeComparison(
        name=_title(one, other),
        unit="ms",
        clock=one.clock,
        before=before,
        after=after,
        change_percent=(after / before - 1) * _PERCENT,
        low_percent=_quantile(changes, _TAIL),
        high_percent=_quantile(changes, 1 - _TAIL),
        samples=samples,
        regressed=judged
        and min(samples) >= FEWEST_SAMPLES
        and _quantile(added, _TAIL) > max_regression,
    )


def _title(one: Figure, other: Figure) -> str:
    return f"{one.name}, {_both(one.of, other.of)}"


def _both(one: str, other: str) -> str:
    """Write the sorts of passes that are compared, once if they are the same."""
    return " against ".join(dict.fromkeys((passes_in_words(one), passes_in_words(other))))


def _medians(samples: Sequence[float], number: int) -> pl.Series:
    """Return the medians of samples drawn anew, with repetition; the same in every run."""
    size = len(samples)
    drawn = pl.Series(samples, dtype=pl.Float64).sample(
        n=size * _RESAMPLES, with_replacement=True, seed=_SEED + number
    )
    return drawn.reshape((_RESAMPLES, size)).arr.median()


def _median(samples: Sequence[float]) -> float:
    return _quantile(pl.Series(samples, dtype=pl.Float64), 0.5)


def _quantile(values: pl.Series, share: float) -> float:
    return float(values.quantile(share, "linear") or 0.0)
