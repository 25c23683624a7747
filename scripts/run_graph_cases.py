#!/usr/bin/env python3
r"""Run tests/gpu/graph_cases under the injector and judge each recording against what really ran.

    make graph-cases
    python3 scripts/run_graph_cases.py --program build/graph_cases --injector LIB \
        --sanitizer LIB --out DIR

Each case runs in its own process, with a time-out, into a run directory DIR/<label>. The program
counts the blocks of its kernels on the device: that is the truth. Where it stores, it prints the
base address and the slots that each launch saw, from which every store follows. One line is printed
a case, then a table of those in which several launches run at once: blocks that are found by grid
id and stamp, and those that the order of the atomics gives to the same launch. The last line says
how many cases are as expected; exit 1 if one is not. --json keeps what was found. Needs a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import polars as pl

from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.capture.recording_switch import NAME as SWITCH
from kvtrace_cli.capture.recording_switch import RecordingSwitch
from kvtrace_cli.console import out
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import RunDir
from kvtrace_cli.dumps.schema import Recording
from kvtrace_cli.reports.cells import new_table

TARGETS = (
    b"probe_target",
    b"probe_target_b",
    b"probe_target_graph_only",
    b"probe_target_stores",
)
STORE_BYTES = 16
ATOMIC_BYTES = 8

# In these, launches overtake each other: in child graphs they do not, and are there to compare.
AT_ONCE = (
    *("streams_2", "streams_4", "streams_8", "streams_16"),
    *("two_execs", "two_threads", "child_graphs"),
)

INJECTOR = "the injector's path"
BY_DRIVER = (("CUDA_INJECTION64_PATH", INJECTOR),)


@dataclass(frozen=True)
class Case:
    """One run: a case of the program, what the injector is told, and the verdict it must get."""

    program: str
    label: str
    options: dict[str, int]
    environment: tuple[tuple[str, str], ...] = BY_DRIVER
    verdict: str = "agrees"
    status: int = 0


def write_config(run_dir: RunDir, sanitizer: Path, options: dict[str, int]) -> None:
    """Write the injector's config for one case."""
    ffi = abi.ffi()
    config = ffi.new(f"{abi.CONFIG_STRUCT} *")
    config.magic = abi.constant("KVTRACE_CONFIG_MAGIC")
    config.abi_version = abi.constant("KVTRACE_ABI_VERSION")
    config.struct_size = abi.size_of(abi.CONFIG_STRUCT)
    config.ring_events = options.get("ring_events", 1 << 20)
    config.launch_records = options.get("launch_records", 1 << 18)
    config.flags = options.get("flags", 0)
    config.bind_mode = options.get("bind_mode", 0)
    config.drain_interval_us = 1000
    config.target_count = len(TARGETS)
    config.output_dir = str(run_dir.raw).encode()
    config.sanitizer_library = str(sanitizer).encode()
    for number, name in enumerate(TARGETS):
        config.targets[number] = name
    run_dir.injector_config.write_bytes(bytes(ffi.buffer(config)))


def run_case(args: argparse.Namespace, case: Case) -> dict[str, Any]:
    """Run one case; return what the program printed and how it ended."""
    run_dir = RunDir(args.out.resolve() / case.label)
    run_dir.raw.mkdir(parents=True)
    write_config(run_dir, args.sanitizer.resolve(), case.options)
    injector = str(args.injector.resolve())
    child = {**os.environ, "KVTRACE_CONFIG": str(run_dir.injector_config)}
    child.update({name: injector if text == INJECTOR else text for name, text in case.environment})
    if case.options.get("flags", 0) & abi.constant("KVTRACE_CONFIG_SWITCHED"):
        RecordingSwitch(run_dir.raw).create()
        child["KVTRACE_TEST_SWITCH"] = str(run_dir.raw / SWITCH)
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [str(args.program.resolve()), case.program],
            env=child,
            capture_output=True,
            text=True,
            timeout=args.timeout,
            check=False,
        )
        status: int | str = done.returncode
        printed = done.stdout.strip()
    except subprocess.TimeoutExpired:
        status, printed = "hang", ""
    truth = json.loads(printed) if printed.startswith("{") else {}
    result = {
        "case": case.program,
        "options": case.options,
        "environment": dict(case.environment),
        "status": status,
        "seconds": round(time.monotonic() - begin, 2),
        "truth": truth,
    }
    run_dir.manifest.write_text(json.dumps({"schema_version": 1, "graph_case": result}, indent=1))
    run_dir.complete_marker.touch()
    return result


def expected_stores(truth: dict[str, Any], flags: int) -> list[Counter[tuple[int, ...]]]:
    """Return every store that a launch must show, one counter a launch.

    Keys: block, thread, address, bytes. The counting of the blocks is an atomic of thread 0.
    """
    every = flags & abi.constant("KVTRACE_CONFIG_ALL_WRITES")
    if not every and not flags & abi.constant("KVTRACE_CONFIG_WRITES"):
        return [Counter() for _ in truth["kv_slots"]]
    threads = range(truth["threads"] if every else 1)
    half = truth["slot_bytes"] // 2
    launches = []
    for kv_slots in truth["kv_slots"]:
        rows = range(len(kv_slots))
        stores = Counter((row, 0, truth["counter_address"], ATOMIC_BYTES) for row in rows)
        for row, kv_slot in enumerate(kv_slots):
            key = truth["cache_address"] + kv_slot * truth["slot_bytes"]
            stores.update(
                (row, thread, part + STORE_BYTES * thread, STORE_BYTES)
                for part in (key, key + half)
                for thread in threads
                if kv_slot >= 0
            )
        launches.append(stores)
    return launches


def recorded_stores(recording: Recording) -> list[Counter[tuple[int, ...]]]:
    """Return the stores of each launch, in the order of the launches."""
    events = pl.concat(dump.records for dump in recording.events)
    stores = events.filter(pl.col("event_kind") == abi.constant("KVTRACE_EVENT_GLOBAL_STORE"))
    by_launch: dict[tuple[int, int], Counter[tuple[int, ...]]] = {}
    columns = ("grid_id", "launch_stamp", "block_idx_x", "thread_index", "address", "access_size")
    for grid_id, launch_stamp, *store in stores.select(columns).rows():
        by_launch.setdefault((grid_id, launch_stamp), Counter())[tuple(store)] += 1
    launches = pl.concat(dump.records for dump in recording.launches).sort("host_monotonic_ns")
    keys = launches.select("grid_id", "launch_stamp").rows()
    # What belongs to no launch stands behind them all.
    return [by_launch.pop(key, Counter()) for key in keys] + list(by_launch.values())


def judge_stores(recording: Recording, result: dict[str, Any]) -> dict[str, int]:
    """Compare the recorded stores with those that follow from the truth, launch by launch."""
    expected = expected_stores(result["truth"], result["options"].get("flags", 0))
    recorded = recorded_stores(recording)
    nothing: Counter[tuple[int, ...]] = Counter()
    extra = missing = 0
    for number in range(max(len(expected), len(recorded))):
        wanted = expected[number] if number < len(expected) else nothing
        seen = recorded[number] if number < len(recorded) else nothing
        extra += (seen - wanted).total()
        missing += (wanted - seen).total()
    counter_address = result["truth"]["counter_address"]
    return {
        "stores_expected": sum(stores.total() for stores in expected),
        "stores": sum(stores.total() for stores in recorded),
        "atomics": sum(
            count
            for stores in recorded
            for (_, _, address, _), count in stores.items()
            if address == counter_address
        ),
        "stores_extra": extra,
        "stores_missing": missing,
        "stores_dropped": sum(line.get("stores_dropped", 0) for line in recording.journal),
    }


def are_stores_right(found: dict[str, Any]) -> bool:
    """Say whether every store is there once, or was counted as dropped."""
    return "stores" not in found or (
        found["stores_extra"] == 0 and found["stores_missing"] == found["stores_dropped"]
    )


def is_right(case: Case, status: object, truth: dict[str, Any], found: dict[str, Any]) -> bool:
    """Say whether a case came out as it must."""
    recorded = truth.get("recorded_blocks", found["expected"])
    return (
        (found["verdict"], status) == (case.verdict, case.status)
        and are_stores_right(found)
        and found["expected"] == recorded
    )


def judge(run_dir: RunDir, result: dict[str, Any]) -> dict[str, Any]:
    """Reconcile a case and put its figures beside the truth."""
    recording = read_recording(run_dir)
    found = reconcile(recording)
    life = found.whole_life
    sections = (life.graph_nodes, life.plain_launches)
    events = found.block_events
    return {
        "verdict": found.verdict.value,
        "ran": result["truth"].get("target_blocks"),
        "expected": sum(part.expected_blocks for part in sections),
        "matched": sum(part.matched_blocks for part in sections),
        "unexpected": sum(part.unexpected_blocks for part in sections),
        "events": sum(books.written for books in found.files if books.expected_blocks is not None),
        "dropped": sum(books.dropped for books in found.files),
        "stamps": events["launch_stamp"].n_unique() if events.height else 0,
        "order_join": f"{found.order_join.matches}/{found.order_join.total}",
        "disagreements": found.kernel_disagreements,
        "flags": sorted({flag for books in found.files for flag in books.flags}),
        "failure": sorted({books.first_failure_site for books in found.files}),
        **(judge_stores(recording, result) if "kv_slots" in result["truth"] else {}),
    }


def plan(programs: list[str]) -> list[Case]:
    """Return every run: all cases of the program as they are, then variations."""
    no_stamps = abi.constant("KVTRACE_CONFIG_NO_STAMPS")
    one_shot = abi.constant("KVTRACE_CONFIG_ONE_SHOT")
    leader = {"flags": abi.constant("KVTRACE_CONFIG_WRITES")}
    every = {"flags": abi.constant("KVTRACE_CONFIG_ALL_WRITES")}
    full = {"ring_events": 4096, "flags": leader["flags"] | one_shot}
    preload = (("LD_PRELOAD", INJECTOR),)
    eager = (*BY_DRIVER, ("CUDA_MODULE_LOADING", "EAGER"))
    # What the host cannot know, and 1.6 million blocks within milliseconds.
    verdicts = {"conditional": "mismatch", "many_blocks": "mismatch"}
    switched = {"flags": abi.constant("KVTRACE_CONFIG_SWITCHED")}
    tiny = {"ring_events": 4096, "launch_records": 256, "flags": one_shot}
    fault = {"verdict": "mismatch", "status": 9}
    return [
        *(Case(name, name, {}, verdict=verdicts.get(name, "agrees")) for name in programs),
        Case("target_last", "preload_only", {}, preload),
        Case("target_last", "preload_and_driver", {}, (*BY_DRIVER, *preload)),
        Case("target_last", "eager_loading", {}, eager),
        Case("graph_only", "eager_graph_only", {}, eager),
        Case("target_last", "no_stamps", {"flags": no_stamps}),
        Case("neighbour_last", "target_only_bound", {"bind_mode": 1}, **fault),
        Case("other_module", "target_only_other_module", {"bind_mode": 1}),
        Case("many_blocks", "one_shot", tiny, verdict="mismatch"),
        Case("slow_blocks", "wrapping_ring", {"ring_events": 65536}),
        # What passes while recording is off has no events either; that it passed is said.
        Case("switched", "switched_off_and_on", switched, verdict="inconclusive"),
        Case("stores_plain", "stores_plain_leader", leader),
        Case("stores_plain", "stores_plain_all", every),
        Case("stores_graph", "stores_graph_leader", leader),
        Case("stores_graph", "stores_graph_all", every),
        Case("stores_many", "stores_many_leader", leader),
        Case("stores_many", "stores_dropped", full, verdict="mismatch"),
    ]


def tell_at_once(found: Mapping[str, dict[str, Any]]) -> None:
    """Print how many blocks each way of joining finds where several launches run at once."""
    table = new_table("Several launches at once")
    table.add_column("case")
    for name in ("blocks", "by grid id", "by order of atomics"):
        table.add_column(name, justify="right")
    for case in AT_ONCE:
        if one := found.get(case):
            same = one["order_join"].partition("/")[0]
            table.add_row(case, str(one["expected"]), str(one["matched"]), same)
    out.print(table)


def main() -> int:
    """Run the plan; 1 if a case is not as expected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--injector", type=Path, required=True)
    parser.add_argument("--sanitizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=20, help="seconds for each case")
    parser.add_argument("--json", type=Path, help="file for what was found")
    args = parser.parse_args()
    listed = subprocess.run(
        [str(args.program.resolve())], capture_output=True, text=True, check=False
    )
    cases = plan(listed.stderr.split())
    as_expected = 0
    all_found: dict[str, dict[str, Any]] = {}
    for case in cases:
        result = run_case(args, case)
        found = judge(RunDir(args.out.resolve() / case.label), result)
        is_good = is_right(case, result["status"], result["truth"], found)
        as_expected += is_good
        all_found[case.label] = {"as_expected": is_good, "status": result["status"], **found}
        print("ok " if is_good else "BAD", case.label, result["status"], found, flush=True)
    tell_at_once(all_found)
    if args.json is not None:
        document = {"schema_version": 1, "cases": all_found}
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{as_expected} of {len(cases)} cases as expected")
    return 0 if as_expected == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
