"""Running the rules over all steps, slice by slice, and counting what they looked at."""

import polars as pl

from kvtrace_cli.analysis.audit_cached import CachedTokens
from kvtrace_cli.analysis.audit_doubts import Unjudged
from kvtrace_cli.analysis.audit_input import AuditInput
from kvtrace_cli.analysis.audit_missing import missing_writes
from kvtrace_cli.analysis.audit_model import FINDING_SCHEMA, Judged, RowCount
from kvtrace_cli.analysis.audit_ranks import RankSlots
from kvtrace_cli.analysis.audit_rules import judge_writes
from kvtrace_cli.analysis.audit_writes import (
    DRAFT,
    DUMMY,
    OWNED,
    OWNERS,
    PADDING,
    UNKNOWN,
    StepSlice,
    exact_rows,
    step_slices,
)
from kvtrace_cli.analysis.steps import STEP_KEY

_COUNTS_SCHEMA = {"owner": pl.String, "writes": pl.UInt32, "stores": pl.UInt32}


class Judging:
    """The findings of a recording, and of how many rows and writes they are."""

    def __init__(self, given: AuditInput, ranks: RankSlots, *, with_cached: bool) -> None:
        """Judge everything.

        Args:
            given: what the rules look at.
            ranks: holds tensor ranks against each other.
            with_cached: whether cached tokens can be judged: every write is known.
        """
        self._given = given
        self._compared_ranks = ranks.compared
        self._counts = [pl.DataFrame(schema=_COUNTS_SCHEMA)]
        self._expected_writes = 0
        self._maybe_freed = 0
        self._unlocated = 0
        cached = CachedTokens(given) if with_cached else None
        found = [pl.DataFrame(schema=FINDING_SCHEMA)]
        for part in step_slices(given):
            found += self._judge(part)
            if cached:
                cached.add(part)
            if ranks.compared:
                ranks.add(part)
        if cached:
            found.append(cached.findings())
        if ranks.compared:
            found.append(ranks.findings())
        self.findings = pl.concat([_as_findings(part) for part in found]).sort(
            "process_id", "step_stamp", "sequence", nulls_last=True, maintain_order=True
        )

    def _judge(self, part: StepSlice) -> list[pl.DataFrame]:
        wrong, maybe_freed = judge_writes(part, self._given)
        missing, expected = missing_writes(part, self._given)
        self._maybe_freed += maybe_freed
        self._expected_writes += expected
        self._unlocated += part.writes.filter(
            pl.col("in_kv_tensor"), pl.col("written_slot").is_null()
        ).height
        self._counts.append(_count(part.writes))
        return [wrong, missing]

    def unjudged(self) -> Unjudged:
        """Return what had to be left out."""
        owners = {row.owner: row for row in self._owners()}
        # A group without layers to write, such as one of states, has tables of another sort.
        slots = self._given.tables.slots.join(
            self._given.expected, on=["process_id", "kv_group"], how="semi"
        )
        return Unjudged(
            ownerless=self._ownerless_stores(),
            unmapped=owners[UNKNOWN].writes,
            unlocated=self._unlocated,
            maybe_freed=self._maybe_freed,
            inexact_rows=exact_rows(self._given).filter(~pl.col("is_exact")).height,
            rows_without_block=slots.filter(pl.col("expected_slot").is_null()).height,
        )

    def _ownerless_stores(self) -> int:
        strange = self._given.survey.steps.join(self._given.tables.steps, on=STEP_KEY, how="anti")
        return int(strange["stores"].sum())

    def judged(self) -> Judged:
        """Return what was looked at."""
        given, steps = self._given, self._given.tables.steps
        kinds = dict(steps.group_by("step_kind").len().iter_rows())
        rows = given.tables.rows
        return Judged(
            processes=steps["process_id"].n_unique(),
            requests=rows["request_id"].n_unique(),
            forward_steps=kinds.get("forward", 0),
            dummy_steps=kinds.get("dummy", 0),
            draft_steps=kinds.get("draft", 0),
            layers=given.expected["layer_index"].n_unique(),
            expected_writes=self._expected_writes,
            owners=tuple(self._owners()),
            ownerless_stores=self._ownerless_stores(),
            other_outputs=given.survey.other_outputs,
            compared_ranks=self._compared_ranks,
        )

    def _owners(self) -> list[RowCount]:
        counts = pl.concat(self._counts).group_by("owner").agg(pl.col("writes", "stores").sum())
        found = {owner: (writes, stores) for owner, writes, stores in counts.iter_rows()}
        rows = _row_counts(self._given)
        return [RowCount(owner, rows.get(owner), *found.get(owner, (0, 0))) for owner in OWNERS]


def _count(writes: pl.DataFrame) -> pl.DataFrame:
    counts = writes.group_by("owner").agg(pl.len().alias("writes"), pl.col("stores").sum())
    return counts.select(pl.col(name).cast(dtype) for name, dtype in _COUNTS_SCHEMA.items())


def _row_counts(given: AuditInput) -> dict[str, int]:
    """Count the rows that the steps ran, by owner; an owner whose rows are not told is left out."""
    steps, rows = given.tables.steps, pl.col("rows").cast(pl.Int64)
    forward, dummy, draft = (
        steps.filter(pl.col("step_kind") == kind) for kind in ("forward", "dummy", "draft")
    )
    padding = forward.select(pl.col("padded_rows").cast(pl.Int64) - rows).to_series()
    counts = {OWNED: given.tables.rows.join(forward, on=["process_id", "step_stamp"], how="semi")}
    found = {owner: frame.height for owner, frame in counts.items()}
    for owner, values in (
        (PADDING, padding),
        (DUMMY, dummy["rows"].cast(pl.Int64)),
        (DRAFT, draft["rows"].cast(pl.Int64)),
    ):
        if not values.null_count():
            found[owner] = int(values.sum())
    return found


def _as_findings(found: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of a finding; those that a rule does not know are null."""
    return found.select(
        (pl.col(name).cast(dtype) if name in found.columns else pl.lit(None, dtype).alias(name))
        for name, dtype in FINDING_SCHEMA.items()
    )
