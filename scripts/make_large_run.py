#!/usr/bin/env python3
"""Write a large run directory through the ABI, for measuring what reads one. It is made up.

    python scripts/make_large_run.py OUT --events 100000000 --blocks 2048

One process after the other: launches of so many blocks, nodes of a graph of 40 or plain, whose
blocks enter once each, nearly in order. The run agrees. With --tensor-ranks the processes are those
of one engine, each replay is a step of as many requests as a launch has blocks, one row each.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.event_source import Records
from kvtrace_cli.dumps.run_dir import RunDir
from kvtrace_cli.dumps.schema import record_dtype

NODES = 40
FIRST_PID = 1001
PC = 0x7F0000001000
ADDRESS = 0x7F2000000000
STREAM = 0x77
GPU_BEGIN_NS = 1_700_000_000_000_000_000
GPU_STEP_NS = 300
HOST_STEP_NS = 2_000
RING = 1 << 20
ALL_STAMPS = abi.constant("KVTRACE_MAX_LAUNCH_STAMP")
LAUNCHES_AT_ONCE = 1 << 16
KV_BLOCK_TOKENS = 16


@dataclass(frozen=True)
class Shape:
    """What every process of the run does."""

    launches: int
    blocks: int
    stores: int
    plain: bool
    # Of the engine's steps, if there are any.
    ranks: int = 0

    @property
    def events_of_launch(self) -> int:
        """Block entries and stores of one launch."""
        return self.blocks * (1 + self.stores)


def launch_records(shape: Shape, first: int, count: int) -> Records:
    """Return launch records; a replay's share the host time of its first."""
    records = np.zeros(count, record_dtype(abi.LAUNCHES_STRUCT))
    number = np.arange(first, first + count)
    replay, node = np.divmod(number, NODES)
    records["stream"] = STREAM
    records["grid_dim_x"] = shape.blocks
    records["grid_dim_y"] = records["grid_dim_z"] = 1
    records["block_dim_x"] = 512
    records["block_dim_y"] = records["block_dim_z"] = 1
    flags = abi.constant("KVTRACE_LAUNCH_PATCHED")
    if shape.plain:
        records["grid_id"] = 1_000_000 + number
        records["launch_kind"] = abi.constant("KVTRACE_LAUNCH_PLAIN")
        records["host_monotonic_ns"] = (1 + number) * HOST_STEP_NS
    else:
        flags |= abi.constant("KVTRACE_LAUNCH_STAMPED")
        records["graph_exec"] = 0x5000
        records["exec_generation"] = 1
        records["graph_node"] = 0x9000 + node
        records["grid_id"] = 1000 + node
        records["launch_id"] = 1 + replay
        records["launch_stamp"] = 1 + replay % ALL_STAMPS
        records["api_stream"] = STREAM
        records["launch_kind"] = abi.constant("KVTRACE_LAUNCH_GRAPH_NODE")
        records["host_monotonic_ns"] = (1 + replay) * HOST_STEP_NS
    records["launch_flags"] = flags
    if shape.ranks:
        records["step_stamp"] = 1 + replay
    return records


def event_records(shape: Shape, launches: Records, first_launch: int) -> Records:
    """Return the events of some launches: every block's entry and, right after it, its stores."""
    each = 1 + shape.stores
    count = len(launches) * shape.events_of_launch
    records = np.zeros(count, record_dtype(abi.EVENTS_STRUCT))
    sequence = np.arange(count, dtype=np.uint64) + first_launch * shape.events_of_launch
    number = np.arange(count) % shape.events_of_launch // each
    # Blocks enter nearly in order.
    records["block_idx_x"] = np.where(number ^ 1 < shape.blocks, number ^ 1, number)
    for name in ("grid_id", "launch_stamp"):
        records[name] = np.repeat(launches[name], shape.events_of_launch)
    records["gpu_globaltimer_ns"] = GPU_BEGIN_NS + sequence // each * GPU_STEP_NS
    records["pc"] = PC
    records["kernel_slot"] = 0 if shape.plain else abi.constant("KVTRACE_KERNEL_SLOT_FROM_PC")
    records["sm_id"] = number % 132
    is_store = np.arange(count) % each > 0
    records["event_kind"] = abi.constant("KVTRACE_EVENT_BLOCK_ENTER") + is_store
    if shape.stores:
        records["address"] = np.where(is_store, ADDRESS + sequence * 16, 0)
        records["access_size"] = np.where(is_store, 16, 0)
    records["sequence_low"] = sequence.astype(np.uint16)
    for part in range(4):
        records[f"tag{part}"] = (1 + sequence // RING).astype(np.uint16)
    return records


def write_header(file: BinaryIO, kind: str, struct: str, count: int, process_id: int) -> None:
    """Write the header of a file that was closed in order."""
    flags = ("CLOSED", "PATCHED", "EMULATED")
    values = {
        "magic": abi.constant(f"KVTRACE_{kind}_MAGIC"),
        "abi_version": abi.constant("KVTRACE_ABI_VERSION"),
        "record_size": abi.size_of(struct),
        "record_count": count,
        "capacity": RING,
        "process_id": process_id,
        "flags": sum(abi.constant(f"KVTRACE_FILE_{flag}") for flag in flags),
    }
    header = abi.ffi().new(f"{abi.HEADER_STRUCT} *", values)
    file.write(bytes(abi.ffi().buffer(header)))


def write_process(raw: Path, process_id: int, shape: Shape) -> None:
    """Write the files of one process, some launches at a time."""
    at_once = max(1, min(LAUNCHES_AT_ONCE, RING // shape.events_of_launch))
    with (
        (raw / f"{process_id}.launches.kvt").open("wb") as launch_file,
        (raw / f"{process_id}-0.events.kvt").open("wb") as event_file,
    ):
        events = shape.launches * shape.events_of_launch
        write_header(launch_file, "LAUNCHES", abi.LAUNCHES_STRUCT, shape.launches, process_id)
        write_header(event_file, "EVENTS", abi.EVENTS_STRUCT, events, process_id)
        for first in range(0, shape.launches, at_once):
            launches = launch_records(shape, first, min(at_once, shape.launches - first))
            launches.tofile(launch_file)
            event_records(shape, launches, first).tofile(event_file)
    bound = {
        "event": "function_bound",
        "context_index": 0,
        "kernel_slot": 0,
        "name": "reshape_and_cache_flash_kernel",
        "target": True,
        "pc": PC,
    }
    journal = (raw / f"{process_id}.journal.jsonl").open("w")
    with journal:
        journal.write(json.dumps({"event": "attached"}) + "\n" + json.dumps(bound) + "\n")


def write_steps(raw: Path, number: int, shape: Shape) -> None:
    """Write what the engine plug-in would of one rank."""
    steps = shape.launches // NODES
    kv_blocks = -(-steps // KV_BLOCK_TOKENS)
    requests = [f"cmpl-kvtrace-{request}-0" for request in range(shape.blocks)]
    started = {
        "event": "started",
        "schema_version": 1,
        "engine": "emulator",
        "ranks": {"tensor": number, "pipeline": 0, "data": 0, "world": number},
        "world_sizes": {"tensor": shape.ranks, "pipeline": 1, "data": 1},
        "stamped": True,
        "block_sizes": [KV_BLOCK_TOKENS],
    }
    held = [
        [request, 0, [list(range(1 + first, 1 + first + kv_blocks))]]
        for first, request in zip(
            range(0, shape.blocks * kv_blocks, kv_blocks), requests, strict=True
        )
    ]
    with (raw / f"{FIRST_PID + number}.steps.jsonl").open("w") as file:
        file.write(json.dumps(started) + "\n")
        for step in range(steps):
            line = {
                "event": "step",
                "step_stamp": 1 + step,
                "kind": "forward",
                "rows": shape.blocks,
                "requests": [[request, 1, step] for request in requests],
                "host_monotonic_ns": (1 + step) * HOST_STEP_NS,
            }
            file.write(json.dumps(line | ({} if step else {"admitted": held})) + "\n")


def write_run(run_dir: RunDir, processes: int, shape: Shape) -> None:
    """Write the whole run: one measured request over its second half."""
    run_dir.raw.mkdir(parents=True)
    run_dir.manifest.write_text(json.dumps({"schema_version": 1, "engine": "emulator"}))
    last = shape.launches if shape.plain else shape.launches // NODES
    request = {
        "request_index": 0,
        "request_id": "kvtrace-0",
        "role": "measured",
        "http_status": 200,
        "host_monotonic_begin_ns": max(1, last // 2 * HOST_STEP_NS),
        "host_monotonic_end_ns": (last + 2) * HOST_STEP_NS,
        "error": None,
    }
    run_dir.requests.write_text(json.dumps(request) + "\n")
    for number in range(processes):
        write_process(run_dir.raw, FIRST_PID + number, shape)
        if shape.ranks:
            write_steps(run_dir.raw, number, shape)
    run_dir.complete_marker.touch()


def main() -> None:
    """Write it and say what is in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000, help="in all, at least")
    parser.add_argument("--blocks", type=int, default=2048, help="of a launch")
    parser.add_argument("--stores", type=int, default=0, help="of a block, after its entry")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--tensor-ranks", action="store_true", help="with the engine's steps")
    parser.add_argument("--plain", action="store_true", help="plain launches instead of graphs")
    args = parser.parse_args()
    whole_replay = args.blocks * (1 + args.stores) * NODES
    replays = -(-args.events // (args.processes * whole_replay))
    ranks = args.processes if args.tensor_ranks else 0
    shape = Shape(replays * NODES, args.blocks, args.stores, args.plain, ranks)
    write_run(RunDir(args.out), args.processes, shape)
    events = shape.launches * shape.events_of_launch
    print(
        f"{args.processes} processes of {events:,} events of {shape.launches:,} "
        f"{'plain launches' if args.plain else 'graph nodes'} of {args.blocks:,} blocks"
    )


if __name__ == "__main__":
    main()
