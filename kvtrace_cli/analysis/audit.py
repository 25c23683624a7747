"""A recording -> Audit: every KV write against the slot that the scheduler assigned."""

from collections.abc import Sequence

import polars as pl

from kvtrace_cli.analysis.audit_doubts import doubts, remarks
from kvtrace_cli.analysis.audit_input import AuditInput, audit_input, silent_layers
from kvtrace_cli.analysis.audit_judging import Judging
from kvtrace_cli.analysis.audit_model import Audit, AuditVerdict, Rule, RuleCount
from kvtrace_cli.analysis.audit_ranks import RankSlots
from kvtrace_cli.analysis.audit_survey import StoreSource, store_source
from kvtrace_cli.analysis.model import Reconciliation
from kvtrace_cli.analysis.ranks import ranks_of
from kvtrace_cli.analysis.steps import StepTables
from kvtrace_cli.dumps.schema import Recording

# What these bring into the cache, no kernel of the engine writes.
_CONNECTOR_OPTIONS = ("--kv-transfer-config", "--kv-offloading")
_NOT_JUDGED = "Tokens from the prefix cache were not judged"


def audit(
    recording: Recording,
    result: Reconciliation,
    tables: StepTables,
    source: StoreSource | None = None,
) -> Audit:
    """Judge every recorded KV write, and every write that should have been.

    Args:
        recording: of one run.
        result: from `reconcile`.
        tables: from `step_tables`.
        source: of the stores; None: those of the recording.

    Returns:
        Audit; a write is under at most one rule, the first that it breaks in the order of Rule.

    Units: slots, positions and offsets in tokens as the scheduler counts; addresses in bytes.
    Assumes: a request keeps its KV blocks until it is finished or preempted, or until they lie
    behind the window that the layout gives its KV group. Source: docs/format.md, Steps and Layout;
    docs/audit.md.
    """
    given = audit_input(recording, result, tables, source or store_source(result, recording))
    cached_note = _cached_not_judged(recording, given)
    ranks = ranks_of(recording)
    rank_slots = RankSlots(recording, ranks, given)
    judging = Judging(given, rank_slots, with_cached=not cached_note)
    silent = silent_layers(recording, given)
    reasons = doubts(recording, result, given, judging.unjudged(), silent)
    return Audit(
        verdict=_verdict(judging.findings, reasons),
        doubts=reasons,
        notes=(*remarks(result, given), *cached_note, *rank_slots.notes),
        emulated=result.emulated,
        judged=judging.judged(),
        rules=_rule_counts(judging.findings),
        ranks={p.process_id: (p.started or {}).get("ranks") or {} for p in recording.steps},
        rank_names=ranks.names,
        findings=judging.findings,
    )


def _verdict(findings: pl.DataFrame, reasons: Sequence[str]) -> AuditVerdict:
    if findings.height:
        return AuditVerdict.FINDINGS
    return AuditVerdict.CANNOT_JUDGE if reasons else AuditVerdict.CLEAN


def _cached_not_judged(recording: Recording, given: AuditInput) -> tuple[str, ...]:
    """Say why cached tokens cannot be judged; nothing if they can."""
    command = recording.manifest.get("command")
    arguments = command if isinstance(command, list) else ()
    if any(str(argument).startswith(_CONNECTOR_OPTIONS) for argument in arguments):
        return (f"{_NOT_JUDGED}: a KV connector may have fetched them.",)
    if given.uncertain.height:
        return (f"{_NOT_JUDGED}: writes may be missing from the recording.",)
    return ()


def _rule_counts(findings: pl.DataFrame) -> tuple[RuleCount, ...]:
    """Count the findings of each rule that has any, in the order of Rule."""
    rows = pl.struct("process_id", "step_stamp", "row", "request_id", "position")
    counts = (
        findings.group_by("rule")
        .agg(
            pl.len().alias("findings"),
            rows.n_unique().alias("rows"),
            pl.col("layer_index").drop_nulls().n_unique().alias("layers"),
            pl.struct("process_id", "step_stamp").n_unique().alias("steps"),
            pl.col("request_id").drop_nulls().n_unique().alias("requests"),
        )
        .sort("rule")
    )
    return tuple(RuleCount(Rule(rule), *numbers) for rule, *numbers in counts.iter_rows())
