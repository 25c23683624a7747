"""Scenes for the audit's rules: steps as the engine plug-in writes them, and each row's stores.

Every row of a request first stores where it should; a test then moves, drops or adds stores.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
from builders import flags

from kvtrace_cli.analysis.audit import audit
from kvtrace_cli.analysis.audit_model import Audit
from kvtrace_cli.analysis.model import Reconciliation, Verdict
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.event_source import EventDump, EventPiece
from kvtrace_cli.dumps.schema import (
    Dump,
    FileHeader,
    KvGroup,
    KvTensor,
    Layout,
    ProcessSteps,
    Recording,
    record_dtype,
    record_schema,
)

PROCESS_ID = 4711
BLOCK_SIZE = 4
NUM_BLOCKS = 32
TOKEN_BYTES = 64
LAYER_BYTES = 0x100000

STORE_SCHEMA = {
    "process_id": pl.UInt32,
    "context_index": pl.UInt16,
    "sequence": pl.UInt64,
    "launch_index": pl.UInt32,
    "step_stamp": pl.UInt32,
    "step_kind": pl.String,
    "row": pl.UInt32,
    "layer_index": pl.UInt32,
    "kv_group": pl.UInt16,
    "part": pl.String,
    "kv_block_id": pl.UInt32,
    "offset": pl.UInt32,
    "written_slot": pl.Int64,
    "head": pl.UInt32,
    "address": pl.UInt64,
    "access_size": pl.UInt8,
    "thread_index": pl.UInt16,
    "in_kv_tensor": pl.Boolean,
    "pc": pl.UInt64,
}


@dataclass
class Scene:
    """A process with `layers` layers in each KV group; group g has the layers from g * layers."""

    layers: int = 2
    groups: int = 1
    null_block: int | None = 0
    mla: bool = False
    windows: tuple[dict[str, Any], ...] = ({}, {})
    started: dict[str, Any] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)
    stores: list[dict[str, Any]] | None = None

    def step(self, kind: str = "forward", **fields: Any) -> int:
        """Add a step; `requests` are (request id, rows, first position)."""
        stamp = 1 + sum(line["event"] == "step" for line in self.lines)
        rows = sum(count for _, count, _ in fields.get("requests", ()))
        line = {"event": "step", "step_stamp": stamp, "kind": kind, "rows": rows} | fields
        self.lines.append(line)
        return stamp

    def prompt(self, request_id: str, tokens: int, blocks: list[int], computed: int = 0) -> int:
        """Admit a request and compute the rest of its prompt in one step."""
        return self.step(
            requests=[(request_id, tokens - computed, computed)],
            admitted=[self.admission(request_id, blocks, computed)],
        )

    def admission(self, request_id: str, blocks: list[int], computed: int = 0) -> list[Any]:
        """Return an entry of `admitted`; each group has KV blocks of its own, 100 apart."""
        return [request_id, computed, [[b and b + 100 * g for b in blocks] for g in self._range()]]

    def idle(self, **changes: Any) -> None:
        self.lines.append({"event": "idle"} | changes)

    def record(self) -> "Scene":
        """Let every row of every request store what it should; sequences follow the steps."""
        slots = step_tables(self.recording()).slots.filter(pl.col("expected_slot").is_not_null())
        self.stores = []
        for row in slots.sort("step_stamp", "row", "kv_group").iter_rows(named=True):
            for layer in self._layers_of(row["kv_group"]):
                for part in self._parts():
                    self.add(row["step_stamp"], row["row"], layer, part, row["expected_slot"])
        return self

    def add(
        self, step: int | None, row: int | None, layer: int, part: str, slot: int, **changes: Any
    ) -> None:
        """Add one store."""
        if self.stores is None:
            self.record()
        sequence = len(self.stores)
        self.stores.append(
            {
                "process_id": PROCESS_ID,
                "context_index": 0,
                "sequence": sequence,
                "launch_index": 0,
                "step_stamp": step,
                "step_kind": self._kind(step),
                "row": row,
                "layer_index": layer,
                "kv_group": layer // self.layers,
                "part": part,
                "head": 0,
                "access_size": 16,
                "thread_index": 0,
                "in_kv_tensor": True,
                "pc": 0x1000,
            }
            | placed(layer, part, slot)
            | changes
        )

    def add_all(self, step: int, row: int, slot: int) -> None:
        """Add the stores of one row, in every layer of the first group, to one slot."""
        for layer in self._layers_of(0):
            for part in self._parts():
                self.add(step, row, layer, part, slot)

    def of(self, step: int, row: int, layer: int | None = None, part: str | None = None):
        """Return the stores of a row, to be changed."""
        if self.stores is None:
            self.record()
        return [
            store
            for store in self.stores
            if (store["step_stamp"], store["row"]) == (step, row)
            and layer in (None, store["layer_index"])
            and part in (None, store["part"])
        ]

    def move(self, slot: int, *where: Any) -> None:
        """Let stores go to another slot."""
        for store in self.of(*where):
            store.update(placed(store["layer_index"], store["part"], slot))

    def drop(self, *where: Any) -> None:
        """Let stores not happen."""
        lost = self.of(*where)
        self.stores = [store for store in self.stores if not any(store is one for one in lost)]

    def outside(self, *where: Any) -> None:
        """Let stores go outside every KV tensor."""
        nowhere = dict.fromkeys(
            ("layer_index", "kv_group", "part", "kv_block_id", "offset", "written_slot")
        )
        for store in self.of(*where):
            store.update(nowhere | {"address": 0x10, "in_kv_tensor": False})

    def layout(self) -> Layout:
        axes = ("block", "offset", "dim") if self.mla else ("block", "offset", "kv_dim")
        tensors = [
            KvTensor(
                layer_name=f"layer.{layer}",
                layer_index=layer,
                group=group,
                role="kv",
                address=LAYER_BYTES * (1 + layer),
                shape=(NUM_BLOCKS, BLOCK_SIZE, 32),
                stride=(32 * BLOCK_SIZE, 32, 1),
                axes=axes,
                dtype="bfloat16",
                element_size=2,
            )
            for group in self._range()
            for layer in self._layers_of(group)
        ]
        names = tuple(
            tuple(f"layer.{layer}" for layer in self._layers_of(group)) for group in self._range()
        )
        groups = tuple(
            KvGroup(BLOCK_SIZE, BLOCK_SIZE, layers, **self.windows[group])
            for group, layers in enumerate(names)
        )
        return Layout(NUM_BLOCKS, self.null_block, groups, tuple(tensors))

    def recording(self, **changes: Any) -> Recording:
        started = {"ranks": {"tensor": 0}, "block_sizes": [BLOCK_SIZE] * self.groups}
        process = ProcessSteps(
            PROCESS_ID,
            {"event": "started", "stamped": True} | started | self.started,
            tuple(self.lines),
            self.layout(),
        )
        values = {
            "incomplete": False,
            "manifest": {"engine": "vllm"},
            "requests": (),
            "journal": ({"event": "attached", "process_id": PROCESS_ID},),
            "events": (event_dump(),),
            "launches": (launch_dump(),),
            "steps": (process,),
        }
        return Recording(**(values | changes))

    def audit(
        self, recording: Recording | None = None, slice_stores: int = 1000, **changes: Any
    ) -> Audit:
        """Audit the scene; `changes` are those of the reconciliation, which agrees otherwise."""
        if self.stores is None:
            self.record()
        recording = recording or self.recording()
        located = [{name: store[name] for name in STORE_SCHEMA} for store in self.stores]
        stores = pl.DataFrame(located, schema=STORE_SCHEMA, orient="row")
        result = agreed(recording, **changes)
        return audit(
            recording, result, step_tables(recording), lambda: stores.iter_slices(slice_stores)
        )

    def _range(self) -> range:
        return range(self.groups)

    def _layers_of(self, group: int) -> range:
        return range(group * self.layers, (group + 1) * self.layers)

    def _parts(self) -> tuple[str, ...]:
        return ("KV",) if self.mla else ("K", "V")

    def _kind(self, step: int | None) -> str | None:
        return next((line["kind"] for line in self.lines if line.get("step_stamp") == step), None)


def placed(layer: int, part: str, slot: int) -> dict[str, int]:
    """Return what the address of a slot says."""
    return {
        "written_slot": slot,
        "kv_block_id": slot // BLOCK_SIZE,
        "offset": slot % BLOCK_SIZE,
        "address": LAYER_BYTES * (1 + layer) + slot * TOKEN_BYTES + (32 if part == "V" else 0),
    }


def launch_dump() -> Dump:
    """Return a launch file without launches."""
    records = pl.DataFrame(schema=record_schema(abi.LAUNCHES_STRUCT))
    return Dump(f"{PROCESS_ID}.launches.kvt", event_dump().header, records)


class NoEvents:
    """What an event file without events reads."""

    def read(self, first: int, count: int) -> EventPiece:
        assert (first, count) == (0, 0)
        records = np.empty(0, record_dtype(abi.EVENTS_STRUCT))
        return EventPiece(records, np.empty(0, np.uint64))


def event_dump(*names: str, **changes: Any) -> EventDump:
    """Return an event file without events; its stores were recorded unless `names` say not."""
    values = {
        "record_count": 0,
        "dropped_count": 0,
        "host_monotonic_ns": 0,
        "capacity": 1024,
        "process_id": PROCESS_ID,
        "context_index": 0,
        "flags": flags(*(names or ("CLOSED", "PATCHED", "WRITES"))),
        "first_failure_site": 0,
        "first_failure_result": 0,
    }
    return EventDump(f"{PROCESS_ID}-0.events.kvt", FileHeader(**(values | changes)), NoEvents())


def agreed(recording: Recording, **changes: Any) -> Reconciliation:
    """Return what reconciling would give if every block had its event."""
    values = {"verdict": Verdict.AGREES, "reasons": ()}
    return replace(reconcile(recording), **(values | changes))
