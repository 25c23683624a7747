"""A reconciled recording -> what it is compared by."""

from dataclasses import dataclass

from kvtrace_cli.analysis.attribution import attribute
from kvtrace_cli.analysis.model import Attribution, Reconciliation
from kvtrace_cli.analysis.pass_times import pass_times
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.run_facts import RunFacts
from kvtrace_cli.analysis.run_settings import run_settings
from kvtrace_cli.analysis.steps import StepTables, step_tables
from kvtrace_cli.analysis.structure import structure_of
from kvtrace_cli.dumps.schema import Recording


@dataclass(frozen=True)
class Conclusions:
    """What a summary is made of."""

    result: Reconciliation
    attribution: Attribution
    facts: RunFacts


def conclude(recording: Recording) -> Conclusions:
    """Reconcile a recording, give its rows to their owners, and take its facts."""
    result = reconcile(recording)
    tables = step_tables(recording)
    attribution = attribute(result, recording, tables)
    return Conclusions(result, attribution, run_facts(result, attribution, recording, tables))


def run_facts(
    result: Reconciliation, attribution: Attribution, recording: Recording, tables: StepTables
) -> RunFacts:
    """Return settings, structure and times of a run, all small and without ids of one run.

    Args:
        result: of `recording`.
        attribution: of `result`.
        recording: of one run.
        tables: its `step_tables`.
    """
    return RunFacts(
        settings=run_settings(recording),
        structure=structure_of(result, attribution, recording, tables),
        times=pass_times(result, recording),
    )
