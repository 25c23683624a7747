"""`kvtrace report`: a run directory, or two -> one HTML file that needs no network."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import typer

from kvtrace_cli import console
from kvtrace_cli.analysis.attribution import attribute
from kvtrace_cli.analysis.audit import audit
from kvtrace_cli.analysis.diff import DiffOptions, diff
from kvtrace_cli.analysis.diff_model import Diff
from kvtrace_cli.analysis.facts import run_facts
from kvtrace_cli.analysis.gap import gap as split_gaps
from kvtrace_cli.analysis.gap_model import Gap
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.report_frames import pictures
from kvtrace_cli.analysis.run_facts import Summary
from kvtrace_cli.analysis.steps import StepTables, step_tables
from kvtrace_cli.commands.sides import checked_side, read_side
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.dumps.schema import Recording
from kvtrace_cli.errors import ConfigError
from kvtrace_cli.reports.documents import summary_document
from kvtrace_cli.reports.html import BEGINNING
from kvtrace_cli.reports.html.side import Side

_NAME: Final = "report.html"
_EXTRA: Final = ("altair", "jinja2", "markupsafe", "vl_convert")


def report(
    run_dir: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory that `kvtrace run` made.")
    ],
    *,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="OTHER",
            help="What it is held against: a run, shown beside it; or a summary or baseline file.",
        ),
    ] = None,
    gap: Annotated[
        Path | None,
        typer.Option(
            "--gap",
            metavar="DIR_CUPTI",
            help="The same run with --observer cupti: shows what ran, as `kvtrace gap` does.",
        ),
    ] = None,
    allow_unequal: Annotated[
        bool,
        typer.Option("--allow-unequal", help="With --gap: as that of `kvtrace gap`."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write here; default: DIR/report.html."),
    ] = None,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="Read runs that did not end in order.")
    ] = False,
) -> None:
    """Write one HTML file with tables and pictures of a run; it can be opened without a network.

    Example: kvtrace report run1 -o run1.html

    Exit code 0: written, whatever the verdict in it is; 2: DIR cannot be read, FILE cannot be
    written, or the extra is not installed.
    """
    if allow_unequal and gap is None:
        raise ConfigError("--allow-unequal: found no --gap, expected it: nothing else is paired")
    render = _renderer()
    target = out or run_dir / _NAME
    _refuse_foreign(target)
    run = _read(run_dir, allow_incomplete=allow_incomplete)
    sides, difference = [run.side], None
    if against is not None and against.is_dir():
        other = _read(against, allow_incomplete=allow_incomplete)
        sides = [other.side, run.side]
        difference = _compare(other.summary(), run)
    elif against is not None:
        difference = _compare((against, read_side(against)), run)
    page = render(
        sides, difference, None if gap is None else _split(run, gap, unequal=allow_unequal)
    )
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{target}: cannot be written ({error.strerror}); give -o FILE"
        ) from error
    verdicts = [side.result.verdict.value for side in sides]
    if difference:
        verdicts.append(difference.verdict.value)
    size = len(page.encode()) / 1e6
    console.err.print(f"{', '.join(verdicts)}; {size:.1f} MB, open it in a browser", markup=False)
    typer.echo(str(target))


def _renderer() -> Callable[..., str]:
    """Load what draws, which is heavy and comes with an extra."""
    try:
        function: Callable[..., str] = import_module("kvtrace_cli.reports.html.page").render
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise ConfigError(
            f"`kvtrace report` draws with packages that are not installed ({error.name} is "
            "missing); install them with: pip install 'kvtrace[report]'"
        ) from error
    return function


@dataclass(frozen=True)
class _Run:
    """A run that was read, with what the report and the comparison want of it."""

    path: Path
    recording: Recording
    tables: StepTables
    side: Side

    def summary(self) -> tuple[Path, Summary]:
        """Return what it is compared by, and its name."""
        side = self.side
        facts = run_facts(side.result, side.attribution, self.recording, self.tables)
        document = summary_document(side.result, side.attribution, side.manifest, facts)
        # The same as if it were read from summary.json: tuples become lists.
        return self.path, checked_side(self.path, json.loads(json.dumps(document)))


def _read(path: Path, *, allow_incomplete: bool) -> _Run:
    recording = read_recording(open_run_dir(path, allow_incomplete=allow_incomplete))
    result, tables = reconcile(recording), step_tables(recording)
    attribution = attribute(result, recording, tables)
    judged = audit(recording, result, tables)
    side = Side(
        name=str(path),
        manifest=recording.manifest,
        requests=recording.requests,
        result=result,
        attribution=attribution,
        audit=judged,
        pictures=pictures(recording, result, tables, attribution, judged),
    )
    return _Run(path, recording, tables, side)


def _compare(before: tuple[Path, Summary], run: _Run) -> Diff:
    """Compare as `kvtrace diff` does by default."""
    after = run.summary()
    return diff(before[1], after[1], DiffOptions(), (str(before[0]), str(after[0])))


def _split(run: _Run, activities: Path, *, unequal: bool) -> Gap:
    """Pair the run with one of CUPTI as `kvtrace gap` does."""
    second = read_recording(open_run_dir(activities, allow_incomplete=False))
    names = (str(run.path), str(activities))
    return split_gaps(run.side.result, run.recording, second, names, allow_unequal=unequal)


def _refuse_foreign(target: Path) -> None:
    """Refuse to overwrite a file that is no report.

    Raises:
        ConfigError: there is such a file, or it cannot be read.
    """
    if not target.exists():
        return
    try:
        with target.open("rb") as file:
            begins = file.read(len(BEGINNING))
    except OSError as error:
        raise ConfigError(f"{target}: cannot be read ({error.strerror}); give -o FILE") from error
    if begins != BEGINNING.encode():
        raise ConfigError(f"{target}: there already, and no report of ours; give another -o FILE")
