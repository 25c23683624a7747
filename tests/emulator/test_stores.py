"""Stores of target kernels become events where they are asked for, each with its address."""

import json
import subprocess
import sys

import polars as pl
import pytest
from emulated import build, prepare, run_case

from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.config import Record
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.reader import read_events, read_launches

ENTER = abi.constant("KVTRACE_EVENT_BLOCK_ENTER")
STORE = abi.constant("KVTRACE_EVENT_GLOBAL_STORE")
ACCESS_SIZE = 16
THREADS = 8
ROWS = 6
# Where the emulator's kernels have their two store instructions.
STORE_PCS = (0x100, 0x140)


def events_of(done):
    (path,) = done.run_dir.event_files()
    return read_events(path)


def launches_of(done):
    (path,) = done.run_dir.launch_files()
    return read_launches(path).records.sort("host_monotonic_ns").to_dicts()


def ended(done):
    return next(line for line in done.journal() if line["event"] == "ended")


def expected_stores(truth, kv_slots, threads):
    """Every store of one launch: (row, thread, address, number of the instruction)."""
    stores = []
    for row, kv_slot in enumerate(kv_slots):
        if kv_slot < 0:
            continue
        offset = kv_slot // truth["block_size"] * truth["block_stride"]
        offset += kv_slot % truth["block_size"] * truth["offset_stride"]
        for instruction, base in enumerate((truth["key_address"], truth["value_address"])):
            stores += [
                (row, thread, base + offset + ACCESS_SIZE * thread, instruction)
                for thread in range(threads)
            ]
    return stores


def recorded_stores(done, launch):
    """The stores of one launch in the order of the file, as `expected_stores` has them."""
    kernel_pc = next(line["pc"] for line in done.journal() if line.get("kernel_slot") == 0)
    rows = (
        events_of(done)
        .records.filter(
            pl.col("event_kind") == STORE,
            pl.col("grid_id") == launch["grid_id"],
            pl.col("launch_stamp") == launch["launch_stamp"],
        )
        .select("block_idx_x", "thread_index", "address", pl.col("pc") - kernel_pc)
        .rows()
    )
    return [
        (row, thread, address, STORE_PCS.index(offset)) for row, thread, address, offset in rows
    ]


@pytest.mark.parametrize(("record", "threads"), [(Record.WRITES, 1), (Record.ALL_WRITES, THREADS)])
def test_each_launch_has_the_stores_of_the_slots_it_saw(record, threads, tmp_path):
    """Plain launches and replays of one graph, whose slots change from replay to replay."""
    done = run_case(build("plain"), tmp_path / "run", "stores", record=record)
    assert done.status == 0, done.errors
    launches, seen = launches_of(done), done.truth["kv_slots"]
    assert len(launches) == len(seen) == 5 + 7 * 3
    for launch, kv_slots in zip(launches, seen, strict=True):
        assert recorded_stores(done, launch) == expected_stores(done.truth, kv_slots, threads)
    records = events_of(done).records
    stores = records.filter(pl.col("event_kind") == STORE)
    entries = records.filter(pl.col("event_kind") == ENTER)
    # Nothing of the neighbour, which stores as much in the same module.
    assert stores.height == 26 * 4 * 2 * threads
    assert entries.height == done.truth["target_blocks"] == 26 * ROWS
    assert set(stores["access_size"]) == {ACCESS_SIZE}
    assert entries.select("address", "access_size", "thread_index").unique().rows() == [(0, 0, 0)]
    assert records["sequence"].to_list() == list(range(records.height))


@pytest.mark.parametrize(
    ("record", "names"),
    [
        (Record.BLOCKS, []),
        (Record.WRITES, ["KVTRACE_FILE_WRITES"]),
        (Record.ALL_WRITES, ["KVTRACE_FILE_WRITES", "KVTRACE_FILE_ALL_WRITES"]),
    ],
)
def test_the_event_file_says_which_stores_it_has(record, names, tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "stores", record=record)
    of_writes = abi.constant("KVTRACE_FILE_WRITES") | abi.constant("KVTRACE_FILE_ALL_WRITES")
    assert events_of(done).header.flags & of_writes == sum(abi.constant(name) for name in names)
    (launch_file,) = done.run_dir.launch_files()
    assert read_launches(launch_file).header.flags & of_writes == 0


def test_stores_that_nobody_asked_for_are_not_patched_and_not_recorded(tmp_path):
    """A second patching call would fail here: there is none."""
    fail = {"KVTRACE_EMULATOR_FAIL": "sanitizerPatchInstructions:2:1"}
    done = run_case(build("plain"), tmp_path / "run", "stores", environment=fail)
    found = done.reconciled()
    assert (found.verdict, found.reasons) == (Verdict.AGREES, ())
    assert set(events_of(done).records["event_kind"]) == {ENTER}
    assert ended(done)["stores_dropped"] == 0


@pytest.mark.parametrize(
    ("record", "stores"),
    [(Record.WRITES, 2000 * ROWS * 2), (Record.ALL_WRITES, 2000 * ROWS * 2 * THREADS)],
)
@pytest.mark.parametrize("one_shot", [True, False])
def test_stores_without_space_are_counted(record, stores, one_shot, tmp_path):
    done = run_case(
        build("plain"),
        tmp_path / "run",
        "many_stores",
        record=record,
        ring_events=1024,
        one_shot=one_shot,
    )
    dump = events_of(done)
    written = dump.records.filter(pl.col("event_kind") == STORE).height
    line = ended(done)
    assert line["stores_dropped"] > 0
    assert written + line["stores_dropped"] == stores
    assert dump.records.height + line["events_dropped"] == stores + 2000 * ROWS
    assert dump.header.dropped_count == line["events_dropped"] > line["stores_dropped"]
    if one_shot:
        assert dump.records.height == 1024
    assert done.reconciled().verdict is Verdict.MISMATCH


def test_stores_of_two_threads_keep_to_their_launches(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "stores_two_threads", record=Record.WRITES)
    assert done.status == 0, done.errors
    launches = launches_of(done)
    assert len(launches) == 200
    by_thread = {}
    for launch in launches:
        by_thread.setdefault(launch["thread_id"], []).append(launch)
    for of_one in by_thread.values():
        for number, launch in enumerate(of_one):
            turn = number // 2
            kv_slots = [5 * turn, 100 + turn, -1, 200 - turn, 7 * turn]
            assert recorded_stores(done, launch) == expected_stores(done.truth, kv_slots, 1)
    assert len(by_thread) == 2


def test_writes_that_make_no_sense_are_refused(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "refused_writes", record=Record.WRITES)
    assert done.status == 0, done.output + done.errors
    assert done.truth["target_blocks"] == 0


DRIVER_PROGRAM = """
import json, sys
from pathlib import Path
from kvtrace_cli.emulator.driver import CacheWrites, Driver, SlotMapping

driver = Driver(Path(sys.argv[1]))
target = driver.load_module(("probe_target",))["probe_target"]
slots = SlotMapping(driver, 6)
writes = CacheWrites(slots, 0x10000, 0x20000, block_stride=4096, offset_stride=256, block_size=16)
driver.launch(target, 2, writes=writes)
slots.set([17, 3])
driver.launch(target, 6, writes=writes)
driver.begin_capture()
driver.launch(target, 2, writes=writes)
graph_exec = driver.end_capture()
slots.set([-1, 32])
driver.replay(graph_exec)
driver.launch(target, 2)
refused = []
for call in (lambda: slots.set(range(7)), lambda: driver.launch(target, 7, writes=writes)):
    try:
        call()
    except ValueError as error:
        refused.append(str(error))
driver.synchronize()
print(json.dumps({"blocks": driver.blocks_run(target), "refused": refused}))
"""


def test_the_drivers_python_side_writes_as_it_is_told(tmp_path):
    """Slots are -1 at first, hold until they are set again, and are read by replays too."""
    built = build("plain")
    run_dir, environment = prepare(built, tmp_path / "run", record=Record.WRITES)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER_PROGRAM, built.emulator],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    printed = json.loads(done.stdout)
    assert printed["blocks"] == 2 + 6 + 2 + 2
    assert printed["refused"] == [
        "7 KV slots for a mapping of 6 rows",
        "7 blocks for 6 rows of KV slots",
    ]
    (path,) = run_dir.event_files()
    records = read_events(path).records
    stores = records.filter(pl.col("event_kind") == STORE).select("block_idx_x", "address")
    assert records.filter(pl.col("event_kind") == ENTER).height == 12
    assert stores.rows() == [
        *((0, 0x10000 + 4096 + 256), (0, 0x20000 + 4096 + 256)),
        *((1, 0x10000 + 3 * 256), (1, 0x20000 + 3 * 256)),
        *((1, 0x10000 + 2 * 4096), (1, 0x20000 + 2 * 4096)),
    ]
