"""Launch records carry the engine's step: the launching thread's own, else the process's latest."""

import pytest
from emulated import build, run_case, run_untraced

from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.dumps.reader import read_launches


def step_stamps_of(done):
    (path,) = done.run_dir.launch_files()
    records = read_launches(path).records.sort("host_monotonic_ns")
    return [(kind, stamp) for kind, stamp in records.select("launch_kind", "step_stamp").rows()]


PLAIN, NODE = 1, 2


def test_of_each_thread_and_of_the_process(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "step_stamps")
    assert done.status == 0, done.errors
    assert step_stamps_of(done) == [
        # Before any step.
        (PLAIN, 0),
        # The main thread is in step 3, and so is a thread that says nothing.
        (PLAIN, 3),
        (NODE, 3),
        (PLAIN, 3),
        # A thread with a step of its own, which is now the process's latest.
        (PLAIN, 5),
        (NODE, 5),
        (NODE, 5),
        # The main thread is still in step 3, then in none.
        (PLAIN, 3),
        (NODE, 0),
        (PLAIN, 0),
    ]
    assert done.reconciled().verdict is Verdict.AGREES


def test_a_step_set_before_there_is_a_context_counts(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "step_before_context")
    assert done.status == 0, done.errors
    assert step_stamps_of(done) == [(PLAIN, 4)]


def test_a_process_that_records_nothing_takes_steps_and_leaves_no_file(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "step_without_context")
    assert (done.status, done.errors) == (0, "")
    assert done.files() == ["kvtrace.config"]


@pytest.mark.parametrize("broken", [{"KVTRACE_CONFIG": ""}, {"KVTRACE_CONFIG": "/no such file"}])
def test_steps_do_no_harm_where_recording_is_off(broken, tmp_path):
    built = build("plain")
    done = run_case(built, tmp_path / "run", "step_stamps", environment=broken)
    assert (done.status, done.output) == run_untraced(built, "step_stamps")
    assert done.files() == ["kvtrace.config"]
