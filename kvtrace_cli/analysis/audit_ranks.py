"""Whether tensor ranks wrote the same tokens to the same slots, each by its own layout.

Every rank stores its own heads of a token, or a copy of another rank's, but all of them follow one
block table. So this needs no plan: ranks are held against each other, the k-th forward step of one
against the k-th of the others.
"""

from typing import Final

import polars as pl

from kvtrace_cli.analysis.audit_input import AuditInput, processes_with_stores
from kvtrace_cli.analysis.audit_model import FINDING_SCHEMA, Rule
from kvtrace_cli.analysis.audit_writes import OWNED, StepSlice, writes_of_steps
from kvtrace_cli.analysis.rank_rows import FORWARD_NUMBER, forward_numbers
from kvtrace_cli.analysis.ranks import Ranks
from kvtrace_cli.analysis.steps import STEP_KEY
from kvtrace_cli.dumps.schema import PROCESS_ID, Recording

# Ranks that have to write alike: those of one pipeline rank of one engine.
_STAGE: Final = ("engine", "pipeline")
_STEP: Final = (*_STAGE, FORWARD_NUMBER)
_WRITE: Final = ("row", "kv_group", "layer_index", "part")
_PLACE: Final = (*_STEP, *_WRITE)
_MEMBERS_SCHEMA: Final = {
    PROCESS_ID: pl.UInt32,
    "engine": pl.UInt32,
    "pipeline": pl.UInt32,
    "tensor": pl.UInt32,
}
_SUMS_SCHEMA: Final = {PROCESS_ID: pl.UInt32, "step_stamp": pl.UInt32, "writes": pl.UInt64}
# How the plug-in's reason ends if ranks write different tokens by design.
_CONTEXT_PARALLEL: Final = "context parallelism"
# Steps of a stage that are looked at write by write; further ones are counted only.
_MOST_STEPS: Final = 256


class RankSlots:
    """Follows what each tensor rank writes, and finds where they part."""

    def __init__(self, recording: Recording, ranks: Ranks, given: AuditInput) -> None:
        """Find the ranks that have to write alike.

        Args:
            recording: of one run.
            ranks: its `ranks_of`.
            given: what the rules look at.
        """
        self._given = given
        self.notes: list[str] = []
        self._members = self._comparable(recording, ranks)
        numbers = forward_numbers(given.tables.steps).drop("rows")
        self._steps = numbers.join(self._members, on=PROCESS_ID, maintain_order="left")
        self._sums = [pl.DataFrame(schema=_SUMS_SCHEMA)]

    @property
    def compared(self) -> int:
        """How many ranks are held against others."""
        return self._members.height

    def _comparable(self, recording: Recording, ranks: Ranks) -> pl.DataFrame:
        inexact = {p.process_id: (p.started or {}).get("inexact") or () for p in recording.steps}
        split = {
            process_id
            for process_id, reasons in inexact.items()
            if any(reason.endswith(_CONTEXT_PARALLEL) for reason in reasons)
        }
        with_stores = processes_with_stores(recording) - split
        rows = [
            (rank.process_id, number, rank.pipeline, rank.tensor)
            for number, engine in enumerate(ranks.engines)
            for rank in engine
            if rank.process_id in with_stores
        ]
        members = pl.DataFrame(rows, schema=_MEMBERS_SCHEMA, orient="row")
        if split and ranks.total > 1:
            self.notes.append(
                "Slots of tensor ranks were not held against each other: under context "
                "parallelism they write different tokens."
            )
        return members.filter(pl.len().over(_STAGE) > 1)

    def add(self, part: StepSlice) -> None:
        """Take in the writes of a slice: of each step one sum over all that was written."""
        written = (
            _comparable_writes(part.writes)
            .join(self._members, on=PROCESS_ID, how="semi")
            .unique((*STEP_KEY, *_WRITE, "written_slot"))
        )
        self._sums.append(
            written.group_by(STEP_KEY).agg(
                pl.struct(*_WRITE, "written_slot").hash().sum().cast(pl.UInt64).alias("writes")
            )
        )

    def findings(self) -> pl.DataFrame:
        """Return the writes that a rank did otherwise than the others, or not at all."""
        suspects = self._suspects()
        if suspects.is_empty():
            return pl.DataFrame(schema=FINDING_SCHEMA)
        looked_at = suspects.filter(
            pl.col(FORWARD_NUMBER).rank("dense").over(_STAGE) <= _MOST_STEPS
        )
        rest = suspects.select(_STEP).n_unique() - looked_at.select(_STEP).n_unique()
        if rest:
            self.notes.append(
                f"Tensor ranks part in {rest:,} more steps, which were not looked at write by "
                "write."
            )
        writes = _comparable_writes(writes_of_steps(looked_at.select(STEP_KEY), self._given))
        return _parted(writes.join(looked_at, on=STEP_KEY, maintain_order="left"), looked_at)

    def _suspects(self) -> pl.DataFrame:
        """Return the forward steps in which not all ranks of a stage wrote the same."""
        uncertain = self._steps.join(self._given.uncertain, on=STEP_KEY, how="semi")
        sums = self._steps.join(
            pl.concat(self._sums), on=STEP_KEY, how="left", maintain_order="left"
        ).with_columns(
            (pl.col("writes").n_unique().over(_STEP) > 1).alias("differ"),
            (pl.len().over(_STEP) == pl.col(PROCESS_ID).n_unique().over(_STAGE)).alias("all_ran"),
        )
        return (
            sums.filter("differ", "all_ran")
            .join(uncertain, on=_STEP, how="anti", maintain_order="left")
            .drop("differ", "all_ran", "writes")
        )


def _comparable_writes(writes: pl.DataFrame) -> pl.DataFrame:
    return writes.filter(
        pl.col("owner") == OWNED, pl.col("in_kv_tensor"), pl.col("written_slot").is_not_null()
    )


def _parted(writes: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the findings among the writes of the steps in which ranks part.

    Which slot is right: that of the plan if any rank wrote it, else that of most ranks, else that
    of the first.
    """
    in_place = (pl.col("is_exact") & (pl.col("written_slot") == pl.col("expected_slot"))).fill_null(
        value=False
    )
    agreed = (
        writes.group_by(*_PLACE, "written_slot")
        .agg(
            in_place.any().alias("in_place"),
            pl.col(PROCESS_ID).n_unique().alias("processes"),
            pl.col("tensor").min().alias("first_tensor"),
            pl.col(PROCESS_ID).sort_by("tensor").first().alias("other_process_id"),
            pl.col("request_id", "position", "step_kind", "kv_block_id", "offset").first(),
        )
        .sort("in_place", "processes", "first_tensor", descending=[True, True, False])
        .unique(_PLACE, keep="first", maintain_order=True)
        .rename({"written_slot": "agreed_slot"})
        .drop("in_place", "processes", "first_tensor")
    )
    return pl.concat(
        [_elsewhere(writes, agreed), _nowhere(writes, agreed, steps)], how="diagonal_relaxed"
    ).with_columns(
        pl.lit(Rule.RANK_SLOTS.value).alias("rule"),
        pl.col("agreed_slot").alias("expected_slot"),
    )


def _elsewhere(writes: pl.DataFrame, agreed: pl.DataFrame) -> pl.DataFrame:
    """Return the writes to another slot than the agreed one."""
    return writes.join(
        agreed.select(*_PLACE, "agreed_slot", "other_process_id"),
        on=_PLACE,
        maintain_order="left",
        nulls_equal=True,
    ).filter(pl.col("written_slot") != pl.col("agreed_slot"))


def _nowhere(writes: pl.DataFrame, agreed: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return what a rank did not write at all, and others did."""
    did = writes.select(*_PLACE, PROCESS_ID).unique()
    return (
        agreed.sort(_PLACE)
        .join(steps.select(*_STEP, *STEP_KEY), on=_STEP, maintain_order="left")
        .join(did, on=(*_PLACE, PROCESS_ID), how="anti", maintain_order="left", nulls_equal=True)
        .with_columns(pl.lit(0, pl.UInt32).alias("stores"))
    )
