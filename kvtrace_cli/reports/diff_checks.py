"""What `kvtrace diff` looked at, as checks: one for each rule."""

from collections.abc import Sequence

from kvtrace_cli.analysis.diff_model import Diff, Difference, DiffVerdict
from kvtrace_cli.reports.checks import Check, CheckReport, Status
from kvtrace_cli.reports.diff_tables import headline, hints, times_table

_GROUP = "diff"
_STATUSES = {
    DiffVerdict.SAME: Status.PASSED,
    DiffVerdict.DIFFERS: Status.FAILED,
    DiffVerdict.INCONCLUSIVE: Status.INCONCLUSIVE,
}


def diff_report(diff: Diff, allowable: Sequence[str] = ()) -> CheckReport:
    """Return the checks of two compared runs, with their figures of time and notes.

    Args:
        diff: to tell.
        allowable: rules that `--allow` can name.
    """
    return CheckReport(
        subject=f"{diff.before} and {diff.after}",
        verdict=diff.verdict.value,
        status=_STATUSES[diff.verdict],
        headline=headline(diff),
        emulated=diff.emulated,
        checks=diff_checks(diff),
        tables=(times_table(diff),) if diff.times else (),
        notes=(*hints(diff, allowable), *diff.notes),
    )


def diff_checks(diff: Diff) -> tuple[Check, ...]:
    """Return one check for each rule that was looked at.

    Where the runs cannot be compared, no difference is a failure: all that decides is inconclusive.
    """
    decided = Status.INCONCLUSIVE if diff.verdict is DiffVerdict.INCONCLUSIVE else Status.FAILED
    of_rule: dict[str, list[Difference]] = {}
    for difference in diff.differences:
        of_rule.setdefault(difference.rule, []).append(difference)
    equal = (
        Check(_GROUP, rule, Status.PASSED, "No difference.")
        for rule in dict.fromkeys(diff.checks)
        if rule not in of_rule
    )
    return (*(_differs(found, decided) for found in of_rule.values()), *equal)


def _differs(found: list[Difference], decided: Status) -> Check:
    """Tell all differences of a rule, first those that decide."""
    first, *others = sorted(found, key=lambda difference: not difference.decides)
    more = f" And {len(others)} more." if others else ""
    return Check(
        _GROUP,
        first.rule,
        decided if first.decides else Status.NOTED,
        first.text + more,
        "\n".join(difference.text for difference in (first, *others)) if others else "",
    )
