import os
import signal
import subprocess
import sys
import time

import pytest

from kvtrace_cli.capture.processes import ProcessTree
from kvtrace_cli.config import TimeLimits

MARK = "KVTRACE_TEST_MARK"


@pytest.fixture
def leader(tmp_path):
    """A leader of its own session whose only child went to another session and lost its parent."""
    script = (
        "import subprocess, sys, time\n"
        "subprocess.run([sys.executable, '-c', 'import subprocess; subprocess.Popen("
        '["sleep", "60"], start_new_session=True)\'])\n'
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        start_new_session=True,
        stdout=subprocess.PIPE,
        env={**os.environ, MARK: str(tmp_path)},
    )
    process.stdout.readline()
    yield process
    ProcessTree(process.pid, f"{MARK}={tmp_path}").end(signal.SIGKILL, 5, 0.02)
    process.wait()
    process.stdout.close()


def test_a_stray_in_another_session_is_found_by_its_mark_and_ended(leader, tmp_path):
    tree = ProcessTree(leader.pid, f"{MARK}={tmp_path}")
    found = tree.look()
    assert len(found) == 2
    assert leader.pid in {process.pid for process in found}
    assert tree.end(signal.SIGTERM, 5, 0.02)
    assert tree.look() == set()


def test_what_lives_on_is_told_and_ended(leader, tmp_path):
    tree = ProcessTree(leader.pid, f"{MARK}={tmp_path}")
    assert len(tree.wait_empty(0.2)) == 2
    assert tree.end_survivors(TimeLimits(terminate_s=5)) == "SIGTERM"
    assert tree.wait_empty(5) == set()
    assert tree.end_survivors(TimeLimits()) is None, "there is nothing left to signal"


def test_without_its_mark_a_stray_would_be_lost(leader):
    assert len(ProcessTree(leader.pid, f"{MARK}=other").look()) == 1


def test_we_are_never_among_them():
    tree = ProcessTree(os.getsid(0), f"{MARK}=none")
    assert os.getpid() not in {process.pid for process in tree.look()}


def test_a_number_that_came_back_is_another_process(leader, tmp_path):
    tree = ProcessTree(leader.pid, f"{MARK}={tmp_path}")
    before = {process.pid: process.start_ticks for process in tree.look()}
    time.sleep(0.02)
    assert {process.pid: process.start_ticks for process in tree.look()} == before
