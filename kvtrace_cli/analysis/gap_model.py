"""What pairing a run of the Sanitizer with one of CUPTI finds out, as plain values."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from kvtrace_cli.analysis.model import Durations

# A span that is longer than so many times the median is long. A GPU that waits once for
# milliseconds is easily that; replays of one graph differ by a few percent.
LONG_FROM: Final = 1.5


class GapVerdict(Enum):
    """Whether the two runs did the same, so that what one saw explains the other."""

    PAIRED = "paired"
    INCONCLUSIVE = "inconclusive"


class PartKind(Enum):
    """What a part of a span was spent on."""

    KERNEL = "kernel"
    COPY = "copy"
    MEMSET = "memset"
    # Nothing ran: no kernel, no copy, no memset, on any stream.
    IDLE = "idle"


@dataclass(frozen=True)
class Part:
    """What one kind of work took of a span.

    `share_ms` is the median over spans of its share, in which an instant that several run in
    counts for each in equal parts; `percent` the shares of all spans of their whole length, so
    that the parts of a span are 100 % together. `usual_percent` is the same without long spans.
    `run_ms` is the median of the plain sum of how long each ran within the span: more than the
    share where kernels overlap. `runs` is the median of how many ran.
    """

    name: str
    kind: PartKind
    share_ms: float
    percent: float
    usual_percent: float
    run_ms: float
    runs: float


@dataclass(frozen=True)
class LongSpans:
    """Spans longer than `over_ms`, which is `LONG_FROM` times the median.

    `percent` is what they are of the length of all spans. A few of them, in which the GPU waited,
    can be most of a share, and say nothing of a usual span.
    """

    count: int
    over_ms: float
    percent: float


@dataclass(frozen=True)
class Span:
    """One sort of stretch of time, seen by both, each on a clock of its own.

    `sanitizer` is from block entry to block entry on the GPU globaltimer, `cupti` from the begin or
    end of a kernel to one on CUPTI's clock; see docs/gap.md. `long_spans` are of `cupti`.
    """

    sanitizer: Durations | None
    cupti: Durations
    long_spans: LongSpans
    parts: tuple[Part, ...]

    @property
    def idle(self) -> Part | None:
        """The part in which nothing ran; None if something always did."""
        return next((part for part in self.parts if part.kind is PartKind.IDLE), None)


@dataclass(frozen=True)
class GraphGap:
    """Paired replays of one shape of graph: `grids` of its target nodes, those alike in a row."""

    process: int
    nodes: int
    grids: str
    replays: int
    inside: Span
    between: Span | None


@dataclass(frozen=True)
class Gap:
    """All that `kvtrace gap` says; `runs` are the two directories."""

    verdict: GapVerdict
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    graphs: tuple[GraphGap, ...]
    runs: tuple[str, str]
    emulated: bool
