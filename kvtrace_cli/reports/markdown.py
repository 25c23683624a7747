"""Checks as a page of Markdown, made for the step summary of GitHub Actions."""

import html
import re
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from kvtrace_cli.reports.checks import Check, CheckReport, Status

_MARKS = {
    Status.PASSED: "✅",
    Status.NOTED: "ℹ️",  # noqa: RUF001  the sign that is meant
    Status.INCONCLUSIVE: "⚠️",
    Status.FAILED: "❌",
}
_WORST_FIRST = (Status.FAILED, Status.INCONCLUSIVE, Status.NOTED)
_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")
# GitHub refuses a summary of more than 1 MiB as a whole.
_ROWS, _LINES, _CHARACTERS = 50, 200, 2000


def markdown(title: str, report: CheckReport) -> str:
    """Return the report as one Markdown page: the verdict, what is not well, and the rest folded.

    Args:
        title: of the page: the command and what it read.
        report: of any command. Its text may come from a recording, and is never taken for markup.
    """
    return "\n\n".join(_parts(title, report)) + "\n"


def _parts(title: str, report: CheckReport) -> Iterator[str]:
    emulated = " (EMULATED)" if report.emulated else ""
    yield f"## {_MARKS[report.status]} {escaped(title)}: {report.verdict}{emulated}"
    headline = report.headline[:1].upper() + report.headline[1:].rstrip(".")
    yield f"{escaped(headline)}."
    told = [check for status in _WORST_FIRST for check in report.checks if check.status is status]
    if told:
        yield _checks_table(told)
    for check in told:
        if check.detail:
            yield _folded(check.name, _plain(check.detail))
    passed = [check for check in report.checks if check.status is Status.PASSED]
    if passed:
        yield _folded(f"Passed: {len(passed)} of {len(report.checks)}", _checks_table(passed))
    for table in report.tables:
        yield _folded(_text(table.title or "Figures"), _rich_table(table))
    if report.notes:
        yield _folded("Notes", "\n".join(f"- {escaped(note)}" for note in report.notes[:_ROWS]))


def escaped(text: str) -> str:
    """Return text that GitHub shows as it is, on one line, whatever is in it."""
    clipped = text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."
    marked = _SPECIAL.sub(r"\\\1", html.escape(clipped, quote=False))
    return "<br>".join(marked.splitlines())


def _checks_table(checks: Sequence[Check]) -> str:
    rows = [
        [f"{_MARKS[check.status]} {check.status.value}", f"`{check.name}`", escaped(check.message)]
        for check in checks
    ]
    return _table(["result", "check", "found"], ["---"] * 3, rows)


def _rich_table(table: Table) -> str:
    """Return a table that was made for the terminal."""
    header = [escaped(_text(column.header)) for column in table.columns]
    rules = ["---:" if column.justify == "right" else "---" for column in table.columns]
    columns = [[escaped(_text(cell)) for cell in column.cells] for column in table.columns]
    rows = _table(header, rules, [list(cells) for cells in zip(*columns, strict=True)])
    return f"{rows}\n\n{escaped(_text(table.caption))}" if table.caption else rows


def _text(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain


def _table(header: list[str], rules: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (header, rules, *rows[:_ROWS])]
    if len(rows) > _ROWS:
        lines.append(f"\n{len(rows) - _ROWS:,} more rows are left out.")
    return "\n".join(lines)


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{html.escape(summary)}</summary>\n\n{body}\n\n</details>"


def _plain(text: str) -> str:
    lines = [line[:_CHARACTERS] for line in text.splitlines()]
    if len(lines) > _LINES:
        lines = [*lines[:_LINES], f"{len(lines) - _LINES:,} more lines are left out."]
    return f"<pre>{html.escape(chr(10).join(lines), quote=False)}</pre>"
