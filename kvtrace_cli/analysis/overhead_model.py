"""What measuring the overhead found, as frozen dataclasses."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

# The arm without kvtrace, which the others are held against.
CLEAN: Final = "clean"


@dataclass(frozen=True)
class Sample:
    """One value of one figure: of a round, or of a whole server, whose round is 0.

    Args:
        figure: its name, unit included.
        arm: whose it is.
        start, group, round: when; servers of one group ran side by side.
        at_s: seconds since the first round of the group.
        value: more than 0.
    """

    figure: str
    arm: str
    start: int
    group: int
    round: int
    at_s: float
    value: float


class BarVerdict(str, Enum):
    """Whether a figure is below its bar: can be told only if its whole interval is on one side."""

    MET = "met"
    MISSED = "missed"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Bar:
    """What an arm may cost at most, in percent of the clean one."""

    arm: str
    figure: str
    most_percent: float
    verdict: BarVerdict


@dataclass(frozen=True)
class Cost:
    """One figure of one arm.

    Args:
        median: of all its values.
        against: the arm that it is compared with; null for the clean one.
        change_percent: mean over the starts of the middle round's change against that of the server
            beside it, or of the same server; null for the clean arm.
        low_percent, high_percent: its 95 % interval; null with one start, which cannot tell how
            starts differ.
        starts_percent: that of each start, in their order.
    """

    figure: str
    arm: str
    median: float
    change_percent: float | None = None
    low_percent: float | None = None
    high_percent: float | None = None
    starts_percent: tuple[float, ...] = ()
    against: str | None = None


@dataclass(frozen=True)
class Drift:
    """A slope over time of a figure, in one group of servers, that was taken out."""

    figure: str
    start: int
    group: int
    percent_per_minute: float
    percent_in_all: float


@dataclass(frozen=True)
class Overhead:
    """What all arms cost."""

    costs: tuple[Cost, ...]
    drifts: tuple[Drift, ...]
    bars: tuple[Bar, ...]

    @property
    def verdict(self) -> BarVerdict:
        """That of all bars: missed if one is, met if all are and there is one."""
        found = {bar.verdict for bar in self.bars}
        if BarVerdict.MISSED in found:
            return BarVerdict.MISSED
        return BarVerdict.MET if found == {BarVerdict.MET} else BarVerdict.CANNOT_TELL
