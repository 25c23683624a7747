"""The rules that look at one write and at the writes beside it in its step."""

import polars as pl

from kvtrace_cli.analysis.audit_holders import with_holders
from kvtrace_cli.analysis.audit_input import AuditInput
from kvtrace_cli.analysis.audit_model import Rule
from kvtrace_cli.analysis.audit_writes import DRAFT, DUMMY, OWNED, PADDING, ROW_KEY, StepSlice
from kvtrace_cli.analysis.steps import STEP_KEY

_TOKEN = (*ROW_KEY, "kv_group")
_STEP_SLOT = (*STEP_KEY, "kv_group", "written_slot")
_SLOT = (*_STEP_SLOT, "layer_index", "part")


def judge_writes(part: StepSlice, given: AuditInput) -> tuple[pl.DataFrame, int]:
    """Give each write the first rule that it breaks, and leave out those that break none.

    Args:
        part: the steps to judge, with their writes.
        given: the whole input.

    Returns:
        The writes with `rule`, `held_by` and `held_position`; and the number of writes that cannot
        be judged since the engine may have freed the KV block early.
    """
    writes = _with_draft_layers(part.writes, given)
    writes = with_holders(writes, part.tables.holdings, given.groups, given.tables.rows)
    writes = writes.with_columns(
        _is_wrong().alias("wrong"),
        (pl.col("kv_block_id") == pl.col("null_block"))
        .fill_null(value=False)
        .alias("in_null_block"),
    )
    writes = _with_disagreement(_with_duplicates(writes))
    found = writes.with_columns(_first_rule().alias("rule"))
    cleared = found.filter(pl.col("rule").is_null() & pl.col("maybe_freed") & _is_owned())
    broken = found.filter(pl.col("rule").is_not_null())
    return broken.with_columns(_comparable_slot().alias("expected_slot")), cleared.height


def _comparable_slot() -> pl.Expr:
    """Return what a finding shows as expected: nothing where the position is not certain."""
    return (
        pl.when(pl.col("rule") == Rule.LAYERS_DISAGREE.value)
        .then("most_layers")
        .when("is_exact")
        .then("expected_slot")
    )


def _is_owned() -> pl.Expr:
    return pl.col("owner") == OWNED


def _is_wrong() -> pl.Expr:
    """Say whether a row whose slot is known wrote elsewhere; false where it is not known."""
    elsewhere = pl.col("written_slot") != pl.col("expected_slot")
    return (_is_owned() & pl.col("is_exact") & elsewhere).fill_null(value=False)


def _with_draft_layers(writes: pl.DataFrame, given: AuditInput) -> pl.DataFrame:
    layers = given.survey.layers.rename({"draft_only": "of_draft"})
    return writes.join(
        layers,
        on=["process_id", "kv_group", "layer_index"],
        how="left",
        maintain_order="left",
    ).with_columns(pl.col("of_draft").fill_null(value=False))


def _with_duplicates(writes: pl.DataFrame) -> pl.DataFrame:
    """Mark the writes of rows that share a slot with another row of the step.

    A row that missed its own slot is not counted: it is wrong, and the other is not. Nor is a row
    in its own slot marked for sharing it with one that has none.
    """
    candidates = writes.filter(_is_owned(), ~pl.col("wrong"), pl.col("written_slot").is_not_null())
    # Few slots, if any, are of several rows in whatever layer: only those are looked at closely.
    suspects = candidates.select(*_STEP_SLOT, "row").unique().group_by(_STEP_SLOT).len()
    shared = (
        candidates.join(suspects.filter(pl.col("len") > 1), on=_STEP_SLOT, how="semi")
        .select(*_SLOT, "row", _is_rightful().alias("rightful"))
        .unique()
        .group_by(_SLOT)
        .agg(pl.len(), pl.col("rightful").all().alias("all_rightful"))
        .filter(pl.col("len") > 1)
        .drop("len")
    )
    return writes.join(shared, on=_SLOT, how="left", maintain_order="left").with_columns(
        (
            pl.col("all_rightful").is_not_null()
            & ~pl.col("wrong")
            & (pl.col("all_rightful") | ~_is_rightful())
        ).alias("shared")
    )


def _is_rightful() -> pl.Expr:
    """Say whether a row wrote into the slot that it was assigned, as far as that is known."""
    in_own = pl.col("is_exact") & (pl.col("written_slot") == pl.col("expected_slot"))
    return in_own.fill_null(value=False)


def _with_disagreement(writes: pl.DataFrame) -> pl.DataFrame:
    """Mark the writes that differ from the slot most layers of their row wrote to.

    Only rows whose slot is not known can break this rule alone; `most_layers` is that slot.
    """
    slot_unknown = pl.col("expected_slot").is_null() | ~pl.col("is_exact")
    most = (
        writes.filter(_is_owned(), slot_unknown, pl.col("written_slot").is_not_null())
        .group_by(*_TOKEN, "written_slot")
        .agg(pl.len(), pl.col("layer_index").min().alias("first_layer"))
        .sort("len", "first_layer", descending=[True, False])
        .group_by(_TOKEN, maintain_order=True)
        .agg(pl.col("written_slot").first().alias("most_layers"))
    )
    return writes.join(most, on=_TOKEN, how="left", maintain_order="left").with_columns(
        (_is_owned() & (pl.col("written_slot") != pl.col("most_layers")))
        .fill_null(value=False)
        .alias("disagrees")
    )


def _first_rule() -> pl.Expr:
    """Return the rule that a write breaks: the order is that of Rule."""
    # Null without a layout: then nobody knows whether it is a KV write at all.
    is_known, is_outside = pl.col("in_kv_tensor").is_not_null(), ~pl.col("in_kv_tensor")
    owner = pl.col("owner")
    is_held = pl.col("holders") > 0
    # A speculator may write its own layers where a request holds the KV block.
    draft_is_wrong = is_outside | ~pl.col("of_draft") | pl.col("in_null_block") | ~is_held
    rules = [
        (Rule.PADDING_ROW_WROTE, is_known & (owner == PADDING)),
        (Rule.DUMMY_ROW_WROTE, is_known & (owner == DUMMY)),
        (Rule.DRAFT_ROW_WROTE, is_known & (owner == DRAFT) & draft_is_wrong),
        (Rule.OUTSIDE_KV, (owner != DRAFT) & is_outside),
        (Rule.WRONG_SLOT, pl.col("wrong")),
        (Rule.NULL_BLOCK, _is_owned() & pl.col("in_null_block")),
        (Rule.FREED_BLOCK, _is_owned() & ~is_held),
        (Rule.FOREIGN_BLOCK, _is_owned() & (pl.col("conflict") | ~pl.col("is_holder"))),
        (Rule.DUPLICATE_SLOT, _is_owned() & pl.col("shared")),
        (Rule.LAYERS_DISAGREE, pl.col("disagrees")),
    ]
    return pl.coalesce(
        *(pl.when(broken.fill_null(value=False)).then(pl.lit(rule.value)) for rule, broken in rules)
    )
