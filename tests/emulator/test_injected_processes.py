"""How the injector gets into a process, and how the process may end."""

import random
import signal
import subprocess
import time

import pytest
from emulated import build, prepare, run_case

from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.dumps.reader import read_events, read_launches

KILLS = 100


@pytest.mark.parametrize("loaded_by", ["injection", "preload", "both"])
def test_either_way_in_records_once(loaded_by, tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "target_last", loaded_by=loaded_by)
    assert done.reconciled().verdict is Verdict.AGREES
    attached = [line["loaded_by"] for line in done.journal() if line["event"] == "attached"]
    assert attached == ["LD_PRELOAD" if loaded_by == "preload" else "CUDA_INJECTION64_PATH"]
    assert len(done.files()) == 4


@pytest.mark.parametrize("loaded_by", ["injection", "preload"])
def test_a_process_without_a_context_leaves_no_file(loaded_by, tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "no_context", loaded_by=loaded_by)
    assert (done.status, done.errors) == (0, "")
    assert done.files() == ["kvtrace.config"]


@pytest.mark.parametrize("case", ["forked_child", "spawned_child"])
def test_a_child_writes_nothing_into_its_parents_recording(case, tmp_path):
    done = run_case(build("plain"), tmp_path / "run", case)
    assert done.status == 0, done.output + done.errors
    assert len(done.files()) == 4
    found = done.reconciled()
    assert found.verdict is Verdict.AGREES
    assert found.block_events.height == done.truth["target_blocks"] == 285


@pytest.mark.parametrize(
    ("case", "closed"),
    [
        ("end_by_exit", True),
        ("end_context_first", True),
        ("end_by_thread", True),
        ("end_at_once", False),
        ("end_by_signal", False),
    ],
)
def test_every_way_to_end(case, closed, tmp_path):
    done = run_case(build("plain"), tmp_path / "run", case)
    assert done.status == (-signal.SIGTERM if case == "end_by_signal" else 0), done.errors
    found = done.reconciled()
    assert found.block_events.height == done.truth["target_blocks"] == 285
    # Nothing is missing here, but without an orderly end nobody can know that.
    assert found.verdict is (Verdict.AGREES if closed else Verdict.INCONCLUSIVE)
    assert all(("closed" in books.flags) is closed for books in found.files)


def test_a_process_that_ends_while_its_threads_launch_ends_at_once(tmp_path):
    begin = time.monotonic()
    done = run_case(build("plain"), tmp_path / "run", "end_while_busy")
    assert done.status == 0, done.errors
    assert time.monotonic() - begin < 10
    assert done.reconciled().block_events.height >= 285


def test_killed_at_random_moments_nothing_drained_is_lost_or_torn(tmp_path):
    """A header's count, read while the process lives, is a promise that the kill must not break."""
    chance = random.Random(3)
    recorded = 0
    for number in range(KILLS):
        run_dir, environment = prepare(
            build("plain"), tmp_path / str(number), ring_events=4096, drain_interval_us=200
        )
        process = subprocess.Popen(
            [build("plain").cases, "endless"], env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, 0.03))
            event_path, launch_path = run_dir.event_files()[0], run_dir.launch_files()[0]
            promised = [read_events(event_path).header.record_count]
            promised.append(read_launches(launch_path).header.record_count)
            time.sleep(chance.uniform(0, 0.01))
        finally:
            process.kill()
            process.wait()
        process.stdout.close()
        events, launches = read_events(event_path), read_launches(launch_path)
        assert events.records.height >= promised[0]
        assert launches.records.height >= promised[1]
        if not events.header.dropped_count:
            assert events.records["sequence"].to_list() == list(range(events.records.height))
        recorded += events.records.height
    assert recorded > KILLS * 100
