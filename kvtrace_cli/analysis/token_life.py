"""The life of one token: which steps computed it, what each layer wrote, what came after."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from kvtrace_cli.analysis.attribution import our_request_index, sent_request_ids
from kvtrace_cli.analysis.audit_input import audit_input
from kvtrace_cli.analysis.audit_judging import Judging
from kvtrace_cli.analysis.audit_model import FINDING_SCHEMA, LayerWrite, TokenLife, TokenPass
from kvtrace_cli.analysis.audit_ranks import RankSlots
from kvtrace_cli.analysis.audit_survey import store_source
from kvtrace_cli.analysis.joined import slices
from kvtrace_cli.analysis.kv_layout import KvLayout
from kvtrace_cli.analysis.model import Reconciliation
from kvtrace_cli.analysis.ranks import ranks_of
from kvtrace_cli.analysis.row_mapping import ROW_AXIS, row_of_block, with_row_axis
from kvtrace_cli.analysis.steps import STEP_KEY, StepTables
from kvtrace_cli.analysis.token_slot import SlotHistory, cached_note
from kvtrace_cli.dumps.schema import LAUNCH_INDEX, LAYER_INDEX, Layout, Recording

_NS_PER_US = 1000
_MOST_DIGITS = 18  # of a request's number; Python turns only so many into a number at all


def matching_requests(recording: Recording, tables: StepTables, wanted: str) -> tuple[str, ...]:
    """Return the engine's ids of the requests that `wanted` can mean.

    Args:
        recording: its requests.jsonl maps an index, or the id that was sent, to an engine's id.
        tables: the steps, which have the engine's ids.
        wanted: a number of requests.jsonl, an id that was sent, or the beginning of an engine's id.

    Returns:
        The ids that the first of these readings gives; more than one: `wanted` is not clear.
    """
    known = request_ids(tables)
    if wanted in known:
        return (wanted,)
    sent = sent_request_ids(recording.requests)
    is_index = wanted.isdecimal() and len(wanted) <= _MOST_DIGITS
    index = int(wanted) if is_index else sent.get(wanted)
    if index is not None:
        ours = tuple(one for one in known if our_request_index(one, sent) == index)
        if ours:
            return ours
    return tuple(one for one in known if one.startswith(wanted))


def request_ids(tables: StepTables) -> tuple[str, ...]:
    """Return the engine's ids of all requests, in the order of their first rows."""
    return tuple(tables.rows["request_id"].unique(maintain_order=True))


def last_position(tables: StepTables, request_id: str) -> int:
    """Return the last token position that a request's steps computed."""
    positions = tables.rows.filter(pl.col("request_id") == request_id)["position"]
    return int(max(positions))


def token_life(
    recording: Recording,
    result: Reconciliation,
    tables: StepTables,
    request_id: str,
    position: int,
) -> TokenLife:
    """Tell what became of one token.

    Args:
        recording: of one run.
        result: from `reconcile`.
        tables: from `step_tables`.
        request_id: the engine's.
        position: of the token, from 0.

    Returns:
        TokenLife with one pass for each process, step and KV group that computed the token; none
        if the request found it in the prefix cache, which a note says, or has no such token. Which
        later steps read the token is not recorded, so nothing is said of that.

    Units: entry times in microseconds after the token's first layer, GPU globaltimer: when the
    row's first block began. Source: docs/format.md, Steps and Layout; dump ABI v1.
    """
    is_token = (pl.col("request_id") == request_id) & (pl.col("position") == position)
    steps = tables.steps.filter(pl.col("step_kind") == "forward").rename({"rows": "owned_rows"})
    rows = tables.rows.filter(is_token).join(steps, on=STEP_KEY, maintain_order="left")
    passes = rows.join(tables.slots, on=[*STEP_KEY, "row"], maintain_order="left")
    teller = _Teller(recording, result, tables, passes)
    note = cached_note(recording, tables, request_id, position)
    return TokenLife(
        request_id=request_id,
        position=position,
        emulated=result.emulated,
        stores_recorded=result.stores is not None,
        passes=tuple(teller.tell(values) for values in passes.iter_rows(named=True)),
        notes=(note,) if note else (),
    )


class _Teller:
    """What the recording says of the steps that computed one token."""

    def __init__(
        self,
        recording: Recording,
        result: Reconciliation,
        tables: StepTables,
        passes: pl.DataFrame,
    ) -> None:
        self._layouts = {p.process_id: p.layout for p in recording.steps if p.layout}
        self._rank_names = ranks_of(recording).names
        self._started = {p.process_id: p.started or {} for p in recording.steps}
        self._launches = with_row_axis(result.launches, recording.journal).join(
            passes.select(*STEP_KEY, "row").unique(), on=STEP_KEY, maintain_order="left"
        )
        self._entered = _entered(result, self._launches)
        has_stores = result.stores is not None and result.stores.recorded > 0
        seen = _judged(recording, result, tables, passes) if has_stores else None
        self._stores = seen.stores if seen else None
        self._findings = seen.findings if seen else pl.DataFrame(schema=FINDING_SCHEMA)
        self._history = SlotHistory(tables, seen.into_slots if seen else None)

    def tell(self, token: dict[str, Any]) -> TokenPass:
        """Tell one pass; `token` is a row of `passes`."""
        started = self._started[token["process_id"]]
        of_row = [pl.col(name) == token[name] for name in (*STEP_KEY, "row")]
        launches = self._launches.filter(of_row)
        return TokenPass(
            process_id=token["process_id"],
            rank=self._rank_names.get(token["process_id"], ""),
            ranks=started.get("ranks") or {},
            step_stamp=token["step_stamp"],
            step_kind=token["step_kind"],
            graph_mode=token["graph_mode"],
            rows=token["owned_rows"],
            padded_rows=token["padded_rows"],
            row=token["row"],
            kv_group=token["kv_group"],
            launched=_launched(launches),
            expected_slot=token["expected_slot"],
            kv_block_id=token["kv_block_id"],
            offset=token["position"] % started["block_sizes"][token["kv_group"]],
            layers=tuple(self._layers(token, launches, of_row)),
            end=self._history.end(token),
        )

    def _layers(
        self, token: dict[str, Any], launches: pl.DataFrame, of_row: list[pl.Expr]
    ) -> Iterator[LayerWrite]:
        """Yield a line for each launch of the KV group, then for layers that had none."""
        layers = _Layers(self._layouts.get(token["process_id"]))
        problems = _problems_by_layer(self._findings.filter(of_row))
        stores = self._stores.filter(of_row) if self._stores is not None else None
        began = self._entered.filter(of_row)["entered"].min()
        for launch in launches.join(
            self._entered, on=[*STEP_KEY, "row", LAUNCH_INDEX], how="left", maintain_order="left"
        ).iter_rows(named=True):
            done = _stores_of(stores, launch[LAUNCH_INDEX])
            layer = layers.of(launch, done)
            if layers.group_of(layer, token["kv_group"]) == token["kv_group"]:
                yield LayerWrite(
                    layer_index=layer,
                    launch=_launch_name(launch),
                    entered_us=_microseconds(launch["entered"], began),
                    addresses={store["part"] or "?": store["address"] for store in reversed(done)},
                    written_slots=_distinct_slots(done),
                    problems=problems.pop(layer, ()),
                )
        for layer, texts in problems.items():
            if layers.group_of(layer, token["kv_group"]) == token["kv_group"]:
                yield LayerWrite(layer, "-", None, {}, (), texts)


class _Layers:
    """Which layer a launch is: by what it stored, else by its rank in the step."""

    def __init__(self, layout: Layout | None) -> None:
        self._indices = KvLayout(layout).layer_indices if layout else []
        tensors = layout.tensors if layout else ()
        self._groups = {tensor.layer_index: tensor.group for tensor in tensors}

    def of(self, launch: dict[str, Any], stores: list[dict[str, Any]]) -> int | None:
        """Return the layer's index; None if nothing tells."""
        stored = next((one[LAYER_INDEX] for one in stores if one[LAYER_INDEX] is not None), None)
        rank = launch[LAYER_INDEX]
        if stored is not None or rank is None:
            return stored
        return self._indices[rank] if rank < len(self._indices) else int(rank)

    def group_of(self, layer: int | None, otherwise: int) -> int:
        """Return the KV group of a layer."""
        return otherwise if layer is None else self._groups.get(layer, otherwise)


@dataclass(frozen=True)
class _Seen:
    """Stores of the token's steps, what is wrong in them, and all stores into its slots."""

    stores: pl.DataFrame
    findings: pl.DataFrame
    into_slots: pl.DataFrame


def _judged(
    recording: Recording, result: Reconciliation, tables: StepTables, passes: pl.DataFrame
) -> _Seen:
    """Judge the token's steps as an audit does; of the other steps only the slots are looked at."""
    given = audit_input(recording, result, tables, store_source(result, recording))
    slots = passes.select("process_id", "kv_group", pl.col("expected_slot").alias("written_slot"))
    of_steps, into_slots = [], []
    for part in given.source():
        of_steps.append(part.join(passes, on=STEP_KEY, how="semi", maintain_order="left"))
        into_slots.append(part.join(slots, on=slots.columns, how="semi", maintain_order="left"))
    stores = pl.concat(of_steps)
    steps = tables.steps.join(passes, on=STEP_KEY, how="semi", maintain_order="left")
    restricted = replace(
        given,
        tables=replace(given.tables, steps=steps),
        source=lambda: iter((stores,)),
        survey=replace(given.survey, steps=given.survey.steps.join(steps, on=STEP_KEY, how="semi")),
    )
    ranks = RankSlots(recording, ranks_of(recording), restricted)
    findings = Judging(restricted, ranks, with_cached=False).findings
    return _Seen(stores, findings, pl.concat([stores.head(0), *into_slots]))


def _entered(result: Reconciliation, launches: pl.DataFrame) -> pl.DataFrame:
    """Return when the first block of the row entered, for each of the launches; ns."""
    asked = launches.select(*STEP_KEY, "row", LAUNCH_INDEX, ROW_AXIS)
    found = [
        part.filter("matched")
        .join(asked.rename({"row": "asked_row"}), on=[LAUNCH_INDEX, "process_id"])
        .filter(row_of_block() == pl.col("asked_row"))
        .select(
            *STEP_KEY,
            pl.col("asked_row").alias("row"),
            LAUNCH_INDEX,
            pl.col("gpu_globaltimer_ns").alias("entered"),
        )
        for part in slices(result.contexts)
    ]
    nothing = asked.select(*STEP_KEY, "row", LAUNCH_INDEX, entered=pl.lit(0, pl.UInt64)).head(0)
    return (
        pl.concat([nothing, *found])
        .group_by(*STEP_KEY, "row", LAUNCH_INDEX)
        .agg(pl.col("entered").min())
    )


def _stores_of(stores: pl.DataFrame | None, launch_index: int) -> list[dict[str, Any]]:
    if stores is None:
        return []
    return list(stores.filter(pl.col(LAUNCH_INDEX) == launch_index).iter_rows(named=True))


def _distinct_slots(stores: list[dict[str, Any]]) -> tuple[int, ...]:
    slots = (one["written_slot"] for one in stores)
    return tuple(dict.fromkeys(slot for slot in slots if slot is not None))


def _problems_by_layer(findings: pl.DataFrame) -> dict[int | None, tuple[str, ...]]:
    """Return of each layer what is wrong, such as `wrong-slot (K and V)`."""
    found: dict[int | None, tuple[str, ...]] = {}
    by_rule = findings.group_by(LAYER_INDEX, "rule", maintain_order=True).agg("part")
    for layer, rule, parts in by_rule.iter_rows():
        known = " and ".join(part for part in dict.fromkeys(parts) if part)
        found[layer] = (*found.get(layer, ()), f"{rule} ({known})" if known else rule)
    return found


def _launched(launches: pl.DataFrame) -> str:
    """Say what the step launched: replays of a graph, plain launches, or both."""
    replays = (
        launches.filter("is_graph_node")
        .group_by("exec_generation", "launch_id", maintain_order=True)
        .len()
    )
    parts = [
        f"graph exec {generation}, replay {launch_id} ({nodes} nodes)"
        for generation, launch_id, nodes in replays.iter_rows()
    ]
    plain = launches.filter(~pl.col("is_graph_node")).height
    if plain:
        parts.append(f"{plain} plain launches")
    return ", ".join(parts) or "no launch was recorded"


def _launch_name(launch: dict[str, Any]) -> str:
    if launch["is_graph_node"]:
        return f"node {launch[LAYER_INDEX]}"
    return f"grid {launch['grid_id']}"


def _microseconds(entered: int | None, began: Any) -> float | None:
    if entered is None or began is None:
        return None
    return (entered - int(began)) / _NS_PER_US
