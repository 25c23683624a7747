"""What `kvtrace audit` looked at, as checks: one for each rule, and one for what was left out."""

from kvtrace_cli.analysis.audit_model import Audit, AuditVerdict, Rule, RuleCount
from kvtrace_cli.reports.audit_tables import evidence, headline, rows_table
from kvtrace_cli.reports.cells import counted
from kvtrace_cli.reports.checks import Check, CheckReport, Status, doubts_check

_GROUP = "audit"
_STATUSES = {
    AuditVerdict.CLEAN: Status.PASSED,
    AuditVerdict.FINDINGS: Status.FAILED,
    AuditVerdict.CANNOT_JUDGE: Status.INCONCLUSIVE,
}
# Rows of a rule whose first finding is told; the JSON document has all.
_SHOWN = 3


def audit_report(result: Audit, subject: str) -> CheckReport:
    """Return the checks of an audited run, with its table and notes."""
    return CheckReport(
        subject=subject,
        verdict=result.verdict.value,
        status=_STATUSES[result.verdict],
        headline=headline(result),
        emulated=result.emulated,
        checks=audit_checks(result),
        tables=(rows_table(result),),
        notes=result.notes,
    )


def audit_checks(result: Audit) -> tuple[Check, ...]:
    """Return one check for the doubts, and one for each rule, kept or broken.

    Without a KV write, done or expected, no rule was looked at, so there are none of these; nor is
    there one for ranks where none could be compared.
    """
    counts = {count.rule: count for count in result.rules}
    writes = sum(count.writes for count in result.judged.owners)
    expected = result.judged.expected_writes
    kept = f"No finding in {counted(writes, 'KV write')} and {expected:,} expected ones."
    rules = (
        _broken(result, counts[rule])
        if rule in counts
        else Check(_GROUP, rule.value, Status.PASSED, kept)
        for rule in Rule
        if rule is not Rule.RANK_SLOTS or result.judged.compared_ranks
    )
    return (doubts_check(_GROUP, result.doubts), *(rules if writes or expected or counts else ()))


def _broken(result: Audit, count: RuleCount) -> Check:
    samples = result.samples(count.rule, _SHOWN)
    lines = [f"{finding.text}\n    {evidence(finding)}" for finding in samples]
    more = count.findings - len(samples)
    if more:
        lines.append(f"and {more:,} more; `kvtrace audit --json` has them all")
    message = (
        f"{counted(count.findings, 'finding')} in {counted(count.rows, 'row')} of "
        f"{counted(count.steps, 'step')}; the first: {samples[0].text}."
    )
    return Check(_GROUP, count.rule.value, Status.FAILED, message, "\n".join(lines))
