"""Run directories: which are accepted, and what a missing or damaged part is called."""

import json

import builders
import pytest

from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import RunDir, open_run_dir, read_manifest
from kvtrace_cli.errors import DumpFormatError, ExitCode, RunDirError


@pytest.fixture
def run(tmp_path):
    return builders.write_run(tmp_path / "run", builders.seven_replays())


def recording(path, *, allow_incomplete=False):
    return read_recording(open_run_dir(path, allow_incomplete=allow_incomplete))


def test_a_whole_run_is_read(run):
    found = recording(run)
    assert [dump.name for dump in found.events] == ["4711-0.events.kvt"]
    assert [dump.name for dump in found.launches] == ["4711.launches.kvt"]
    assert found.requests == (builders.request(),)
    assert found.journal[0]["event"] == "attached"
    assert {line["process_id"] for line in found.journal} == {4711}
    assert not found.incomplete


def test_no_directory(tmp_path):
    with pytest.raises(RunDirError, match="no such directory") as caught:
        open_run_dir(tmp_path / "none", allow_incomplete=False)
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_directory_without_marker_is_no_run(tmp_path):
    with pytest.raises(RunDirError, match="neither COMPLETE nor INCOMPLETE"):
        open_run_dir(tmp_path, allow_incomplete=True)


def test_an_incomplete_run_is_refused_unless_asked_for(run):
    (run / "COMPLETE").rename(run / "INCOMPLETE")
    with pytest.raises(RunDirError, match="--allow-incomplete"):
        open_run_dir(run, allow_incomplete=False)
    assert recording(run, allow_incomplete=True).incomplete


def test_events_of_a_process_without_launches(run):
    (run / "raw/4711.launches.kvt").unlink()
    with pytest.raises(RunDirError, match=r"no 4711\.launches\.kvt beside it"):
        recording(run)


def test_a_file_that_is_there_packed_and_not(run):
    plain = run / "raw/4711-0.events.kvt"
    (run / "raw/4711-0.events.kvt.gz").write_bytes(plain.read_bytes())
    with pytest.raises(RunDirError, match="would count twice"):
        recording(run)


@pytest.mark.parametrize("name", ["4712-0.events.kvt", "4711-1.events.kvt"])
def test_a_dump_under_another_name(run, name):
    (run / "raw/4711-0.events.kvt").rename(run / "raw" / name)
    with pytest.raises(DumpFormatError, match="written by process 4711, context 0; its name says"):
        recording(run)


def test_files_that_are_no_dumps_are_left_alone(run):
    (run / "raw/notes.kvt").write_text("mine")
    (run / "raw/kvtrace.config").write_text("binary")
    assert len(recording(run).events) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"a": \n nope}', r"manifest\.json: no JSON in line 2"), ("[1]", "a JSON list, expected an")],
)
def test_a_damaged_manifest(run, text, message):
    (run / "manifest.json").write_text(text)
    with pytest.raises(RunDirError, match=message):
        recording(run)


def test_a_missing_manifest(run):
    (run / "manifest.json").unlink()
    with pytest.raises(RunDirError, match=r"manifest\.json: cannot be read"):
        read_manifest(RunDir(run))


def test_a_torn_last_line_is_left_out(run):
    lines = [json.dumps(builders.request(index)) for index in range(2)]
    (run / "requests.jsonl").write_text("\n".join(lines)[:-5])
    assert [line["request_index"] for line in recording(run).requests] == [0]


def test_a_whole_last_line_without_newline_is_read(run):
    (run / "requests.jsonl").write_text(json.dumps(builders.request()))
    assert len(recording(run).requests) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"request_index": 0}\nnope\n{}\n', "no JSON in line 2"),
        ('{"request_index": 0}\n3\n', "line 2 is a JSON int"),
        ('{"role": "measured"}\n', "without the number `request_index`"),
        ('{"request_index": true}\n', "expected a whole number"),
        ('{"request_index": -1}\n', "expected a whole number"),
        ('{"request_index": 0, "host_monotonic_end_ns": 1e999}\n', "host_monotonic_end_ns inf"),
        ('{"request_index": 0, "http_status": "200"}\n', "http_status '200'"),
        ('{"request_index": 0, "role": []}\n', "role .*, expected a text"),
    ],
)
def test_a_damaged_line_is_named(run, text, message):
    (run / "requests.jsonl").write_text(text)
    with pytest.raises(RunDirError, match=message):
        recording(run)


def test_a_run_without_requests_or_raw_files_is_read_as_empty(tmp_path):
    run = builders.write_run(tmp_path / "run", requests=[])
    (run / "requests.jsonl").unlink()
    found = recording(run)
    assert (found.events, found.launches, found.journal, found.requests) == ((), (), (), ())
