"""`kvtrace diff`: two runs -> where they part, as tables or JSON, and the exit code."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kvtrace_cli import console
from kvtrace_cli.analysis.diff import MAX_REGRESSION, DiffOptions
from kvtrace_cli.analysis.diff import diff as compare
from kvtrace_cli.analysis.diff_model import Diff, DiffVerdict
from kvtrace_cli.analysis.diff_settings import ALLOWABLE
from kvtrace_cli.commands.output_options import (
    GithubOption,
    JunitOption,
    MarkdownOption,
    Outputs,
)
from kvtrace_cli.commands.sides import read_side
from kvtrace_cli.dumps.summary import are_comparable
from kvtrace_cli.errors import ConfigError, DumpFormatError, ExitCode
from kvtrace_cli.reports.diff_checks import diff_report
from kvtrace_cli.reports.diff_documents import diff_document
from kvtrace_cli.reports.diff_tables import diff_tables

_EXIT_CODES = {
    DiffVerdict.SAME: ExitCode.AGREES,
    DiffVerdict.DIFFERS: ExitCode.MISMATCH,
    DiffVerdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}
_SCHEMA = "schema"


def diff(
    before: Annotated[
        Path, typer.Argument(metavar="A", help="Run directory, summary.json or baseline.")
    ],
    after: Annotated[Path, typer.Argument(metavar="B", help="The same; held against A.")],
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.")
    ] = False,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    github: GithubOption = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="NAME",
            help=f"Compare although this differs; may be repeated: {', '.join(ALLOWABLE)}.",
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="What is launched outside of measured requests decides too, and so does how "
            "requests at once were batched.",
        ),
    ] = False,
    max_regression: Annotated[
        float,
        typer.Option("--max-regression", metavar="PERCENT", help="How much slower B may be."),
    ] = MAX_REGRESSION,
    no_times: Annotated[bool, typer.Option("--no-times", help="Compare no times.")] = False,
) -> None:
    """Say whether B writes the KV cache as A does: set-up, structure, times.

    Example: kvtrace diff kvtrace-baseline.json run1

    Exit code 0: the same; 1: they differ, or B is slower; 2: A or B cannot be read; 4: they cannot
    be compared, and it says why.
    """
    outputs = Outputs(
        "kvtrace diff", junit=junit, markdown=markdown, github=github, as_json=as_json
    )
    with outputs.errors_told():
        options = _options(allow or [], max_regression, strict=strict, with_times=not no_times)
        result = _compared(before, after, options)
    if as_json:
        typer.echo(json.dumps(diff_document(result), indent=2))
    elif outputs.wants_tables:
        for part in diff_tables(result, ALLOWABLE):
            console.out.print(part)
            console.out.print()
    outputs.write(diff_report(result, ALLOWABLE))
    raise typer.Exit(_EXIT_CODES[result.verdict])


def _options(
    allow: list[str], max_regression: float, *, strict: bool, with_times: bool
) -> DiffOptions:
    for name in allow:
        if name not in ALLOWABLE:
            raise ConfigError(f"--allow: found {name!r}, expected one of {', '.join(ALLOWABLE)}")
    if not 0 <= max_regression < float("inf"):
        raise ConfigError(
            f"--max-regression: found {max_regression:g}, expected percent, 0 or more"
        )
    return DiffOptions(
        allowed=tuple(allow), strict=strict, with_times=with_times, max_regression=max_regression
    )


def _compared(before: Path, after: Path, options: DiffOptions) -> Diff:
    """Read both sides and compare them.

    Raises:
        KvtraceError: a side cannot be read, or one is of a version that has too little.
    """
    first, second = read_side(before), read_side(after)
    versions = first.schema_version, second.schema_version
    if not are_comparable(*versions) and _SCHEMA not in options.allowed:
        raise DumpFormatError(
            f"{before} is a summary of schema version {versions[0]}, {after} of version "
            f"{versions[1]}; make the older one anew, or compare what both have with "
            f"--allow {_SCHEMA}"
        )
    return compare(first, second, options, (str(before), str(after)))
