"""What the engine planned, step by step: which request's token in which row, and in which slot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from kvtrace_cli.dumps.schema import PROCESS_ID, ProcessSteps, Recording

STEP_STAMP: Final = "step_stamp"
STEP_KIND: Final = "step_kind"
KV_GROUP: Final = "kv_group"
STEP_KEY: Final = (PROCESS_ID, STEP_STAMP)

_STEPS_SCHEMA: Final = {
    PROCESS_ID: pl.UInt32,
    STEP_STAMP: pl.UInt32,
    STEP_KIND: pl.String,
    "rows": pl.UInt32,
    "padded_rows": pl.UInt32,
    "graph_mode": pl.String,
    "host_monotonic_ns": pl.UInt64,
}
_RANGES_SCHEMA: Final = {
    PROCESS_ID: pl.UInt32,
    STEP_STAMP: pl.UInt32,
    "first_row": pl.UInt32,
    "request_id": pl.String,
    "rows": pl.UInt32,
    "first_position": pl.UInt32,
}
_HOLDINGS_SCHEMA: Final = {
    PROCESS_ID: pl.UInt32,
    KV_GROUP: pl.UInt16,
    "kv_block_id": pl.UInt32,
    "request_id": pl.String,
    "block_index": pl.UInt32,
    "first_step": pl.UInt32,
    "end_step": pl.UInt32,
    "writes_from": pl.UInt32,
}
_BLOCK_SIZES_SCHEMA: Final = {PROCESS_ID: pl.UInt32, KV_GROUP: pl.UInt16, "block_size": pl.Int64}
_TABLE_KEY: Final = (PROCESS_ID, KV_GROUP, "request_id", "block_index")


@dataclass(frozen=True)
class StepTables:
    """The steps of all processes as frames; see `step_tables` for their columns."""

    steps: pl.DataFrame
    rows: pl.DataFrame
    slots: pl.DataFrame
    holdings: pl.DataFrame


def step_tables(recording: Recording) -> StepTables:
    """Turn what the engine plug-in wrote into frames.

    Returns:
        `steps`: process_id, step_stamp, step_kind (`forward`, `dummy`, `draft`), rows,
        padded_rows, graph_mode, host_monotonic_ns; in the order of processes and stamps.
        `rows`, one for each row that a request owns: process_id, step_stamp, row, request_id,
        position.
        `slots`, one for each such row and KV group: process_id, step_stamp, row, kv_group,
        kv_block_id, expected_slot; the last two are null if the request's table has no block there.
        `holdings`, one for each stretch in which a request holds a KV block: process_id, kv_group,
        kv_block_id, request_id, block_index (in the request's table), first_step (the first step
        with it), end_step (the first step without it; null if it was never taken back),
        writes_from (first position that the request computes itself).
        All empty if no steps were recorded.

    Units: `host_monotonic_ns` in ns of CLOCK_MONOTONIC; positions and slots in tokens. Assumes: a
    request keeps its blocks until it is finished or preempted; what the scheduler replaces earlier
    (behind a window) is not told to the workers. Source: docs/format.md, Steps.
    """
    rows = _rows(recording.steps)
    holdings = pl.DataFrame(
        [row for process in recording.steps for row in _Holdings(process).rows()],
        schema=_HOLDINGS_SCHEMA,
        orient="row",
    )
    return StepTables(
        step_frame(recording.steps), rows, _slots(rows, holdings, recording.steps), holdings
    )


def step_frame(processes: Sequence[ProcessSteps]) -> pl.DataFrame:
    """Return the `steps` of `step_tables` alone."""
    lines = [
        (
            process.process_id,
            line[STEP_STAMP],
            line["kind"],
            line.get("rows"),
            line.get("padded_rows"),
            line.get("graph_mode"),
            line.get("host_monotonic_ns"),
        )
        for process in processes
        for line in _steps_of(process)
    ]
    return pl.DataFrame(lines, schema=_STEPS_SCHEMA, orient="row")


def _steps_of(process: ProcessSteps) -> Iterator[dict[str, Any]]:
    return (line for line in process.lines if line["event"] == "step")


def _rows(processes: Sequence[ProcessSteps]) -> pl.DataFrame:
    """Expand each request's range of rows; the ranges of a step follow each other."""
    ranges = pl.DataFrame(
        [
            (process.process_id, line[STEP_STAMP], *part)
            for process in processes
            for line in _steps_of(process)
            for part in _row_ranges(line)
        ],
        schema=_RANGES_SCHEMA,
        orient="row",
    )
    return (
        ranges.filter(pl.col("rows") > 0)
        .with_columns(pl.int_ranges("rows", dtype=pl.UInt32).alias("number"))
        .explode("number")
        .select(
            *STEP_KEY,
            (pl.col("first_row") + pl.col("number")).alias("row"),
            "request_id",
            (pl.col("first_position") + pl.col("number")).alias("position"),
        )
    )


def _row_ranges(line: dict[str, Any]) -> Iterator[tuple[int, str, int, int]]:
    first_row = 0
    for request_id, rows, position in line.get("requests") or ():
        yield first_row, request_id, rows, position
        first_row += rows


@dataclass
class _Table:
    """The block table of a request that holds blocks: of each group (block, first step) pairs."""

    computed: int
    groups: list[list[tuple[int, int]]] = field(default_factory=list)


class _Holdings:
    """Follows the block tables of one process's requests from line to line."""

    def __init__(self, process: ProcessSteps) -> None:
        self._process = process
        self._tables: dict[str, _Table] = {}

    def rows(self) -> Iterator[tuple[int | str | None, ...]]:
        """Yield the rows of `holdings`: those that ended in order of their end, then the rest."""
        # What an idle line changes is so from the next step on.
        next_stamp = 1
        for line in self._process.lines:
            is_step = line["event"] == "step"
            stamp = line[STEP_STAMP] if is_step else next_stamp
            yield from self._apply(line, stamp)
            next_stamp = stamp + 1 if is_step else stamp
        for request_id in list(self._tables):
            yield from self._release(request_id, None)

    def _apply(self, line: dict[str, Any], stamp: int) -> Iterator[tuple[int | str | None, ...]]:
        for name in ("finished", "preempted"):
            for request_id in line.get(name) or ():
                yield from self._release(request_id, stamp)
        for name in ("admitted", "resumed"):
            for request_id, computed, groups in line.get(name) or ():
                yield from self._release(request_id, stamp)
                table = [[(block, stamp) for block in blocks] for blocks in groups]
                self._tables[request_id] = _Table(computed, table)
        for request_id, groups in line.get("grown") or ():
            for held, blocks in zip(self._tables[request_id].groups, groups, strict=True):
                held += [(block, stamp) for block in blocks]

    def _release(
        self, request_id: str, end_step: int | None
    ) -> Iterator[tuple[int | str | None, ...]]:
        """End a request's holdings; those that began and ended between two steps never were."""
        table = self._tables.pop(request_id, None)
        for group, blocks in enumerate(table.groups if table else ()):
            for block_index, (kv_block_id, first_step) in enumerate(blocks):
                if first_step != end_step:
                    yield (
                        self._process.process_id,
                        group,
                        kv_block_id,
                        request_id,
                        block_index,
                        first_step,
                        end_step,
                        table.computed if table else None,
                    )


def _slots(
    rows: pl.DataFrame, holdings: pl.DataFrame, processes: Sequence[ProcessSteps]
) -> pl.DataFrame:
    """Look up each row's KV block in the request's table as it was in the row's step."""
    sizes = pl.DataFrame(
        [
            (process.process_id, group, size)
            for process in processes
            for group, size in enumerate((process.started or {}).get("block_sizes") or ())
        ],
        schema=_BLOCK_SIZES_SCHEMA,
        orient="row",
    )
    position = pl.col("position").cast(pl.Int64)
    asked = rows.join(sizes, on=PROCESS_ID, maintain_order="left").with_columns(
        (position // pl.col("block_size")).cast(pl.UInt32).alias("block_index")
    )
    held = holdings.select(*_TABLE_KEY, "kv_block_id", "first_step", "end_step").sort("first_step")
    found = (
        asked.with_row_index("order")
        .sort(STEP_STAMP)
        .join_asof(
            held,
            left_on=STEP_STAMP,
            right_on="first_step",
            by=_TABLE_KEY,
            strategy="backward",
            check_sortedness=False,
        )
        .sort("order")
    )
    is_held = pl.col("end_step").is_null() | (pl.col("end_step") > pl.col(STEP_STAMP))
    offset = position % pl.col("block_size")
    return found.with_columns(pl.when(is_held).then("kv_block_id")).select(
        *STEP_KEY,
        "row",
        KV_GROUP,
        "kv_block_id",
        (pl.col("kv_block_id").cast(pl.Int64) * pl.col("block_size") + offset).alias(
            "expected_slot"
        ),
    )
