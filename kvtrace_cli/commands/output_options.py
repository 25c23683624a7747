"""Outputs for CI systems that several commands share: JUnit XML, a Markdown page, annotations."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from kvtrace_cli import console
from kvtrace_cli.errors import ConfigError, ExitCode, KvtraceError
from kvtrace_cli.reports.checks import Check, CheckReport, Status, judged_report
from kvtrace_cli.reports.github import github_annotations
from kvtrace_cli.reports.junit import junit as junit_document
from kvtrace_cli.reports.markdown import markdown as markdown_page

JunitOption = Annotated[
    Path | None,
    typer.Option("--junit", metavar="FILE", help="Write each check as a JUnit test; -: stdout."),
]
MarkdownOption = Annotated[
    Path | None,
    typer.Option(
        "--markdown",
        metavar="FILE",
        help="Write a Markdown page, such as $GITHUB_STEP_SUMMARY; -: stdout.",
    ),
]
GithubOption = Annotated[
    bool, typer.Option("--github", help="Print annotations for GitHub Actions after the tables.")
]

_STDOUT: Final = Path("-")


@dataclass(frozen=True)
class Outputs:
    """What was asked for beside the tables, by a command such as `kvtrace diff`.

    Raises:
        ConfigError: more than one of them would be on stdout.
    """

    command: str
    junit: Path | None = None
    markdown: Path | None = None
    github: bool = False
    as_json: bool = False

    def __post_init__(self) -> None:
        on_stdout = {
            "--json": self.as_json,
            "--github": self.github,
            "--junit -": self.junit == _STDOUT,
            "--markdown -": self.markdown == _STDOUT,
        }
        asked = [name for name, is_asked in on_stdout.items() if is_asked]
        if len(asked) > 1:
            raise ConfigError(
                f"{self.command}: {' and '.join(asked)} would all be on stdout; expected one of "
                "them, and files for the others"
            )

    @property
    def wants_tables(self) -> bool:
        """Say whether stdout is for the tables, which annotations may follow."""
        return not self.as_json and _STDOUT not in {self.junit, self.markdown}

    def write(self, report: CheckReport) -> None:
        """Write all that was asked for; stdout already has the tables or the document.

        Raises:
            ConfigError: a file cannot be written.
        """
        report = judged_report(self._group, report)
        title = f"{self.command} {report.subject}"
        if self.github:
            for line in github_annotations(title, report):
                typer.echo(line)
        if self.junit:
            _write(self.junit, junit_document(title, report))
        if self.markdown:
            _write(self.markdown, markdown_page(title, report))

    @contextmanager
    def errors_told(self) -> Iterator[None]:
        """Let an error that ends the command, or a bug, be told in the outputs too, then go on.

        What an earlier run left in a file would otherwise pass for this one's result.
        """
        try:
            yield
        except Exception as error:
            try:
                self.write(self._report_of(error))
            except ConfigError as unwritten:
                console.err.print(f"warning: {unwritten}", markup=False, soft_wrap=True)
            raise

    @property
    def _group(self) -> str:
        return self.command.removeprefix("kvtrace ")

    def _report_of(self, error: Exception) -> CheckReport:
        code, message = ExitCode.BUG, f"A bug in kvtrace: {type(error).__name__}: {error}"
        if isinstance(error, KvtraceError):
            code, message = error.exit_code, str(error)
        check = Check(self._group, "input", Status.INCONCLUSIVE, message)
        return CheckReport(
            subject="ended with an error",
            verdict=f"exit code {code:d}",
            status=Status.INCONCLUSIVE,
            headline=message,
            emulated=False,
            checks=(check,),
        )


def _write(path: Path, text: str) -> None:
    """Write a file; the step summary of GitHub Actions is one that several commands add to."""
    if path == _STDOUT:
        typer.echo(text, nl=False)
        return
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    is_summary = summary is not None and path == Path(summary)
    try:
        with path.open("a" if is_summary else "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); give a file in a directory that exists"
        ) from error
