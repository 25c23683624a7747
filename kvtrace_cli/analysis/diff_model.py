"""What comparing two runs finds out, as plain values."""

from dataclasses import dataclass
from enum import Enum

from kvtrace_cli.analysis.pass_times import FEWEST_SAMPLES


class DiffVerdict(Enum):
    """Whether two runs write the cache alike."""

    SAME = "same"
    DIFFERS = "differs"
    INCONCLUSIVE = "inconclusive"


class Aspect(Enum):
    """What a difference is about."""

    COMPARABILITY = "comparability"
    STRUCTURE = "structure"
    TIME = "time"


@dataclass(frozen=True)
class Difference:
    """One thing that differs, or that keeps the runs from being compared.

    `rule` is a stable name in kebab-case. `where` names the first place where the runs part, in
    words. `decides` is False if it is listed only and has no say in the verdict.
    """

    aspect: Aspect
    rule: str
    where: str
    before: str
    after: str
    decides: bool

    @property
    def text(self) -> str:
        """The difference as one sentence."""
        return f"{self.where}: {self.before}, then {self.after}."


@dataclass(frozen=True)
class TimeComparison:
    """A figure of both runs: its medians, and how much the second is above the first.

    `unit` and `clock` hold for both sides. `low_percent` to `high_percent` is where the change lies
    with 95 % confidence, by bootstrap over the samples; `samples` counts those of each side.
    `regressed`: the second is slower by more than was allowed, and by more than the noise.
    """

    name: str
    unit: str
    clock: str
    before: float
    after: float
    change_percent: float
    low_percent: float
    high_percent: float
    samples: tuple[int, int]
    regressed: bool

    @property
    def has_few_samples(self) -> bool:
        """Whether a side has too few samples to judge by: the interval looks surer than it is."""
        return min(self.samples) < FEWEST_SAMPLES


@dataclass(frozen=True)
class Diff:
    """Everything that `kvtrace diff` concludes.

    `differences` are in the order in which they were looked for: the first of an aspect is where
    the runs part first. `checks` are the rules that were looked at and found equal. `before` and
    `after` name the sides. `emulated`: at least one side is.
    """

    verdict: DiffVerdict
    differences: tuple[Difference, ...]
    times: tuple[TimeComparison, ...]
    notes: tuple[str, ...]
    checks: tuple[str, ...]
    before: str
    after: str
    emulated: bool
