"""Reading what CUPTI saw, and what reconciling says of such a run."""

import gzip

import gap_scenes as scenes
import pytest

from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.capture.live import read_counters
from kvtrace_cli.capture.progress import describe_counters
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.activity import read_run_activities
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import RunDir, open_run_dir
from kvtrace_cli.errors import DumpFormatError, RunDirError

PID = 4711


@pytest.fixture
def run(tmp_path):
    return scenes.write_seen(tmp_path / "run", scenes.seen())


def test_records_and_names_are_read(run):
    (activity,) = read_run_activities(RunDir(run))
    assert activity.dump.records.height == 2 + 3 * 7
    assert activity.names == (scenes.TARGET_SYMBOL, scenes.GEMM, scenes.NORM)


def test_packed_files_are_read_as_they_are(run):
    before = read_run_activities(RunDir(run))
    for path in [*run.glob("raw/*.kva"), *run.glob("raw/*.names")]:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    (after,) = read_run_activities(RunDir(run))
    assert after.names == before[0].names
    assert after.dump.records.equals(before[0].dump.records)


def test_a_file_that_is_there_twice_is_refused(run):
    path = run / f"raw/{PID}.activity.kva"
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(RunDirError, match="also there unpacked"):
        read_run_activities(RunDir(run))


def test_a_name_that_was_not_written_to_its_end_is_no_name(run):
    with (run / f"raw/{PID}.activity.names").open("a") as file:
        file.write("torn")
    assert len(read_run_activities(RunDir(run))[0].names) == 3


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"activity_kind": 9}, "record 2 is of an unknown kind"),
        ({"name_id": 3}, "record 2 counts a name beyond the 3 there are"),
        ({"activity_kind": 2}, "record 2 has a name and is no kernel"),
        ({"gpu_cupti_end_ns": 1}, "record 2 ends before it begins"),
    ],
)
def test_records_that_cannot_be_are_refused(tmp_path, fields, expected):
    seen = scenes.seen()
    seen.records[2] |= fields
    run = scenes.write_seen(tmp_path / "run", seen)
    with pytest.raises(DumpFormatError, match=expected):
        read_run_activities(RunDir(run))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"process_id": 1}, "written by process 1, its name says 4711"),
        ({"abi_version": 99}, "ABI version 99"),
        ({"record_size": 64}, "records of 64 bytes, a activity record has 80"),
        ({"record_count": 99}, "the header counts 99 records"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path, fields, expected):
    run = scenes.write_seen(tmp_path / "run", scenes.seen(), **fields)
    with pytest.raises(DumpFormatError, match=expected):
        read_run_activities(RunDir(run))


def test_names_that_are_missing_are_named(run):
    (run / f"raw/{PID}.activity.names").unlink()
    with pytest.raises(RunDirError, match=r"4711\.activity\.names: cannot be read"):
        read_run_activities(RunDir(run))


def test_reconciling_counts_target_kernels_and_never_agrees(run):
    result = reconcile(read_recording(open_run_dir(run, allow_incomplete=False)))
    assert result.verdict is Verdict.INCONCLUSIVE
    (reason,) = result.reasons
    assert reason == (
        "CUPTI observed this run, not the Sanitizer: target kernels ran 6 times in graphs and 2 "
        "times as plain launches. No block was recorded, so nothing can be said of blocks; see "
        "`kvtrace gap`."
    )


def test_reconciling_says_why_nothing_was_observed(tmp_path):
    run = scenes.write_seen(tmp_path / "run")
    line = '{"event":"failure","site":40,"result":0,"detail":"CUPTI version 130900"}\n'
    (run / f"raw/{PID}.journal.jsonl").write_text(line)
    result = reconcile(read_recording(open_run_dir(run, allow_incomplete=False)))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.reasons[1] == f"The observer of process {PID} failed: CUPTI version 130900."


def test_counters_of_a_run_in_progress(tmp_path):
    run = scenes.write_seen(tmp_path / "run", scenes.seen(), dropped_count=5)
    counters = read_counters(run / "raw")
    assert counters.attached
    assert describe_counters(counters) == "23 activity records, 5 dropped"


def test_the_first_failure_of_the_observer_is_named(tmp_path):
    site = abi.constant("KVTRACE_SITE_READ_ACTIVITY")
    run = scenes.write_seen(tmp_path / "run", scenes.seen(), first_failure_site=site)
    assert read_counters(run / "raw").first_failure == "read_activity"
