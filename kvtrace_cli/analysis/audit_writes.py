"""Stores -> writes with their owners: what one row wrote of one part of one layer into one slot."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from kvtrace_cli.analysis.audit_input import AuditInput
from kvtrace_cli.analysis.steps import STEP_KEY, StepTables

OWNED, PADDING, DUMMY, DRAFT, UNKNOWN = "owned", "padding", "dummy", "draft", "unknown"
OWNERS = (OWNED, PADDING, DUMMY, DRAFT, UNKNOWN)
ROW_KEY = (*STEP_KEY, "row")

# So many stores and rows at a time that what is derived from them is small beside the recording.
_SLICE_WEIGHT = 1 << 17
_INSTRUCTION = ("process_id", "pc")
_WRITES_SCHEMA = {
    "process_id": pl.UInt32,
    "context_index": pl.UInt16,
    "step_stamp": pl.UInt32,
    "step_kind": pl.String,
    "row": pl.UInt32,
    "layer_index": pl.UInt32,
    "kv_group": pl.UInt16,
    "part": pl.String,
    "written_slot": pl.Int64,
    "in_kv_tensor": pl.Boolean,
    "kv_block_id": pl.Int64,
    "offset": pl.Int64,
    "address": pl.UInt64,
    "sequence": pl.UInt64,
    "stores": pl.UInt32,
}
_FIRST = ("kv_block_id", "offset", "address", "sequence")
_WRITE_KEY = [name for name in _WRITES_SCHEMA if name not in (*_FIRST, "stores")]


@dataclass(frozen=True)
class StepSlice:
    """Some steps: their tables, the holdings of their time, and their writes.

    `writes` has the columns of `_WRITES_SCHEMA`, those of `_FIRST` from the first of its `stores`;
    `owner` (one of OWNERS); and of rows with a request `request_id`, `position`, `expected_slot`
    and `is_exact`.
    """

    tables: StepTables
    writes: pl.DataFrame


def step_slices(given: AuditInput) -> Iterator[StepSlice]:
    """Yield all steps in slices of bounded size, each once all its stores were read."""
    pending = _Pending(given)
    for stores in given.source():
        pending.add(stores.join(given.survey.other_instructions, on=_INSTRUCTION, how="anti"))
        if pending.ready_weight >= _SLICE_WEIGHT:
            yield from pending.take(given)
    yield from pending.take(given)


def writes_of_steps(steps: pl.DataFrame, given: AuditInput) -> pl.DataFrame:
    """Read the stores of some steps once more.

    Args:
        steps: process_id and step_stamp; few, as all of their writes are returned at once.
        given: the whole input.

    Returns:
        Their writes, as those of a StepSlice.
    """
    found = [pl.DataFrame(schema=_WRITES_SCHEMA)]
    for stores in given.source():
        of_steps = stores.join(steps, on=STEP_KEY, how="semi", maintain_order="left")
        found.append(
            _collapsed(of_steps.join(given.survey.other_instructions, on=_INSTRUCTION, how="anti"))
        )
    return _with_owners(_rejoined(pl.concat(found)), given)


class _Pending:
    """Writes of steps that are not judged yet, and how many stores of each are to come."""

    def __init__(self, given: AuditInput) -> None:
        rows = given.tables.slots.group_by(STEP_KEY).len().rename({"len": "weight"})
        self._steps = (
            given.tables.steps.select(STEP_KEY)
            .join(given.survey.steps, on=STEP_KEY, how="left", maintain_order="left")
            .join(rows, on=STEP_KEY, how="left", maintain_order="left")
            .with_columns(
                pl.col("stores").fill_null(0).cast(pl.Int64).alias("to_come"),
                pl.col("weight").fill_null(0) + pl.col("stores").fill_null(0),
            )
            .drop("stores")
        )
        self._writes: list[pl.DataFrame] = [pl.DataFrame(schema=_WRITES_SCHEMA)]

    @property
    def ready_weight(self) -> int:
        """How many rows and stores the steps have of which nothing is to come."""
        return int(self._steps.filter(pl.col("to_come") == 0)["weight"].sum())

    def add(self, stores: pl.DataFrame) -> None:
        """Take in the next stores; those without a step are left out."""
        stores = stores.join(self._steps, on=STEP_KEY, how="semi", maintain_order="left")
        self._writes.append(_collapsed(stores))
        came = stores.group_by(STEP_KEY).len().rename({"len": "came"})
        self._steps = self._steps.join(came, on=STEP_KEY, how="left", maintain_order="left").select(
            *STEP_KEY, pl.col("to_come") - pl.col("came").fill_null(0).cast(pl.Int64), "weight"
        )

    def take(self, given: AuditInput) -> Iterator[StepSlice]:
        """Yield the steps of which nothing is to come, and forget them."""
        is_ready = pl.col("to_come") == 0
        ready = self._steps.filter(is_ready)
        writes = pl.concat(self._writes)
        for part in _cut(ready):
            yield _slice(given, part, writes)
        self._steps = self._steps.filter(~is_ready)
        self._writes = [writes.join(ready, on=STEP_KEY, how="anti", maintain_order="left")]


def _cut(steps: pl.DataFrame) -> list[pl.DataFrame]:
    """Cut steps into parts of about `_SLICE_WEIGHT`."""
    return steps.with_columns(
        ((pl.col("weight").cum_sum() - pl.col("weight")) // _SLICE_WEIGHT).alias("cut")
    ).partition_by("cut", maintain_order=True)


def _slice(given: AuditInput, steps: pl.DataFrame, writes: pl.DataFrame) -> StepSlice:
    tables, stamps = given.tables, steps["step_stamp"]
    alive = (pl.col("first_step") <= stamps.max()) & (
        pl.col("end_step").is_null() | (pl.col("end_step") > stamps.min())
    )
    steps_of, rows, slots = (
        frame.join(steps, on=STEP_KEY, how="semi", maintain_order="left")
        for frame in (tables.steps, tables.rows, tables.slots)
    )
    inside = StepTables(steps_of, rows, slots, tables.holdings.filter(alive))
    of_steps = writes.join(steps, on=STEP_KEY, how="semi", maintain_order="left")
    return StepSlice(inside, _with_owners(_rejoined(of_steps), replace(given, tables=inside)))


def _collapsed(stores: pl.DataFrame) -> pl.DataFrame:
    """Put the stores of one write into one row, in the order of first stores."""
    return stores.group_by(_WRITE_KEY, maintain_order=True).agg(
        *(pl.col(name).first().cast(_WRITES_SCHEMA[name]) for name in _FIRST),
        pl.len().cast(pl.UInt32).alias("stores"),
    )


def _rejoined(writes: pl.DataFrame) -> pl.DataFrame:
    """Put together the writes whose stores were in two slices."""
    return writes.group_by(_WRITE_KEY, maintain_order=True).agg(
        pl.col(_FIRST).first(), pl.col("stores").sum()
    )


def _with_owners(writes: pl.DataFrame, given: AuditInput) -> pl.DataFrame:
    tables = given.tables
    slots = tables.slots.select(*ROW_KEY, "kv_group", "expected_slot")
    found = (
        writes.join(exact_rows(given), on=ROW_KEY, how="left", maintain_order="left")
        .join(slots, on=[*ROW_KEY, "kv_group"], how="left", maintain_order="left")
        .join(
            tables.steps.select(*STEP_KEY, pl.col("rows").alias("owned_rows")),
            on=STEP_KEY,
            how="left",
            maintain_order="left",
        )
    )
    kind = pl.col("step_kind")
    return found.with_columns(
        pl.when(kind == "dummy")
        .then(pl.lit(DUMMY))
        .when(kind == "draft")
        .then(pl.lit(DRAFT))
        .when((kind == "forward") & pl.col("request_id").is_not_null())
        .then(pl.lit(OWNED))
        .when((kind == "forward") & (pl.col("row") >= pl.col("owned_rows")))
        .then(pl.lit(PADDING))
        .otherwise(pl.lit(UNKNOWN))
        .alias("owner")
    ).drop("owned_rows")


def exact_rows(given: AuditInput) -> pl.DataFrame:
    """Return the rows of the tables with `is_exact`: whether their position is certain."""
    rows = given.tables.rows
    if not given.inexact:
        return rows.with_columns(pl.lit(value=True).alias("is_exact"))
    begun = given.admissions.with_columns(pl.lit(value=True).alias("is_exact"))
    exact = pl.col("is_exact").fill_null(value=False)
    return rows.join(
        begun, on=[*STEP_KEY, "request_id"], how="left", maintain_order="left"
    ).with_columns(exact | ~pl.col("process_id").is_in(list(given.inexact)))
