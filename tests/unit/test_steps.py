"""What the engine plug-in wrote: whole lines are read, and each damaged one is named."""

import gzip
import json

import builders
import pytest
from builders import layout, started, step

from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.errors import DumpFormatError, RunDirError

ADMITTED = [["a", 0, [[1, 2]]]]


@pytest.fixture
def run(tmp_path):
    steps = [
        started(),
        step(1, "dummy", rows=4),
        step(2, requests=[["a", 3, 0]], admitted=ADMITTED),
    ]
    return builders.write_run(
        tmp_path / "run", builders.seven_replays(), steps=steps, layout=layout()
    )


def steps_of(run):
    return read_recording(open_run_dir(run, allow_incomplete=True)).steps


def test_steps_and_layout_come_back_as_they_were_written(run):
    (process,) = steps_of(run)
    assert process.process_id == builders.PROCESS_ID
    assert process.started == started()
    assert [line["step_stamp"] for line in process.lines] == [1, 2]
    assert process.lines[1]["admitted"] == ADMITTED
    assert (process.layout.num_blocks, process.layout.null_block) == (32, 0)
    assert process.layout.groups[0].layer_names == ("layers.0", "layers.1")
    tensor, written = process.layout.tensors[1], layout()["tensors"][1]
    assert (tensor.layer_index, tensor.address) == (1, written["address"])
    assert list(tensor.stride) == written["stride"]
    assert list(tensor.axes) == written["axes"]


def test_packed_files_are_read_in_place(run):
    whole = steps_of(run)
    for name in ("4711.steps.jsonl", "4711.layout.json"):
        path = run / "raw" / name
        path.with_name(f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert steps_of(run) == whole


def test_a_file_that_is_there_packed_and_not(run):
    path = run / "raw/4711.steps.jsonl"
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(RunDirError, match="would count twice"):
        steps_of(run)


def test_without_the_plug_in_there_is_nothing(tmp_path):
    run = builders.write_run(tmp_path / "run", builders.seven_replays())
    assert steps_of(run) == ()


def test_a_layout_without_steps_and_steps_without_a_layout(run):
    (run / "raw/4711.steps.jsonl").unlink()
    (process,) = steps_of(run)
    assert (process.started, process.lines) == (None, ())
    assert process.layout is not None
    builders.write_lines(run / "raw/99.steps.jsonl", [started()])
    assert [(process.process_id, process.layout is None) for process in steps_of(run)] == [
        (99, True),
        (4711, False),
    ]


@pytest.mark.parametrize("left", [0, 1, -1, -30])
def test_a_torn_last_line_is_left_out(run, left):
    path = run / "raw/4711.steps.jsonl"
    text = path.read_text().rstrip("\n")
    last = text.rindex("\n") + 1
    path.write_text(text[: last + left] if left >= 0 else text[:left])
    assert [line["step_stamp"] for line in steps_of(run)[0].lines] == [1]


def test_an_empty_file_has_no_first_line(run):
    (run / "raw/4711.steps.jsonl").write_text("")
    assert (steps_of(run)[0].started, steps_of(run)[0].lines) == (None, ())


def test_unknown_events_fields_and_nulls_are_ignored(run):
    lines = [started(inexact=None), {"event": "later", "step_stamp": "?"}, step(1, graph_mode=None)]
    builders.write_lines(run / "raw/4711.steps.jsonl", [*lines, step(2, more={"x": 1})])
    assert [line["event"] for line in steps_of(run)[0].lines] == ["step", "step"]


def test_other_lines_are_kept_in_order(run):
    lines = [started(), {"event": "idle", "finished": ["a"]}, {"event": "failed", "hook": "h"}]
    builders.write_lines(run / "raw/4711.steps.jsonl", lines)
    assert list(steps_of(run)[0].lines) == lines[1:]


LINES = {
    "not started": ([step(1)], "line 1 has event 'step', expected `started` as the first line"),
    "started twice": ([started(), started()], "line 2 has event 'started', expected it once"),
    "version": ([started(schema_version=2)], "schema version 2, expected 1, which this kvtrace"),
    "no version": ([started(schema_version=None)], "schema_version None, expected a whole"),
    "no event": ([started(), {"step_stamp": 1}], "line 2 has event None, expected a text"),
    "block size 0": ([started(block_sizes=[0])], r"block_sizes\[0\] 0, expected a whole number"),
    "rank": ([started(ranks={"tensor": "0"})], "ranks tensor '0', expected a whole number"),
    "ranks": ([started(ranks=[1])], "ranks .*, expected an object"),
    "sizes": ([started(world_sizes=2)], "world_sizes 2, expected an object"),
    "size": ([started(world_sizes={"data": None})], "world_sizes data None, expected a whole"),
    "host": ([started(host=1)], "host 1, expected a text"),
    "host clock": ([started(host_clock=[])], r"host_clock \[\], expected a text"),
    "stamped": ([started(stamped="yes")], "stamped 'yes', expected true or false"),
    "missing": ([started(missing=[3])], r"missing\[0\] 3, expected a text"),
    "inexact": ([started(inexact="all")], "inexact 'all', expected a list"),
    "first stamp": ([started(), step(2)], "step_stamp 2, expected 1, one more each step"),
    "stamp again": ([started(), step(1), step(1)], "line 3 has step_stamp 1, expected 2"),
    "stamp left out": ([started(), step(1), step(3)], "line 3 has step_stamp 3, expected 2"),
    "no stamp": ([started(), step(None)], "step_stamp None, expected a whole number"),
    "kind": ([started(), step(1, "warm")], "kind 'warm', expected one of forward, dummy, draft"),
    "rows": ([started(), step(1, rows=1.5)], "rows 1.5, expected a whole number"),
    "many tokens": (
        [started(), step(1, requests=[("a", 1, 2**24 + 1)])],
        r"requests\[0\]\[2\] 16777217, expected a whole number from 0 to 16777216",
    ),
    "many rows": ([started(), step(1, "dummy", rows=2**31)], "rows 2147483648, expected a whole"),
    "rows of requests": (
        [started(), step(1, requests=[["a", 2, 0]], rows=3)],
        "rows 3, expected 2, as its requests have",
    ),
    "too many in all": (
        [started(), step(1, requests=[["a", 2**20, 0], ["b", 1, 0]], rows=None)],
        "1048577 rows in its requests, expected at most 1048576",
    ),
    "padding": (
        [started(), step(1, requests=[["a", 2, 0]], padded_rows=1)],
        "padded_rows 1, expected at least its 2 rows",
    ),
    "graph mode": ([started(), step(1, graph_mode=3)], "graph_mode 3, expected a text"),
    "short request": ([started(), step(1, requests=[["a", 1]])], r"requests\[0\] .*, expected a l"),
    "request id": ([started(), step(1, requests=[[7, 1, 0]])], r"requests\[0\] 7, expected a text"),
    "position": ([started(), step(1, requests=[["a", 1, -1]])], r"\[2\] -1, expected a whole"),
    "finished": ([started(), step(1, finished="a")], "finished 'a', expected a list"),
    "preempted": ([started(), step(1, preempted=[None])], r"preempted\[0\] None, expected a text"),
    "groups": (
        [started(), step(1, admitted=[["a", 0, [[1], [2]]]])],
        r"admitted\[0\]\[2\] .*, expected a list of 1",
    ),
    "no block sizes": (
        [started(block_sizes=None), step(1, admitted=[["a", 0, []]])],
        r"admitted\[0\]\[2\], expected `block_sizes` in the first line",
    ),
    "KV block": (
        [started(), step(1, admitted=[["a", 0, [[-1]]]])],
        r"\[2\]\[0\]\[0\] -1, expected",
    ),
    "computed": ([started(), step(1, resumed=[["a", True, [[1]]]])], r"\[1\] True, expected"),
    "grown of nobody": (
        [started(), step(1, grown=[["a", [[1]]]])],
        r"grown\[0\] of 'a', expected a request that has KV blocks",
    ),
    "grown after the end": (
        [started(), step(1, admitted=ADMITTED), step(2, finished=["a"], grown=[["a", [[3]]]])],
        "of 'a', expected a request that has KV blocks",
    ),
    "copied": (
        [started(), step(1, copied_blocks=[[1]])],
        r"copied_blocks\[0\] .*, expected a list",
    ),
    "time": ([started(), step(1, host_monotonic_ns="x")], "host_monotonic_ns 'x', expected"),
    "hook": ([started(), {"event": "failed", "hook": 3}], "hook 3, expected a text"),
}


@pytest.mark.parametrize("fault", LINES)
def test_a_damaged_line_is_named(run, fault):
    lines, message = LINES[fault]
    path = run / "raw/4711.steps.jsonl"
    builders.write_lines(path, lines)
    with pytest.raises(RunDirError, match=message) as caught:
        steps_of(run)
    assert str(path) in str(caught.value)
    assert "copy it again or record again" in str(caught.value)


def test_a_line_that_is_no_json(run):
    path = run / "raw/4711.steps.jsonl"
    path.write_text(f"{json.dumps(started())}\n{{nope\n{json.dumps(step(1))}\n")
    with pytest.raises(RunDirError, match="no JSON in line 2"):
        steps_of(run)


def tensor(**changes):
    return {"tensors": [layout()["tensors"][0] | changes]}


def group(**changes):
    return {"groups": [layout()["groups"][0] | changes]}


LAYOUTS = {
    "version": ({"schema_version": 3}, "schema version 3, expected 1"),
    "blocks": ({"num_blocks": -1}, "num_blocks -1, expected a whole number"),
    "null block": ({"null_block": -1}, "null_block -1, expected a whole number"),
    "groups": ({"groups": {}}, "groups {}, expected a list"),
    "a group": ({"groups": [3]}, r"groups\[0\] 3, expected an object"),
    "block size": (group(block_size=0), r"groups\[0\] has block_size 0, expected"),
    "kernel block size": (group(kernel_block_size=None), "kernel_block_size None, expected"),
    "no window": (group(sliding_window=0), "sliding_window 0, expected a whole number from 1"),
    "chunk": (group(attention_chunk_size="8"), "attention_chunk_size '8', expected a whole"),
    "a window or not": (group(unknown_window=1), "unknown_window 1, expected true or false"),
    "layer names": (group(layer_names=[1]), r"layer_names\[0\] 1, expected a text"),
    "group number": (tensor(group=1), r"tensors\[0\] has group 1, expected one of the 1 groups"),
    "role": (tensor(role="q"), "role 'q', expected one of kv, k, v, k_scale, v_scale"),
    "strides": (tensor(stride=[1, 2, 3]), "3 strides, expected 4, as the shape has"),
    "negative": (tensor(shape=[-1, 2, 16, 16]), r"shape\[0\] -1, expected a whole number"),
    "extent": (tensor(stride=[2**61, 1, 1, 1]), "an extent of .* elements, expected one that"),
    "end of memory": (tensor(address=2**64 - 8), "an extent of .* elements, expected one that"),
    "address": (tensor(address=2**64), "address 18446744073709551616, expected"),
    "element size": (tensor(element_size=0), "element_size 0, expected a whole number from 1"),
    "axis": (tensor(axes=["block", "head", "offset", "x"]), "axes .*, expected 4 different of"),
    "axes": (tensor(axes=["block"]), "axes .*, expected 4 different of block, offset"),
    "axis twice": (tensor(axes=["block", "head", "head", "dim"]), "expected 4 different of"),
    "layer": (tensor(layer_index=70000), "layer_index 70000, expected"),
    "name": (tensor(layer_name=None), "layer_name None, expected a text"),
    "dtype": (tensor(dtype=2), "dtype 2, expected a text"),
}


def test_a_group_has_its_window_or_none(run):
    path = run / "raw/4711.layout.json"
    for changes, expected in (
        ({}, (None, None, False)),
        ({"sliding_window": 1024}, (1024, None, False)),
        ({"attention_chunk_size": 8192, "unknown_window": True}, (None, 8192, True)),
    ):
        path.write_text(json.dumps(layout(**group(**changes))))
        (one,) = steps_of(run)[0].layout.groups
        assert (one.sliding_window, one.attention_chunk_size, one.unknown_window) == expected


@pytest.mark.parametrize("fault", LAYOUTS)
def test_a_damaged_layout_is_named(run, fault):
    changes, message = LAYOUTS[fault]
    path = run / "raw/4711.layout.json"
    path.write_text(json.dumps(layout(**changes)))
    with pytest.raises(RunDirError, match=message) as caught:
        steps_of(run)
    assert str(path) in str(caught.value)
    assert "copy it again or record again" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [("[]", "a JSON list, expected an object"), ("{", "no JSON in line 1")]
)
def test_a_layout_that_is_no_object(run, text, message):
    (run / "raw/4711.layout.json").write_text(text)
    with pytest.raises(RunDirError, match=message):
        steps_of(run)


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, r'{"dtype": "\ud800x"}'])
def test_json_that_python_cannot_read_is_an_error_of_ours(run, text):
    (run / "raw/4711.layout.json").write_text(text)
    with pytest.raises(RunDirError, match="no JSON that can be read"):
        steps_of(run)


def test_a_broken_gzip_file_is_named(run):
    path = run / "raw/4711.layout.json"
    path.with_name("4711.layout.json.gz").write_bytes(gzip.compress(path.read_bytes())[:-9])
    path.unlink()
    with pytest.raises(DumpFormatError, match=r"layout\.json\.gz: a gzip file that was cut short"):
        steps_of(run)
