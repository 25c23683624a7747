"""Whose the rows were: block entries and stores by request, token position and layer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import combinations
from typing import Any, Final

import polars as pl

from kvtrace_cli.analysis.kv_layout import KvLayout
from kvtrace_cli.analysis.launches import IS_MEASURED
from kvtrace_cli.analysis.model import Attribution, Reconciliation, RequestWrites, RowCounts
from kvtrace_cli.analysis.rank_model import process_title
from kvtrace_cli.analysis.ranks import ranks_of
from kvtrace_cli.analysis.row_mapping import ROW_AXIS, with_row_axis
from kvtrace_cli.analysis.row_owners import (
    IS_ENGINE_OWN,
    LAUNCH_COLUMNS,
    ROW_ID,
    count_entries,
    count_stores,
    is_engine_own,
    owned_rows,
)
from kvtrace_cli.analysis.steps import STEP_KEY, STEP_KIND, StepTables
from kvtrace_cli.analysis.stores import located_slices
from kvtrace_cli.analysis.wrong_cells import WRONG_CELLS_SCHEMA, WrongCells
from kvtrace_cli.dumps.schema import (
    LAUNCH_INDEX,
    LAYER_INDEX,
    PROCESS_ID,
    REQUEST_INDEX,
    Recording,
)

_TOKEN_KEY: Final = (PROCESS_ID, "request_id", "position")
_TOKEN_SCHEMA: Final = {
    PROCESS_ID: pl.UInt32,
    "request_id": pl.String,
    "position": pl.UInt32,
    "layers": pl.UInt32,
    "layers_entered": pl.UInt32,
    "k_layers": pl.UInt32,
    "v_layers": pl.UInt32,
}
_KEY_PARTS: Final = ("K", "KV")
_VALUE_PARTS: Final = ("V", "KV")


def attribute(result: Reconciliation, recording: Recording, tables: StepTables) -> Attribution:
    """Give block entries and stores to the requests and token positions whose rows they are.

    Args:
        result: of `recording`.
        recording: its steps, layouts, requests and journals.
        tables: its `step_tables`.

    Returns:
        Attribution. A row of a forward step that no request has is padding. A position counts once,
        also if it was computed again after a preemption: with the most layers of any of its steps.

    Assumes: each target launch of a forward step is one layer's, and a row entered a layer when
    all its blocks did. Layers expected: those of the layout if one target kernel runs, else as many
    launches as the step with the most has.
    """
    if result.is_seen_by_cupti:
        return _nothing()
    rows = owned_rows(tables)
    launches = with_row_axis(result.launches.select(LAUNCH_COLUMNS), recording.journal)
    entries = count_entries(launches, result.contexts, rows)
    layouts = {
        process.process_id: KvLayout(process.layout)
        for process in recording.steps
        if process.layout
    }
    stores = _Stores(rows, layouts) if result.stores else None
    wrong = WrongCells(recording, tables, _ours(recording, tables))
    if stores:
        is_measured = launches[IS_MEASURED]
        for part in located_slices(result, recording):
            stores.add(part.with_columns(is_measured.gather(part[LAUNCH_INDEX])))
            wrong.add(part)
    tokens = _tokens(rows, entries.by_row, stores, _layers(launches, layouts))
    return Attribution(
        has_steps=not tables.steps.is_empty(),
        measured=entries.measured if result.measured else None,
        whole_life=entries.whole_life,
        measured_stores=stores.measured if stores and result.measured else None,
        stores=stores.whole_life if stores else None,
        requests=tuple(_requests(tokens, recording, tables)),
        notes=tuple(_notes(recording, launches)),
        tokens=tokens,
        wrong_cells=wrong.frame(),
    )


def our_request_index(request_id: str, sent: Mapping[str, int]) -> int | None:
    """Return the index of the request that the engine calls by this id; None if it is not ours.

    Args:
        request_id: the engine's, which puts the id that was sent between a prefix and suffixes of
            its own: `cmpl-kvtrace-3-0-1a2b3c4d`.
        sent: `request_index` of each id that was sent, from `sent_request_ids`.
    """
    words = request_id.split("-")
    parts = combinations(range(len(words) + 1), 2)
    found = (sent.get("-".join(words[begin:end])) for begin, end in parts)
    return next((index for index in found if index is not None), None)


def sent_request_ids(requests: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return `request_index` by the X-Request-Id that was sent."""
    return {
        request["request_id"]: request["request_index"]
        for request in requests
        if isinstance(request.get("request_id"), str)
    }


def _ours(recording: Recording, tables: StepTables) -> pl.DataFrame:
    """Return `request_id` of the engine and `request_index` of the requests that kvtrace sent."""
    sent = sent_request_ids(recording.requests)
    return pl.DataFrame(
        [(one, our_request_index(one, sent)) for one in tables.rows["request_id"].unique()],
        schema={"request_id": pl.String, REQUEST_INDEX: pl.UInt32},
        orient="row",
    ).drop_nulls()


def _nothing() -> Attribution:
    """Return what is to be said where nothing that could have an owner was recorded."""
    return Attribution(
        has_steps=False,
        measured=None,
        whole_life=RowCounts(),
        measured_stores=None,
        stores=None,
        requests=(),
        notes=(),
        tokens=pl.DataFrame(schema=_TOKEN_SCHEMA),
        wrong_cells=pl.DataFrame(schema=WRONG_CELLS_SCHEMA),
    )


class _Stores:
    """Adds up located stores slice by slice; one bit for each row and layer, for K and for V."""

    def __init__(self, rows: pl.DataFrame, layouts: dict[int, KvLayout]) -> None:
        self._rows = rows.select(*STEP_KEY, "row", ROW_ID, IS_ENGINE_OWN)
        self._layers = max((len(layout.layer_indices) for layout in layouts.values()), default=0)
        self._numbers = pl.DataFrame(
            [
                (process_id, index, number)
                for process_id, layout in layouts.items()
                for number, index in enumerate(layout.layer_indices)
            ],
            schema={PROCESS_ID: pl.UInt32, LAYER_INDEX: pl.UInt32, "number": pl.UInt64},
            orient="row",
        )
        self._key_bits, self._value_bits = (
            pl.repeat(value=False, n=rows.height * self._layers, dtype=pl.Boolean, eager=True)
            for _ in range(2)
        )
        self.whole_life = self.measured = RowCounts()

    def add(self, stores: pl.DataFrame) -> None:
        """Add one slice, with `is_measured`."""
        known = stores.join(
            self._rows, on=[*STEP_KEY, "row"], how="left", maintain_order="left", validate="m:1"
        )
        self.whole_life = _sum(self.whole_life, count_stores(known))
        self.measured = _sum(self.measured, count_stores(known.filter(IS_MEASURED)))
        cells = known.filter(pl.col(ROW_ID).is_not_null()).join(
            self._numbers, on=[PROCESS_ID, LAYER_INDEX], validate="m:1"
        )
        bit = pl.col(ROW_ID).cast(pl.UInt64) * self._layers + pl.col("number")
        for bits, parts in ((self._key_bits, _KEY_PARTS), (self._value_bits, _VALUE_PARTS)):
            found = cells.filter(pl.col("part").is_in(list(parts))).select(bit.unique())
            bits.scatter(found.to_series(), values=True)

    def by_row(self) -> pl.DataFrame:
        """Return `row_id`, `k_layers` and `v_layers`: in how many layers each row stored."""
        return pl.DataFrame(
            {
                ROW_ID: self._rows[ROW_ID],
                "k_layers": self._count(self._key_bits),
                "v_layers": self._count(self._value_bits),
            }
        )

    def _count(self, bits: pl.Series) -> pl.Series:
        if not self._layers:
            return pl.repeat(None, self._rows.height, dtype=pl.UInt32, eager=True)
        counts = bits.cast(pl.UInt8).reshape((-1, self._layers)).arr.sum().cast(pl.UInt32)
        return pl.Series(counts)


def _sum(one: RowCounts, other: RowCounts) -> RowCounts:
    return RowCounts(
        **{part.name: getattr(one, part.name) + getattr(other, part.name) for part in fields(one)}
    )


def _layers(launches: pl.DataFrame, layouts: dict[int, KvLayout]) -> pl.DataFrame:
    """Return of each process with forward steps how many layers a row is expected in."""
    forward = launches.filter(pl.col(STEP_KIND) == "forward")
    observed = (
        forward.group_by(STEP_KEY)
        .agg(pl.len().alias("launches"))
        .group_by(PROCESS_ID)
        .agg(pl.col("launches").max())
    )
    kernels = forward.group_by(PROCESS_ID).agg(pl.col("kernel_slot").n_unique().alias("kernels"))
    known = pl.DataFrame(
        [(process_id, len(layout.layer_indices)) for process_id, layout in layouts.items()],
        schema={PROCESS_ID: pl.UInt32, "known": pl.UInt32},
        orient="row",
    )
    one_kernel = (pl.col("kernels").fill_null(0) <= 1) & (pl.col("known") > 0)
    return (
        observed.join(kernels, on=PROCESS_ID, validate="1:1")
        .join(known, on=PROCESS_ID, how="full", coalesce=True, validate="1:1")
        .select(
            PROCESS_ID,
            pl.when(one_kernel).then("known").otherwise("launches").cast(pl.UInt32).alias("layers"),
        )
    )


def _tokens(
    rows: pl.DataFrame, entered: pl.DataFrame, stores: _Stores | None, layers: pl.DataFrame
) -> pl.DataFrame:
    """Return the `tokens` of Attribution."""
    stored = stores.by_row() if stores else None
    of_rows = rows.join(entered, on=ROW_ID, how="left", maintain_order="left", validate="1:1")
    if stored is None:
        of_rows = of_rows.with_columns(
            pl.lit(None, pl.UInt32).alias(name) for name in ("k_layers", "v_layers")
        )
    else:
        of_rows = of_rows.join(stored, on=ROW_ID, maintain_order="left", validate="1:1")
    return (
        of_rows.group_by(_TOKEN_KEY, maintain_order=True)
        .agg(
            pl.col("launches").max().fill_null(0).alias("layers_entered"),
            pl.col("k_layers", "v_layers").max(),
        )
        .join(layers, on=PROCESS_ID, how="left", maintain_order="left", validate="m:1")
        .with_columns(pl.col("layers").fill_null(0))
        .select(pl.col(name).cast(dtype) for name, dtype in _TOKEN_SCHEMA.items())
    )


def _requests(
    tokens: pl.DataFrame, recording: Recording, tables: StepTables
) -> Iterator[RequestWrites]:
    """Yield ours by their index, then the others in the order of their first step."""
    by_process = tokens.group_by("request_id", PROCESS_ID, maintain_order=True).agg(
        pl.len().alias("positions"),
        pl.col("position").max().alias("last"),
        pl.col("layers", "layers_entered", "k_layers", "v_layers").sum(),
        pl.col("layers").max().alias("layers_of_process"),
        (pl.col("k_layers").null_count() == 0).alias("has_stores"),
    )
    requests = (
        by_process.group_by("request_id", maintain_order=True)
        .agg(
            pl.col("positions", "last").max(),
            pl.col("layers", "layers_entered", "k_layers", "v_layers", "layers_of_process").sum(),
            pl.col("has_stores").all(),
        )
        .with_columns(is_engine_own())
    )
    cached = dict(
        tables.holdings.group_by("request_id").agg(pl.col("writes_from").min()).iter_rows()
    )
    ours = {request["request_index"]: request for request in recording.requests}
    sent = sent_request_ids(recording.requests)
    found = [
        _request(row, cached.get(row["request_id"]) or 0, ours, sent)
        for row in requests.iter_rows(named=True)
    ]
    yield from sorted(found, key=_order)


def _order(request: RequestWrites) -> tuple[int, int]:
    if request.request_index is not None:
        return 0, request.request_index
    return (2 if request.is_engine_own else 1), 0


def _request(
    row: dict[str, Any], cached: int, ours: dict[int, dict[str, Any]], sent: Mapping[str, int]
) -> RequestWrites:
    index = our_request_index(row["request_id"], sent)
    prompt, returned = _tokens_of({} if index is None else ours[index])
    stored = bool(row["has_stores"])
    return RequestWrites(
        request_index=index,
        request_id=row["request_id"],
        is_engine_own=row["is_engine_own"],
        prompt_tokens=prompt,
        returned_tokens=returned,
        cached_positions=cached,
        positions=row["positions"],
        layers=row["layers_of_process"],
        expected=row["layers"],
        entered=row["layers_entered"],
        k_written=row["k_layers"] if stored else None,
        v_written=row["v_layers"] if stored else None,
        lacks=tuple(_lacks(row, cached, prompt, returned)),
    )


def _tokens_of(request: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return how many tokens were asked with and how many came back; None where unknown."""
    prompt, returned = (request.get(name) for name in ("prompt_token_ids", "returned_token_ids"))
    return (
        len(prompt) if isinstance(prompt, list) else None,
        len(returned) if isinstance(returned, list) else None,
    )


def _lacks(
    row: dict[str, Any], cached: int, prompt: int | None, returned: int | None
) -> Iterator[str]:
    """Say what is missing of what a request's positions ask for."""
    last = row["last"]
    # The last token that comes back is never fed in again, so its position is not computed.
    if prompt is not None and returned:
        last = max(last, prompt + returned - 2)
    absent = last + 1 - cached - row["positions"]
    if absent > 0:
        yield f"{absent} position{'s' if absent > 1 else ''}"
    for name, counted in (("entered", "layers_entered"), ("K", "k_layers"), ("V", "v_layers")):
        if counted != "layers_entered" and not row["has_stores"]:
            continue
        missing = row["layers"] - row[counted]
        if missing > 0:
            yield f"{missing} {name}"


def _notes(recording: Recording, launches: pl.DataFrame) -> Iterator[str]:
    """Yield what limits the attribution, one sentence each."""
    if not any(process.lines for process in recording.steps):
        yield "No engine steps were recorded, so no row is given to a request."
        return
    names = ranks_of(recording).names
    for process in recording.steps:
        started = process.started or {}
        where = process_title(process.process_id, names)
        missing, inexact = (", ".join(started.get(name) or ()) for name in ("missing", "inexact"))
        if missing:
            yield f"The engine of {where} lacks what the plug-in hooks: {missing}."
        if inexact:
            yield f"Positions in {where} are upper bounds: {inexact}."
        if started.get("stamped") is False:
            yield f"The injector of {where} takes no step stamps, so its launches have no step."
        for line in process.lines:
            if line["event"] == "failed":
                yield (
                    f"The engine plug-in of {where} stopped in {line.get('hook')}: "
                    f"{line.get('error')}"
                )
    stray = int(launches.filter(pl.col(STEP_KIND).is_null())["matched_blocks"].sum())
    if stray:
        yield f"{stray} block entries are of launches without a recorded step: owner unknown."
    unmapped = launches.filter(
        (pl.col(STEP_KIND) == "forward") & pl.col(ROW_AXIS).is_null(), pl.col("is_patched")
    )
    names = unmapped["kernel"].fill_null("a kernel without a name").unique().sort()
    if len(names):
        yield f"Which rows these kernels' blocks are is not known: {', '.join(names)}."
