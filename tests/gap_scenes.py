"""Pairs of runs for `kvtrace gap`: what the Sanitizer saw, and what CUPTI saw of the same."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders import PROCESS_ID, TARGET, Trace, flags, request, struct_bytes, write_lines, write_run

from kvtrace_cli.dumps import abi

TARGET_SYMBOL = f"_Z{len(TARGET)}{TARGET}IttEvPKT_"
GEMM = "_ZN7cutlass6gemm_kEv"
NORM = "triton_red_fused_norm_0"
# Somewhere on CUPTI's clock, which has nothing to do with the other run's.
CUPTI_START_NS = 5_000_000
CONFIG = {"recording": {"kernels": [TARGET]}}
SANITIZER_MANIFEST = {"engine": "vllm", "observer": "sanitizer", "config": CONFIG}
CUPTI_MANIFEST = {"engine": "vllm", "observer": "cupti", "config": CONFIG}


@dataclass
class Seen:
    """Activity records of one process, played one by one on CUPTI's clock."""

    process_id: int = PROCESS_ID
    names: list[str] = field(default_factory=list)
    records: list[dict[str, int]] = field(default_factory=list)

    def kernel(self, name: str, begin: int, end: int, **fields: int) -> None:
        """Let a kernel run from `begin` to `end`, ns after the start."""
        if name not in self.names:
            self.names.append(name)
        grid = {"grid_dim_x": 1, "grid_dim_y": 1, "grid_dim_z": 1}
        line = {"name_id": self.names.index(name)}
        self.add("KERNEL", begin, end, **(grid | line | fields))

    def add(self, kind: str, begin: int, end: int, **fields: int) -> None:
        """Let anything run from `begin` to `end`, ns after the start."""
        values = {
            "gpu_cupti_begin_ns": CUPTI_START_NS + begin,
            "gpu_cupti_end_ns": CUPTI_START_NS + end,
            "activity_kind": abi.constant(f"KVTRACE_ACTIVITY_{kind}"),
            "name_id": abi.constant("KVTRACE_ACTIVITY_NO_NAME"),
            "correlation_id": 100_000 + len(self.records),
        }
        self.records.append(values | fields)

    def file(self, **changes: int) -> bytes:
        """Return the bytes of the file of records."""
        header = {
            "magic": abi.constant("KVTRACE_ACTIVITIES_MAGIC"),
            "abi_version": abi.constant("KVTRACE_ABI_VERSION"),
            "record_size": abi.size_of(abi.ACTIVITIES_STRUCT),
            "record_count": len(self.records),
            "process_id": self.process_id,
            "flags": flags("CLOSED"),
        }
        records = (struct_bytes(abi.ACTIVITIES_STRUCT, **one) for one in self.records)
        return struct_bytes(abi.HEADER_STRUCT, **(header | changes)) + b"".join(records)


def in_replay(number: int, node: int = 1) -> dict[str, int]:
    """Return the fields of a record that belongs to a replay."""
    return {"graph_id": 3, "graph_node_id": 30 + node, "correlation_id": number}


def write_seen(
    path: Path,
    *processes: Seen,
    manifest: dict[str, Any] | None = None,
    complete: bool = True,
    requests: Iterable[dict[str, Any]] | None = None,
    **changes: int,
) -> Path:
    """Write the run directory of a run that CUPTI observed."""
    write_run(
        path,
        requests=[request()] if requests is None else requests,
        manifest=CUPTI_MANIFEST if manifest is None else manifest,
        complete=complete,
        journal_lines=[],
    )
    for seen in processes:
        base = f"{path}/raw/{seen.process_id}"
        Path(f"{base}.activity.kva").write_bytes(seen.file(**changes))
        Path(f"{base}.activity.names").write_text("".join(f"{name}\n" for name in seen.names))
        lines = [{"event": "attached", "observer": "cupti"}, {"event": "ended", "reason": "exit"}]
        write_lines(Path(f"{base}.journal.jsonl"), lines)
    return path


def write_blocks(path: Path, *traces: Trace, **fields: Any) -> Path:
    """Write the run directory of the same run, with the Sanitizer."""
    return write_run(path, *traces, **({"manifest": SANITIZER_MANIFEST} | fields))


def launched(replays: int = 3, nodes: int = 2, plain: int = 2) -> Trace:
    """Return plain launches, then replays: what the Sanitizer saw."""
    trace = Trace()
    for _ in range(plain):
        trace.enter_all(trace.plain((8, 1, 1)))
    for launch_id in range(1, replays + 1):
        for node in range(nodes):
            trace.enter_all(trace.node(node, launch_id))
    return trace


def seen(replays: int = 3, nodes: int = 2, plain: int = 2) -> Seen:
    """Return what CUPTI saw of the same.

    Of each replay, in us from its begin: a target 0..10 and 100..110; a GEMM 20..60 on one stream,
    a norm 40..80 on another; a memset 80..90. Then a GEMM 120..150 and a copy 160..180, outside of
    the graph, and the next replay begins at 200.
    """
    found = Seen()
    for number in range(plain):
        found.kernel(TARGET_SYMBOL, number * 1000, number * 1000 + 500, grid_dim_x=8)
    for number in range(1, replays + 1):
        at = number * 200_000
        inside = in_replay(number)
        found.kernel(GEMM, at + 20_000, at + 60_000, **inside)
        found.kernel(NORM, at + 40_000, at + 80_000, stream_id=9, **inside)
        found.add("MEMSET", at + 80_000, at + 90_000, byte_count=64, **inside)
        for node in range(nodes):
            begin = at + node * 100_000 // max(nodes - 1, 1)
            found.kernel(TARGET_SYMBOL, begin, begin + 10_000, **in_replay(number, node))
        found.kernel(GEMM, at + 120_000, at + 150_000)
        found.add("COPY", at + 160_000, at + 180_000, byte_count=4096, copy_kind=2)
    return found


def waits_before(found: Seen, number: int, wait_us: int) -> Seen:
    """Let everything from a replay's begin on come later, as if the GPU had nothing to do."""
    for record in found.records:
        if record["gpu_cupti_begin_ns"] >= CUPTI_START_NS + number * 200_000:
            record["gpu_cupti_begin_ns"] += wait_us * 1000
            record["gpu_cupti_end_ns"] += wait_us * 1000
    return found


def write_pair(
    directory: Path, blocks: Sequence[Trace] | None = None, activities: Sequence[Seen] | None = None
) -> tuple[Path, Path]:
    """Write both runs; what is not given is the scene above."""
    first = write_blocks(directory / "blocks", *(blocks or [launched()]))
    second = write_seen(directory / "activities", *(activities or [seen()]))
    return first, second
