"""`kvtrace reconcile` on run directories: stdout, stderr, exit code and summary.json."""

import gzip
import json
import os
from dataclasses import replace

import builders
import pytest
from builders import Trace, flags, seven_replays

from kvtrace_cli.app import main
from kvtrace_cli.errors import ExitCode


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def run(tmp_path):
    return builders.write_run(tmp_path / "run", seven_replays())


def test_a_run_that_agrees(run, capsys):
    assert main(["reconcile", str(run)]) == ExitCode.AGREES
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "agrees: 280 of 280 graph-node blocks entered" in captured.out
    summary = json.loads((run / "summary.json").read_text())
    assert summary["verdict"] == "agrees"


def test_json_is_one_document_on_stdout(run, capsys):
    assert main(["reconcile", str(run), "--json"]) == ExitCode.AGREES
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["run_dir"], document["schema_version"]) == (str(run), 3)
    assert captured.err == ""
    assert document.items() >= json.loads((run / "summary.json").read_text()).items()


def test_packed_dumps_give_the_same_summary(run):
    assert main(["reconcile", str(run)]) == ExitCode.AGREES
    before = (run / "summary.json").read_text()
    for path in list((run / "raw").glob("*.kvt")):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert main(["reconcile", str(run)]) == ExitCode.AGREES
    assert (run / "summary.json").read_text() == before


def test_a_mismatch(tmp_path, capsys):
    trace = seven_replays()
    trace.lose(7)
    run = builders.write_run(tmp_path / "run", trace)
    assert main(["reconcile", str(run)]) == ExitCode.MISMATCH
    assert "mismatch: 279 of 280" in capsys.readouterr().out


EMPTY = {
    "no raw files": (),
    "no target kernel": (Trace(changes={"flags": flags("CLOSED")}),),
    "no launch and no event": (Trace(),),
}


@pytest.mark.parametrize("case", EMPTY)
def test_an_empty_recording_is_never_success(tmp_path, case):
    run = builders.write_run(tmp_path / "run", *EMPTY[case])
    assert main(["reconcile", str(run)]) == ExitCode.INCONCLUSIVE
    assert json.loads((run / "summary.json").read_text())["verdict"] == "inconclusive"


def test_an_incomplete_run_is_refused_and_read_if_asked(tmp_path, capsys):
    trace = replace(seven_replays(), changes={"flags": flags("PATCHED")})
    run = builders.write_run(tmp_path / "run", trace, complete=False)
    path = run / "raw/4711-0.events.kvt"
    path.write_bytes(path.read_bytes() + b"torn")
    assert main(["reconcile", str(run)]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--allow-incomplete" in captured.err
    assert not (run / "summary.json").exists()
    assert main(["reconcile", str(run), "--allow-incomplete"]) == ExitCode.INCONCLUSIVE
    assert "280 of 280" in capsys.readouterr().out


def test_a_damaged_dump_is_named(run, capsys):
    path = run / "raw/4711-0.events.kvt"
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["reconcile", str(run)]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(path) in captured.err


def test_no_such_directory(tmp_path, capsys):
    assert main(["reconcile", str(tmp_path / "none")]) == ExitCode.USAGE
    assert "no such directory" in capsys.readouterr().err


def test_a_directory_that_cannot_be_written_is_still_reconciled(run, capsys):
    (run / "summary.json").mkdir()
    assert main(["reconcile", str(run)]) == ExitCode.AGREES
    captured = capsys.readouterr()
    assert "280 of 280" in captured.out
    assert f"warning: {run / 'summary.json'}: not written ({os.strerror(21)})" in captured.err


def test_an_emulated_run_is_marked_everywhere(tmp_path, capsys):
    trace = replace(seven_replays(), changes={"flags": flags("CLOSED", "PATCHED", "EMULATED")})
    run = builders.write_run(tmp_path / "run", trace, manifest={"engine": "emulator"})
    assert main(["reconcile", str(run)]) == ExitCode.AGREES
    assert "EMULATED" in capsys.readouterr().out
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["emulated"], summary["engine"]) == (True, "emulator")


def test_a_run_with_steps_says_whose_the_rows_were(tmp_path, capsys):
    trace = Trace()
    trace.enter_all(trace.plain((2, 1, 1), step_stamp=1))
    line = builders.step(1, requests=[("cmpl-kvtrace-0-0-1a2b3c4d", 1, 0)], padded_rows=2)
    asked = builders.request(prompt_token_ids=[1], returned_token_ids=[2])
    run = builders.write_run(
        tmp_path / "run", trace, steps=[builders.started(), line], requests=[asked]
    )
    assert main(["reconcile", str(run)]) == ExitCode.AGREES
    assert "Token positions x layers, by request" in capsys.readouterr().out
    assert main(["reconcile", str(run), "--json"]) == ExitCode.AGREES
    document = json.loads(capsys.readouterr().out)
    assert document["attribution"]["rows"]["owned"] == 1
    assert document["requests"][0]["request_id"] == "cmpl-kvtrace-0-0-1a2b3c4d"


@pytest.mark.parametrize("name", ["steps.jsonl", "layout.json"])
def test_a_damaged_file_of_the_plug_in_is_named(run, capsys, name):
    path = run / f"raw/4711.{name}"
    path.write_text("{}\n")
    assert main(["reconcile", str(run)]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(path) in captured.err
