"""What a command looked at, check by check, as the readers of CI systems count it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rich.table import Table


class Status(Enum):
    """How a check ended; NOTED: something is to be told, and it decides nothing."""

    PASSED = "passed"
    NOTED = "noted"
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    `group` is the command without `kvtrace`. `name` is in kebab-case, stable, and unique in its
    group: CI systems tell by it which checks broke since the last run. `message` is one sentence,
    `detail` has further lines.
    """

    group: str
    name: str
    status: Status
    message: str
    detail: str = ""


@dataclass(frozen=True)
class CheckReport:
    """What a command concluded, and all that it looked at.

    `subject` names what was read. `verdict` is the command's own word for what `status` says, and
    `headline` one sentence with the figures. `tables` are shown folded where that can be.
    """

    subject: str
    verdict: str
    status: Status
    headline: str
    emulated: bool
    checks: tuple[Check, ...]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


def judged_report(group: str, report: CheckReport) -> CheckReport:
    """Return the report with a check that is as bad as its verdict, so that none passes silently.

    Args:
        group: of the check that is added if no other one is as bad.
        report: of any command.
    """
    decided = {Status.FAILED, Status.INCONCLUSIVE}
    if report.status not in decided or report.status in {check.status for check in report.checks}:
        return report
    verdict = Check(group, "verdict", report.status, f"{report.verdict}: {report.headline}")
    return CheckReport(**{**vars(report), "checks": (*report.checks, verdict)})


def doubts_check(group: str, doubts: Sequence[str]) -> Check:
    """Return the check that nothing was left which could not be judged."""
    if not doubts:
        return Check(group, "doubts", Status.PASSED, "Everything could be judged.")
    more = f" And {len(doubts) - 1:,} more." if len(doubts) > 1 else ""
    return Check(
        group,
        "doubts",
        Status.INCONCLUSIVE,
        doubts[0] + more,
        "\n".join(doubts) if more else "",
    )
