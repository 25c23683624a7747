"""A reconciled recording as the joined tables of an export, a slice at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kvtrace_cli.analysis.attribution import our_request_index, sent_request_ids
from kvtrace_cli.analysis.export_columns import (
    BLOCK_EVENTS,
    LAUNCHES,
    REQUESTS,
    STEPS,
    STORES,
    Columns,
    schema_of,
)
from kvtrace_cli.analysis.joined import SLICE_EVENTS, slices, store_slices
from kvtrace_cli.analysis.model import Reconciliation
from kvtrace_cli.analysis.ranks import ranks_of
from kvtrace_cli.analysis.row_mapping import ROW_AXIS, row_of_block, with_row_axis
from kvtrace_cli.analysis.steps import KV_GROUP, STEP_KEY, STEP_KIND, STEP_STAMP, StepTables
from kvtrace_cli.analysis.stores import located_slices
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.schema import CONTEXT_INDEX, LAUNCH_INDEX, PROCESS_ID, Recording

_ROW_KEY: Final = (*STEP_KEY, "row")
_FORWARD: Final = "forward"
# Of each launch, what its block entries repeat.
_OF_LAUNCH: Final = (
    "kernel_slot",
    "kernel",
    "is_graph_node",
    "graph_exec",
    "exec_generation",
    "graph_node",
    "launch_id",
    STEP_STAMP,
    STEP_KIND,
    "layer_index",
    "decode_step",
    "request_index",
    ROW_AXIS,
)
_LARGEST: Final = 2**64 - 1


@dataclass(frozen=True)
class ExportSource:
    """A recording, its reconciliation, and its `step_tables`."""

    recording: Recording
    result: Reconciliation
    tables: StepTables

    @property
    def ranks(self) -> dict[int, int]:
        """Number, over all engines, of the rank of each process whose engine told it."""
        return {
            rank.process_id: rank.number
            for rank in ranks_of(self.recording).present
            if rank.process_id is not None
        }

    def tables_recorded(self) -> dict[str, bool]:
        """Say of each table whether what it holds was recorded at all."""
        return {
            "block_events": True,
            "stores": self.result.stores is not None,
            "launches": True,
            "steps": not self.tables.steps.is_empty(),
            "requests": bool(self.recording.requests),
        }

    def slices_of(self, table: str) -> Iterator[pl.DataFrame]:
        """Yield a table's rows, its columns as `export_columns` has them.

        Each frame holds rows of one process, except those of `requests`, which belong to none.

        Args:
            table: a key of TABLES.

        Units: as in `export_columns`; host and GPU clocks in columns of their own.
        """
        makers = {
            "block_events": self._block_events,
            "stores": self._stores,
            "launches": self._launches,
            "steps": self._steps,
            "requests": self._requests,
        }
        return makers[table]()

    def _block_events(self) -> Iterator[pl.DataFrame]:
        key = (PROCESS_ID, CONTEXT_INDEX)
        slot_from_pc = abi.constant("KVTRACE_KERNEL_SLOT_FROM_PC")
        wanted = [name for name in _OF_LAUNCH if name not in ("kernel", ROW_AXIS)]
        launches = with_row_axis(
            self.result.launches.select(*key, *wanted), self.recording.journal
        ).select(_OF_LAUNCH)
        owners = _Owners(self.recording, self.tables)
        for part in slices(self.result.contexts):
            if part.is_empty():
                continue
            events = part.drop("kernel_slot").hstack(
                [launches[name].gather(part[LAUNCH_INDEX]) for name in _OF_LAUNCH]
            )
            # An event may leave its kernel slot to its launch, if it has one.
            own_slot = part.select(
                pl.when(pl.col("kernel_slot") != slot_from_pc).then("kernel_slot")
            ).to_series()
            events = events.with_columns(pl.col("kernel_slot").fill_null(own_slot))
            rows = events.with_columns(pl.when("matched").then(row_of_block()).alias("row"))
            yield _ordered(owners.add(rows, is_known=pl.col("matched")), BLOCK_EVENTS)

    def _stores(self) -> Iterator[pl.DataFrame]:
        owners = _Owners(self.recording, self.tables)
        slots = self.tables.slots.select(*_ROW_KEY, KV_GROUP, "expected_slot")
        located = located_slices(self.result, self.recording)
        raw = store_slices(self.result.contexts)
        for part, events in zip(located, raw, strict=True):
            stores = owners.add(
                part.hstack(events.select("gpu_globaltimer_ns", "pc", "matched")),
                is_known=pl.lit(value=True),
            )
            of_steps = _of_steps(slots, part)
            yield _ordered(
                stores.join(of_steps, on=[*_ROW_KEY, KV_GROUP], how="left", maintain_order="left"),
                STORES,
            )

    def _launches(self) -> Iterator[pl.DataFrame]:
        launches = self.result.launches
        # Launches of one process lie together, so no rows are copied to part them.
        first = 0
        for count in launches[PROCESS_ID].rle().struct.field("len") if launches.height else ():
            for part in launches.slice(first, count).iter_slices(SLICE_EVENTS):
                named = with_row_axis(part, self.recording.journal)
                yield _ordered(named, LAUNCHES)
            first += count

    def _steps(self) -> Iterator[pl.DataFrame]:
        inexact = [
            process.process_id
            for process in self.recording.steps
            if (process.started or {}).get("inexact")
        ]
        requests = self.tables.rows.group_by(STEP_KEY).agg(
            pl.col("request_id").n_unique().alias("requests")
        )
        steps = (
            self.tables.steps.join(
                step_launches(self.result.launches), on=STEP_KEY, how="left", maintain_order="left"
            )
            .join(requests, on=STEP_KEY, how="left", maintain_order="left")
            .with_columns(
                pl.col("requests", "launches", "expected_blocks", "matched_blocks").fill_null(0),
                (~pl.col(PROCESS_ID).is_in(inexact)).alias("positions_exact"),
            )
        )
        for of_process in steps.partition_by(PROCESS_ID, maintain_order=True):
            for part in of_process.iter_slices(SLICE_EVENTS):
                yield _ordered(part, STEPS)

    def _requests(self) -> Iterator[pl.DataFrame]:
        rows = [_request_row(request) for request in self.recording.requests]
        yield pl.DataFrame(rows, schema=schema_of(REQUESTS), orient="row").sort("request_index")


def step_launches(launches: pl.DataFrame) -> pl.DataFrame:
    """Add up the launches of each step that a launch names.

    Returns:
        process_id, step_stamp, `launches`, `expected_blocks`, `matched_blocks`,
        `first_globaltimer_ns` and `last_globaltimer_ns` (null if no block entered).

    Units: ns of %globaltimer at block entry.
    """
    return (
        launches.lazy()
        .filter(pl.col(STEP_STAMP) > 0)
        .group_by(STEP_KEY)
        .agg(
            pl.len().cast(pl.UInt32).alias("launches"),
            pl.col("expected_blocks", "matched_blocks").sum(),
            pl.col("first_globaltimer_ns").min(),
            pl.col("last_globaltimer_ns").max(),
        )
        .collect()
    )


def request_indices(request_ids: pl.Series, requests: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Return each of the engine's request ids once, with the request that it stands for.

    Returns:
        `request_id`, `owner_request_index` (null: kvtrace sent no such request).
    """
    sent = sent_request_ids(requests)
    known = request_ids.unique(maintain_order=True)
    return pl.DataFrame(
        {
            "request_id": known,
            "owner_request_index": [our_request_index(one, sent) for one in known],
        },
        schema={"request_id": pl.String, "owner_request_index": pl.UInt32},
    )


class _Owners:
    """Gives rows to the requests that own them."""

    def __init__(self, recording: Recording, tables: StepTables) -> None:
        forward = tables.steps.filter(pl.col(STEP_KIND) == _FORWARD).select(STEP_KEY)
        self._rows = tables.rows.join(forward, on=STEP_KEY, how="semi", maintain_order="left")
        self._indices = request_indices(self._rows["request_id"], recording.requests)

    def add(self, part: pl.DataFrame, is_known: pl.Expr) -> pl.DataFrame:
        """Add `owner`, `request_id`, `position`, `owner_request_index`.

        Args:
            part: of one process, with `step_stamp`, `step_kind` and `row`.
            is_known: where it is false the owner is `unknown`, whatever the step says.
        """
        found = part.join(
            _of_steps(self._rows, part), on=_ROW_KEY, how="left", maintain_order="left"
        ).join(self._indices, on="request_id", how="left", maintain_order="left")
        kind = pl.col(STEP_KIND)
        is_forward = kind == _FORWARD
        owner = (
            pl.when(~is_known)
            .then(pl.lit("unknown"))
            .when(is_forward & pl.col("request_id").is_not_null())
            .then(pl.lit("owned"))
            .when(is_forward & pl.col("row").is_not_null())
            .then(pl.lit("padding"))
            .when(kind.is_in(["dummy", "draft"]))
            .then(kind)
            .otherwise(pl.lit("unknown"))
        )
        return found.with_columns(owner.alias("owner"))


def _of_steps(frame: pl.DataFrame, part: pl.DataFrame) -> pl.DataFrame:
    """Return those rows of a frame whose step some row of `part` may belong to."""
    stamps = part[STEP_STAMP]
    return frame.filter(
        pl.col(PROCESS_ID) == part[PROCESS_ID][0] if part.height else pl.lit(value=False),
        pl.col(STEP_STAMP).is_between(stamps.min() or 0, stamps.max() or 0),
    )


def _ordered(frame: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(dtype) for name, dtype in schema_of(columns).items())


def _request_row(request: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `requests`; a field of another kind than documented is null."""
    numbers = (
        "request_index",
        "max_tokens",
        "http_status",
        "host_monotonic_begin_ns",
        "host_monotonic_end_ns",
    )
    times = request.get("token_host_monotonic_ns")
    are_times = isinstance(times, list) and all(_is_whole(one) for one in times)
    return (
        {name: request.get(name) if _is_whole(request.get(name)) else None for name in numbers}
        | {
            name: request[name] if isinstance(request.get(name), str) else None
            for name in ("request_id", "role", "error")
        }
        | {
            "prompt_tokens": _count(request.get("prompt_token_ids")),
            "returned_tokens": _count(request.get("returned_token_ids")),
            "token_host_monotonic_ns": times if are_times else None,
        }
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _count(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None
