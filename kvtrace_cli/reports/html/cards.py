"""The verdicts at the top of a report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvtrace_cli.analysis.diff_model import Diff, DiffVerdict
from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.reports.cells import count
from kvtrace_cli.reports.html.comparison import outcome
from kvtrace_cli.reports.html.side import Side
from kvtrace_cli.reports.tables import headline

_MARKS: Final = {Verdict.AGREES: "✓", Verdict.MISMATCH: "✗", Verdict.INCONCLUSIVE: "?"}
# The verdict whose colour and mark the outcome of a comparison has.
_STANDS_FOR: Final = {
    DiffVerdict.SAME: Verdict.AGREES,
    DiffVerdict.DIFFERS: Verdict.MISMATCH,
    DiffVerdict.INCONCLUSIVE: Verdict.INCONCLUSIVE,
}


@dataclass(frozen=True)
class Card:
    """A verdict in one word: `tone` is the one whose colour it has, `subject` what it is about."""

    subject: str
    tone: Verdict
    word: str
    headline: str
    reasons: tuple[str, ...] = ()
    badges: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """A sign beside the colour, for those who cannot tell it."""
        return _MARKS[self.tone]


def cards(sides: Sequence[Side], diff: Diff | None) -> Iterator[Card]:
    """Yield the verdict of each run, its audit's if that has findings, and the comparison's."""
    for side in sides:
        yield _of_run(side)
        if side.audit.rules:
            yield _of_audit(side)
    if diff:
        tone = _STANDS_FOR[diff.verdict]
        badges = _emulated(marked=diff.emulated)
        subject = f"{diff.after} against {diff.before}"
        yield Card(subject, tone, diff.verdict.value, outcome(diff), badges=badges)


def _of_run(side: Side) -> Card:
    result = side.result
    incomplete = ("INCOMPLETE",) if result.incomplete else ()
    return Card(
        subject=side.name,
        tone=result.verdict,
        word=result.verdict.value,
        headline=headline(result),
        reasons=result.reasons,
        badges=(*_emulated(marked=result.emulated), *incomplete),
    )


def _of_audit(side: Side) -> Card:
    rules = side.audit.rules
    return Card(
        subject=f"audit of {side.name}",
        tone=Verdict.MISMATCH,
        word=side.audit.verdict.value,
        headline=", ".join(f"{count(rule.findings)} {rule.rule.value}" for rule in rules),
        badges=_emulated(marked=side.audit.emulated),
    )


def _emulated(*, marked: bool) -> tuple[str, ...]:
    return ("EMULATED",) if marked else ()
