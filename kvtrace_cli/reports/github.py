"""Checks as workflow commands, which GitHub Actions reads on stdout and shows as annotations."""

from collections.abc import Iterator

from kvtrace_cli.reports.checks import CheckReport, Status

# Inconclusive is an error too: it fails the step, and a warning beside a failed step is overlooked.
_LEVELS = {Status.FAILED: "error", Status.INCONCLUSIVE: "error", Status.NOTED: "warning"}
# GitHub shows so many of each level for one step, and drops the others without a word.
_SHOWN = 10


def github_annotations(title: str, report: CheckReport) -> Iterator[str]:
    """Yield one workflow command for each check that did not pass, worst first, or one notice.

    Args:
        title: what the annotations begin with: the command and what it read.
        report: of any command.

    If a level has more than GitHub shows, its last annotation says how many are left out.
    """
    if report.status is Status.PASSED:
        text = f"{report.headline[:1].upper()}{report.headline[1:].rstrip('.')}."
        yield _command("notice", f"{title}: {report.verdict}", text)
    told = [
        (_LEVELS[status], f"{title}: {check.name} {status.value}", check)
        for status in (Status.FAILED, Status.INCONCLUSIVE, Status.NOTED)
        for check in report.checks
        if check.status is status
    ]
    for level in ("error", "warning"):
        found = [(name, check) for one, name, check in told if one == level]
        shown = found if len(found) <= _SHOWN else found[: _SHOWN - 1]
        for name, check in shown:
            yield _command(level, name, f"{check.message}\n{check.detail}".rstrip())
        if len(found) > len(shown):
            names = ", ".join(check.name for _, check in found[len(shown) :])
            yield _command(level, f"{title}: {len(found) - len(shown)} more", names)


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_escaped(title, ':,')}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    """Write the signs that would end the command, or the property, as percent and hex digits."""
    for sign in f"%\r\n{more}":
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text
