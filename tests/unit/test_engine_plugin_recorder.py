import ctypes
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kvtrace_cli.engine_site.kvtrace_engine_plugin import host_facts
from kvtrace_cli.engine_site.kvtrace_engine_plugin.host_facts import host_clock
from kvtrace_cli.engine_site.kvtrace_engine_plugin.recorder import StepRecorder

FIRST = {
    "engine": "vllm",
    "engine_version": "0.26.0",
    "model_runner": "v2",
    "ranks": {"tensor": 0, "pipeline": 0, "data": 0, "world": 0},
    "block_sizes": [16],
}


def record(directory, injector=None, **changes):
    return StepRecorder(str(directory), **(FIRST | changes), injector_path=injector)


def lines(directory):
    text = (directory / f"{os.getpid()}.steps.jsonl").read_text()
    assert text.endswith("\n")
    found = [json.loads(line) for line in text.splitlines()]
    times = [line.pop("host_monotonic_ns") for line in found]
    assert times == sorted(times)
    return found


@pytest.fixture
def stamp_library(tmp_path):
    """A library that keeps the last stamp it was given, not loaded yet."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    source, library = tmp_path / "stamp.cpp", tmp_path / "stamp.so"
    source.write_text(
        'extern "C" {\nunsigned last = 77;\n'
        "void kvtrace_set_step(unsigned step) { last = step; }\n}\n"
    )
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def test_the_first_line_says_what_wrote_the_file_and_where(tmp_path):
    sizes = {"tensor": 2, "pipeline": 1}
    reasons = {"missing": ["GPUModelRunner.x"], "inexact": ["speculative decoding"]}
    record(tmp_path, world_sizes=sizes, several_hosts=True, **reasons)
    (found,) = lines(tmp_path)
    # This test and the recorder are one process.
    assert (found.pop("host"), found.pop("host_clock")) == (os.uname().nodename, host_clock())
    assert found == {
        "event": "started",
        "schema_version": 1,
        **FIRST,
        "stamped": False,
        "world_sizes": sizes,
        "several_hosts": True,
        **reasons,
    }


def test_what_is_not_known_of_other_ranks_is_left_out(tmp_path):
    record(tmp_path)
    assert not {"world_sizes", "several_hosts"} & lines(tmp_path)[0].keys()


def test_a_clock_is_told_by_the_boot_and_its_namespace(tmp_path, monkeypatch):
    monkeypatch.setattr(host_facts, "_BOOT_ID", str(tmp_path / "boot_id"))
    monkeypatch.setattr(host_facts, "_TIME_NAMESPACE", str(tmp_path / "time"))
    assert host_clock() == ""
    (tmp_path / "boot_id").write_text("8b1-77\n")
    assert host_clock() == "8b1-77"
    (tmp_path / "time").symlink_to("time:[40]")
    assert host_clock() == "8b1-77 time:[40]"


def test_steps_are_numbered_from_one_and_empty_fields_are_left_out(tmp_path):
    recorder = record(tmp_path)
    assert recorder.begin_step("dummy", rows=0) == 1
    changes = {"finished": [], "admitted": [["b", 0, [[3]]]], "grown": []}
    step = recorder.begin_step(
        "forward",
        rows=3,
        padded_rows=4,
        graph_mode="FULL",
        requests=[("a", 1, 9), ("b", 2, 0)],
        changes=changes,
    )
    recorder.idle({"finished": ["a"], "preempted": []})
    assert (step, recorder.begin_step("draft")) == (2, 3)
    assert lines(tmp_path)[1:] == [
        {"event": "step", "step_stamp": 1, "kind": "dummy", "rows": 0},
        {
            "event": "step",
            "step_stamp": 2,
            "kind": "forward",
            "rows": 3,
            "padded_rows": 4,
            "graph_mode": "FULL",
            "requests": [["a", 1, 9], ["b", 2, 0]],
            "admitted": [["b", 0, [[3]]]],
        },
        {"event": "idle", "finished": ["a"]},
        {"event": "step", "step_stamp": 3, "kind": "draft"},
    ]


def test_an_output_that_changes_nothing_leaves_no_line(tmp_path):
    record(tmp_path).idle({})
    assert len(lines(tmp_path)) == 1


def test_a_loaded_injector_has_each_stamp_before_the_call_returns(tmp_path, stamp_library):
    last = ctypes.c_uint32.in_dll(ctypes.CDLL(str(stamp_library)), "last")
    recorder = record(tmp_path, str(stamp_library))
    assert lines(tmp_path)[0]["stamped"] is True
    seen = []
    for kind in ("dummy", "forward"):
        recorder.begin_step(kind)
        seen.append(last.value)
        recorder.end_step()
        seen.append(last.value)
    assert seen == [1, 0, 2, 0]


def test_the_injector_is_never_loaded_from_here(tmp_path, stamp_library):
    """Loading it is the launcher's decision; a plug-in that did would also hide that it failed."""
    record(tmp_path, str(stamp_library)).begin_step("forward")
    assert lines(tmp_path)[0]["stamped"] is False
    assert str(stamp_library) not in Path("/proc/self/maps").read_text()


def test_a_second_recorder_of_a_process_does_not_write_into_the_firsts_file(tmp_path):
    record(tmp_path)
    with pytest.raises(FileExistsError):
        record(tmp_path)
    assert len(lines(tmp_path)) == 1


@pytest.mark.parametrize("path", [None, "/nowhere/libkvtrace_injector.so"])
def test_without_an_injector_steps_are_recorded_all_the_same(tmp_path, path):
    recorder = record(tmp_path, path)
    assert recorder.begin_step("forward") == 1
    recorder.end_step()
    assert [line.get("step_stamp") for line in lines(tmp_path)] == [None, 1]


def test_a_failure_is_written_once_and_nothing_after_it(tmp_path, stamp_library, capsys):
    last = ctypes.c_uint32.in_dll(ctypes.CDLL(str(stamp_library)), "last")
    recorder = record(tmp_path, str(stamp_library))
    recorder.begin_step("forward")
    recorder.failed("prepare_inputs", AttributeError("no req_ids"))
    recorder.failed("execute_model", AttributeError("the next one"))
    assert recorder.begin_step("forward") == 0
    recorder.idle({"finished": ["a"]})
    recorder.write_layout({"num_blocks": 1})
    assert lines(tmp_path)[2:] == [
        {"event": "failed", "hook": "prepare_inputs", "error": "AttributeError: no req_ids"}
    ]
    assert last.value == 0
    assert list(tmp_path.glob("*.layout.json*")) == []
    assert "stopped in prepare_inputs: AttributeError: no req_ids" in capsys.readouterr().err


def test_a_layout_replaces_the_one_before_as_a_whole(tmp_path):
    recorder = record(tmp_path)
    recorder.write_layout({"num_blocks": 1, "tensors": ["long"] * 100})
    recorder.write_layout({"num_blocks": 2})
    (path,) = tmp_path.glob("*.layout.json*")
    assert path.name == f"{os.getpid()}.layout.json"
    assert json.loads(path.read_text()) == {"schema_version": 1, "num_blocks": 2}


def test_a_full_disk_is_an_error_and_a_failure_on_it_raises_nothing(tmp_path, capsys):
    recorder = record(tmp_path)
    os.close(recorder._file)
    recorder._file = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left"):
        recorder.begin_step("forward")
    recorder.failed("prepare_inputs", OSError("No space left"))
    assert "cannot say so" in capsys.readouterr().err
