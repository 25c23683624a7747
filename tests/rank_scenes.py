"""Runs of several ranks, process by process: no engine and no GPU needed.

Every rank runs the same prompt of three tokens and two decode steps, unless a test says otherwise;
each row enters every layer of its rank once, and stores K and V where its request's table says.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders import (
    Launch,
    Trace,
    flags,
    journal,
    kv_address,
    layout,
    request,
    started,
    step,
    write_lines,
    write_run,
)

from kvtrace_cli.analysis.model import Reconciliation
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.dumps.schema import Recording

BLOCK_SIZE = 16
REQUEST = "cmpl-kvtrace-0-0-1a2b3c4d"
KV_BLOCK = 5
FIRST_PID = 4711


def steps_of(request_id: str = REQUEST, decodes: int = 2) -> list[dict[str, Any]]:
    """Return a profiling step, a prompt of three tokens, and decode steps."""
    prompt = step(2, requests=[[request_id, 3, 0]], admitted=[[request_id, 0, [[KV_BLOCK]]]])
    later = [step(3 + k, requests=[[request_id, 1, 3 + k]]) for k in range(decodes)]
    return [step(1, kind="dummy", rows=4), prompt, *later]


def slot_of(position: int) -> int:
    """Return the slot of a token of the request."""
    return KV_BLOCK * BLOCK_SIZE + position


@dataclass
class RankScene:
    """One process of an engine, and what it ran; `place` is data, pipeline and tensor rank.

    `written_slot` maps (step stamp, layer, row, part, slot) to the slot that is written, None for
    none; `entered` says of (step stamp, layer, row) whether its block enters, and `launched` of
    (step stamp, layer) whether it is launched.
    """

    process_id: int = FIRST_PID
    place: tuple[int, int, int] = (0, 0, 0)
    layers: range = range(2)
    lines: list[dict[str, Any]] = field(default_factory=steps_of)
    started: dict[str, Any] = field(default_factory=dict)
    written_slot: Callable[..., int | None] = lambda _stamp, _layer, _row, _part, slot: slot
    entered: Callable[[int, int, int], bool] = lambda _stamp, _layer, _row: True
    launched: Callable[[int, int], bool] = lambda _stamp, _layer: True
    writes: bool = True
    stamped: bool = True
    closed: bool = True
    dropped: int = 0
    heads: int = 2

    def ranks(self) -> dict[str, int]:
        data, pipeline, tensor = self.place
        return {"data": data, "pipeline": pipeline, "tensor": tensor}

    def layout(self) -> dict[str, Any]:
        """Return the layout of this rank's layers, at addresses of its own."""
        whole = layout(len(self.layers), BLOCK_SIZE, heads=self.heads)
        for tensor, index in zip(whole["tensors"], self.layers, strict=True):
            tensor["layer_index"] = index
            tensor["layer_name"] = f"layers.{index}"
            tensor["address"] += (self.process_id - FIRST_PID) << 32
        return whole

    def trace(self) -> Trace:
        """Return the launches and events of the steps."""
        kinds = {"CLOSED": self.closed, "PATCHED": True, "WRITES": self.writes}
        set_flags = flags(*(kind for kind, is_set in kinds.items() if is_set))
        trace = Trace(process_id=self.process_id, changes={"flags": set_flags})
        for line in self.lines:
            for layer in self.layers if line["event"] == "step" else ():
                if self.launched(line["step_stamp"], layer):
                    self._launch(trace, line, layer)
        trace.drop(self.dropped)
        return trace

    def _launch(self, trace: Trace, line: dict[str, Any], layer: int) -> None:
        stamp = line["step_stamp"]
        rows = line.get("padded_rows") or line["rows"]
        launch = trace.plain((rows, 1, 1), step_stamp=stamp if self.stamped else 0)
        positions = [
            position + offset
            for _, count, position in line.get("requests", ())
            for offset in range(count)
        ]
        for row in range(rows):
            if self.entered(stamp, layer, row):
                trace.enter(launch, (row, 0, 0))
                if self.writes and line["kind"] == "forward" and row < len(positions):
                    self._store(trace, launch, (stamp, layer, row), slot_of(positions[row]))

    def _store(self, trace: Trace, launch: Launch, where: tuple[int, int, int], slot: int) -> None:
        shape = self.layout()
        stamp, layer, row = where
        for part in "KV":
            written = self.written_slot(stamp, layer, row, part, slot)
            if written is None:
                continue
            for head in range(self.heads):
                at = kv_address(written, self.layers.index(layer), part, head, shape)
                trace.store(launch, (row, 0, 0), at)


def tensor_ranks(count: int = 2, **changes: Any) -> list[RankScene]:
    """Return the ranks of a tensor-parallel engine, all alike."""
    return [
        RankScene(process_id=FIRST_PID + rank, place=(0, 0, rank), **changes)
        for rank in range(count)
    ]


def pipeline_ranks(*layers: range) -> list[RankScene]:
    """Return pipeline ranks that hold these layers."""
    return [
        RankScene(process_id=FIRST_PID + rank, place=(0, rank, 0), layers=held)
        for rank, held in enumerate(layers)
    ]


def data_ranks(*lines: list[dict[str, Any]]) -> list[RankScene]:
    """Return data ranks that ran these steps."""
    return [
        RankScene(process_id=FIRST_PID + rank, place=(rank, 0, 0), lines=steps)
        for rank, steps in enumerate(lines)
    ]


def write_ranks(
    path: Path, scenes: Iterable[RankScene], parallel: dict[str, int] | None = None, **options: Any
) -> Path:
    """Write a run directory of these processes; `parallel` are the sizes that were asked for."""
    manifest = {"engine": "vllm", "parallel": parallel} | options.pop("manifest", {})
    run = write_run(path, manifest=manifest, **({"requests": [request()]} | options))
    raw = run / "raw"
    for scene in scenes:
        pid, trace = scene.process_id, scene.trace()
        (raw / f"{pid}-0.events.kvt").write_bytes(trace.event_file())
        (raw / f"{pid}.launches.kvt").write_bytes(trace.launch_file())
        write_lines(raw / f"{pid}.journal.jsonl", journal())
        first = started(ranks=scene.ranks(), stamped=scene.stamped) | scene.started
        write_lines(raw / f"{pid}.steps.jsonl", [first, *scene.lines])
        (raw / f"{pid}.layout.json").write_text(json.dumps(scene.layout()))
    return run


def recorded_ranks(path: Path, scenes: Iterable[RankScene], **options: Any) -> Recording:
    """Write such a run and read it back."""
    return read_recording(
        open_run_dir(write_ranks(path / "run", scenes, **options), allow_incomplete=True)
    )


def reconciled_ranks(path: Path, scenes: Iterable[RankScene], **options: Any) -> Reconciliation:
    """Write such a run, read it back and reconcile it."""
    return reconcile(recorded_ranks(path, scenes, **options))
