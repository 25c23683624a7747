"""Rows that should have written and did not."""

from dataclasses import replace

import polars as pl

from kvtrace_cli.analysis.audit_input import AuditInput
from kvtrace_cli.analysis.audit_model import Rule
from kvtrace_cli.analysis.audit_writes import (
    OWNED,
    ROW_KEY,
    UNKNOWN,
    StepSlice,
    exact_rows,
)
from kvtrace_cli.analysis.steps import STEP_KEY

_GROUP = ("process_id", "kv_group")
_TOKEN = (*ROW_KEY, "kv_group")
_PART = ("layer_index", "part")


def missing_writes(part: StepSlice, given: AuditInput) -> tuple[pl.DataFrame, int]:
    """Find the writes that owned rows of forward steps lack.

    Not looked at: rows without an expected slot or with one in the null block, rows with an
    inexact position, steps of which writes may be missing from the recording or whose rows could
    not be told apart, and rows that wrote outside every KV tensor, which are findings already.

    Args:
        part: the steps to judge, with their writes.
        given: the whole input.

    Returns:
        One row for each row and layer that lacks a part, with `rule` and the columns of a finding;
        and the number of writes that were looked for.
    """
    tokens = _tokens(part, given)
    expected = given.expected.group_by(_GROUP).len().rename({"len": "expected"})
    tokens = tokens.join(expected, on=_GROUP, maintain_order="left")
    done = (
        part.writes.filter(pl.col("owner") == OWNED, pl.col("in_kv_tensor"))
        .select(*_TOKEN, *_PART)
        .unique()
        .join(given.expected, on=[*_GROUP, *_PART], how="semi")
    )
    counts = done.group_by(_TOKEN).len().rename({"len": "done"})
    lacking = tokens.join(counts, on=_TOKEN, how="left", maintain_order="left").filter(
        pl.col("done").fill_null(0) < pl.col("expected")
    )
    found = (
        lacking.drop("expected", "done")
        .join(given.expected, on=_GROUP, maintain_order="left_right")
        .join(done, on=[*_TOKEN, *_PART], how="anti", maintain_order="left")
        .group_by(*_TOKEN, "layer_index", maintain_order=True)
        .agg(
            pl.col("part").sort().str.join(" and "),
            pl.all().exclude(*_TOKEN, *_PART).first(),
        )
    )
    return _as_findings(found, given), int(tokens["expected"].sum())


def _tokens(part: StepSlice, given: AuditInput) -> pl.DataFrame:
    """Return the rows of each KV group that must write."""
    unknown = part.writes.filter(pl.col("owner") == UNKNOWN)
    outside = part.writes.filter(pl.col("owner") == OWNED, ~pl.col("in_kv_tensor"))
    forward = part.tables.steps.filter(pl.col("step_kind") == "forward")
    return (
        part.tables.slots.filter(pl.col("expected_slot").is_not_null())
        .join(forward, on=STEP_KEY, how="semi", maintain_order="left")
        .join(given.uncertain, on=STEP_KEY, how="anti", maintain_order="left")
        .join(unknown, on=STEP_KEY, how="anti", maintain_order="left")
        .join(outside, on=ROW_KEY, how="anti", maintain_order="left")
        .join(given.groups, on=_GROUP, how="left", maintain_order="left")
        .filter(
            (pl.col("kv_block_id").cast(pl.Int64) != pl.col("null_block")).fill_null(value=True)
        )
        .join(exact_rows(replace(given, tables=part.tables)), on=ROW_KEY, maintain_order="left")
        .filter("is_exact")
        .select(*_TOKEN, "request_id", "position", "expected_slot", "kv_block_id", "block_size")
    )


def _as_findings(found: pl.DataFrame, given: AuditInput) -> pl.DataFrame:
    steps = given.tables.steps.select(*STEP_KEY, "step_kind")
    return found.join(steps, on=STEP_KEY, how="left", maintain_order="left").with_columns(
        pl.lit(Rule.MISSING_WRITE.value).alias("rule"),
        (pl.col("expected_slot") % pl.col("block_size")).alias("offset"),
        pl.lit(0, pl.UInt32).alias("stores"),
    )
