"""An engine whose process Python ends by `os._exit` is recorded to its end all the same."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from emulated import ROOT, Done, build, prepare
from forked_engine import BLOCKS

from kvtrace_cli.analysis.model import Verdict


def run_engine(directory, method, ending, *, plugin=True):
    built = build("plain")
    run_dir, environment = prepare(built, directory)
    if not plugin:
        # The steps are written without the injector, so nobody asks it to end.
        environment["KVTRACE_INJECTOR"] = "/nowhere"
    done = subprocess.run(
        [
            sys.executable,
            Path(__file__).with_name("forked_engine.py"),
            built.emulator,
            method,
            ending,
        ],
        env={"KVTRACE_INJECTOR": str(built.injector)}
        | environment
        | {"PYTHONPATH": str(ROOT), "KVTRACE_STEPS": str(run_dir.raw)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Done(done.returncode, done.stdout, done.stderr, run_dir)


def exit_code(done):
    return json.loads(done.output.splitlines()[-1])["exit_code"]


def reasons(done):
    return [line["reason"] for line in done.journal() if line["event"] == "ended"]


@pytest.mark.parametrize(
    ("method", "ending", "status"),
    [
        ("fork", "return", 0),
        ("fork", "raise", 1),
        ("fork", "terminate", 0),
        ("fork", "launch", 0),
        ("fork", "fork", 0),
        ("fork", "unknown", 0),
        ("forkserver", "return", 0),
        ("spawn", "return", 0),
    ],
)
def test_an_engine_that_ends_in_order_closes_its_files(method, ending, status, tmp_path):
    done = run_engine(tmp_path / "run", method, ending)
    assert exit_code(done) == status, done.errors
    found = done.reconciled()
    assert {books.process_id for books in found.files} == {done.truth["pid"]}
    assert all("closed" in books.flags for books in found.files)
    assert reasons(done) == ["asked"]
    assert found.verdict is Verdict.AGREES, found.reasons
    assert found.block_events.height == done.truth["blocks"] + BLOCKS * (ending == "launch")


def test_an_engine_that_is_killed_does_not(tmp_path):
    done = run_engine(tmp_path / "run", "fork", "kill")
    assert exit_code(done) == -signal.SIGKILL
    found = done.reconciled()
    assert not any("closed" in books.flags for books in found.files)
    assert reasons(done) == []
    assert found.block_events.height == done.truth["blocks"] == BLOCKS
    assert found.verdict is Verdict.INCONCLUSIVE


def test_an_engine_that_nobody_forked_ends_later_than_its_finalizers(tmp_path):
    done = run_engine(tmp_path / "run", "none", "launch")
    assert reasons(done) == ["exit"]
    assert done.reconciled().verdict is Verdict.AGREES
    assert done.reconciled().block_events.height == 2 * BLOCKS


def test_nor_does_one_that_nobody_ends(tmp_path):
    """What the plug-in is for: a forked child has no exit handlers."""
    done = run_engine(tmp_path / "run", "fork", "return", plugin=False)
    assert exit_code(done) == 0, done.errors
    assert not any("closed" in books.flags for books in done.reconciled().files)
    assert done.reconciled().verdict is Verdict.INCONCLUSIVE
