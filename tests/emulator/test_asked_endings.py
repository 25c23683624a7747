"""Ending the recording by request, where a process will run no exit handlers."""

import pytest
from emulated import build, run_case, run_untraced

from kvtrace_cli.analysis.model import Verdict

COMMON_BLOCKS = 285


def events_of(done, name):
    return [line for line in done.journal() if line["event"] == name]


def closed_files(done):
    return {books.name: "closed" in books.flags for books in done.reconciled().files}


@pytest.mark.parametrize("case", ["end_asked", "end_asked_then_exit"])
def test_an_asked_end_is_orderly_and_ends_once(case, tmp_path):
    done = run_case(build("plain"), tmp_path / "run", case)
    assert done.status == 0, done.errors
    assert len(closed_files(done)) == 2
    assert all(closed_files(done).values())
    assert done.reconciled().verdict is Verdict.AGREES
    assert done.reconciled().block_events.height == COMMON_BLOCKS
    assert [line["reason"] for line in events_of(done, "ended")] == ["asked"]
    assert len(events_of(done, "launches_ended")) == 1
    assert events_of(done, "launched_after_end") == []


def test_a_launch_after_the_end_makes_the_recording_doubtful_and_harms_nothing(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "launch_after_end", ring_events=1024)
    assert done.status == 0, done.errors
    assert done.output == run_untraced(build("plain"), "launch_after_end")[1]
    (launches,) = (path.name for path in done.run_dir.launch_files())
    (events,) = (path.name for path in done.run_dir.event_files())
    assert closed_files(done) == {events: True, launches: False}
    assert len(events_of(done, "launched_after_end")) == 1
    found = done.reconciled()
    assert found.block_events.height == COMMON_BLOCKS
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "launched a target kernel after its recording had ended" in found.reasons[0]


def test_an_end_while_a_thread_launches_comes_in_time_and_is_doubtful(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "end_asked_while_busy", timeout_s=10)
    assert done.status == 0, done.errors
    assert not all(closed_files(done).values())
    assert done.reconciled().verdict is not Verdict.AGREES


def test_a_forked_child_does_not_end_its_parents_recording(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "end_in_forked_child")
    assert done.status == 0, done.errors
    assert [line["reason"] for line in events_of(done, "ended")] == ["exit"]
    found = done.reconciled()
    assert found.verdict is Verdict.AGREES
    assert found.block_events.height == done.truth["target_blocks"] == COMMON_BLOCKS + 5


def test_an_end_before_there_is_a_context_ends_nothing(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "end_before_context")
    assert done.status == 0, done.errors
    found = done.reconciled()
    assert found.verdict is Verdict.AGREES
    assert found.block_events.height == COMMON_BLOCKS


def test_a_process_that_records_nothing_can_be_asked_and_leaves_no_file(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "end_without_context")
    assert (done.status, done.errors) == (0, "")
    assert done.files() == ["kvtrace.config"]


@pytest.mark.parametrize("broken", [{"KVTRACE_CONFIG": ""}, {"KVTRACE_CONFIG": "/no such file"}])
def test_asking_does_no_harm_where_recording_is_off(broken, tmp_path):
    built = build("plain")
    done = run_case(built, tmp_path / "run", "end_asked_then_exit", environment=broken)
    assert (done.status, done.output) == run_untraced(built, "end_asked_then_exit")
    assert done.files() == ["kvtrace.config"]
