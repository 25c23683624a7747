"""Cells of the lifetime matrix that hang, die or talk nonsense, run by fake programs."""

import json
import time

import pytest
from rich.console import Console

from kvtrace_cli.analysis.lifetime import judge_cell
from kvtrace_cli.analysis.lifetime_model import (
    HEAP_MARK,
    HEAP_MARK_BYTE,
    Binding,
    Callback,
    Cell,
    CellResult,
    GraphKind,
    Neighbours,
    Received,
    Status,
    all_cells,
)
from kvtrace_cli.analysis.patch_point_model import Loading, PatchPoint
from kvtrace_cli.analysis.patch_points import judge_point
from kvtrace_cli.app import main
from kvtrace_cli.capture.lifetime import find_program, run_cells
from kvtrace_cli.errors import ConfigError
from kvtrace_cli.reports.lifetime_documents import lifetime_document
from kvtrace_cli.reports.lifetime_tables import lifetime_tables
from kvtrace_cli.reports.patch_point_tables import patch_point_tables

COUNTER = Cell(Callback.COUNTER, Binding.PER_LAUNCH, Neighbours.SAME_MODULE, GraphKind.KERNELS)
POINTER = Cell(Callback.POINTER_READ, Binding.NEVER, Neighbours.SAME_MODULE, GraphKind.KERNELS)
WELL = {"error": "", "failure": "", "replays": 7, "expected": 280, "events": 280, "own_data": 0}


def judged(found, cell=COUNTER, *, timed_out=False, said="exit status 1"):
    return judge_cell(cell, found, timed_out=timed_out, said=said)


def fake_program(tmp_path, body):
    program = tmp_path / "fake"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    (tmp_path / "libfake.so").touch()
    return program


def run_one(tmp_path, body, timeout_s=5.0, new_memory=None):
    arguments = ("counter", "never", "same-module", "kernels")
    outcomes = run_cells(
        [arguments],
        program=fake_program(tmp_path, body),
        sanitizer_library=tmp_path / "library",
        timeout_s=timeout_s,
        jobs=1,
        new_memory=new_memory,
    )
    return outcomes[arguments]


def printed(results):
    console = Console(width=80, record=True, quiet=False)
    for part in lifetime_tables(results, emulated=False):
        console.print(part)
    return console.export_text()


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (WELL, Status.OK),
        (WELL | {"events": 240}, Status.LOST),
        (WELL | {"error": "cudaErrorMisalignedAddress", "events": 1}, Status.FAULT),
        (WELL | {"failure": "sanitizerSubscribe failed: 3"}, Status.NOT_RUN),
        ({}, Status.NOT_RUN),
        (None, Status.NOT_RUN),
    ],
)
def test_a_cell_is_judged_by_what_it_printed(found, status):
    assert judged(found).status is status


def test_a_cell_that_timed_out_hangs():
    assert judged(None, timed_out=True) == CellResult(COUNTER, Status.HANG)


def test_a_callback_that_leaves_no_trace_loses_none():
    no_op = Cell(Callback.NO_OP, Binding.NEVER, Neighbours.SAME_MODULE, GraphKind.KERNELS)
    assert judged(WELL | {"events": 0}, no_op) == CellResult(
        no_op, Status.OK, replays=7, expected=280
    )


def test_numbers_and_pointers_that_are_none_count_as_nothing():
    found = judged(WELL | {"received": {"target_node": {"null": "x"}, "y": 3}}, POINTER)
    assert found.received == {"target_node": Received()}


def test_a_program_that_hangs_is_killed_in_time(tmp_path):
    begun = time.monotonic()
    assert run_one(tmp_path, "exec sleep 60", timeout_s=0.3).timed_out
    assert time.monotonic() - begun < 10


def test_a_program_that_dies_says_why(tmp_path):
    outcome = run_one(tmp_path, "echo no device >&2; kill -SEGV $$")
    assert (outcome.found, outcome.said) == (None, "no device")
    assert run_one(tmp_path, "echo '{torn'; exit 7").said == "exit status 7"


def test_a_cell_is_named_to_its_program_and_no_other_tool_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("KVTRACE_CONFIG", "x")
    body = 'echo "{\\"arguments\\": \\"$*\\", \\"config\\": \\"$KVTRACE_CONFIG\\"}"'
    assert run_one(tmp_path, body).found == {
        "arguments": f"counter never same-module kernels {tmp_path / 'library'}",
        "config": "",
    }


# A C program's first malloc of more than it can have freed before, read as a pointer.
NEW_MEMORY = """exec python3 -c '
import ctypes, json
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
word = ctypes.c_uint64.from_address(libc.malloc(ctypes.c_size_t(100000)) + 64).value
print(json.dumps({"word": word}))'"""


def test_new_memory_of_a_used_heap_holds_the_mark(tmp_path, monkeypatch):
    found = run_one(tmp_path, NEW_MEMORY, new_memory=HEAP_MARK_BYTE).found
    assert found == {"word": HEAP_MARK}
    monkeypatch.setenv("MALLOC_PERTURB_", "7")
    found = run_one(tmp_path, NEW_MEMORY).found
    assert found["word"] not in (HEAP_MARK, 0xF8F8F8F8F8F8F8F8)


def test_a_pointer_from_new_memory_is_told_as_such():
    received = {"neighbour_node": Received(unknown=280, first_unknown=HEAP_MARK)}
    text = printed([CellResult(POINTER, Status.OK, expected=280, events=280, received=received)])
    assert "garbage 0x5a5a5a5a5a5a5a5a (no multiple of 8)" in text
    assert "what new memory of the host process holds" in text


def test_a_program_that_knows_other_cells_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not know the cell counter never"):
        run_one(tmp_path, "exit 2")


def test_a_program_without_its_library_is_refused(tmp_path):
    program = fake_program(tmp_path, "")
    assert find_program(program, emulated=False) == program
    (tmp_path / "libfake.so").unlink()
    with pytest.raises(ConfigError, match=r"libfake.so: not found .* `make lifetime`"):
        find_program(program, emulated=False)


def test_hangs_losses_and_cells_that_were_not_run_are_told_in_words():
    results = [
        CellResult(COUNTER, Status.HANG),
        CellResult(
            Cell(Callback.FULL_EVENT, Binding.NEVER, Neighbours.SAME_MODULE, GraphKind.KERNELS),
            Status.LOST,
            expected=280,
            events=240,
        ),
        CellResult(
            POINTER,
            Status.OK,
            expected=280,
            events=280,
            received={"target_node": Received(unknown=280, first_unknown=0x7F08)},
        ),
        CellResult(
            Cell(Callback.COUNTER, Binding.NEVER, Neighbours.SAME_MODULE, GraphKind.KERNELS),
            Status.NOT_RUN,
            error="no device",
        ),
    ]
    text = printed(results)
    for words in (
        "hang",
        "lost 40 of",
        "not run: no device",
        "garbage 0x7f08 (a multiple of 8): the first value in 1 places",
    ):
        assert words in text
    assert "EMULATED" not in text


def test_the_document_has_pointers_as_text_and_no_empty_counts():
    result = judged(
        WELL | {"received": {"target_node": {"unknown": 3, "first_unknown": 255}}}, POINTER
    )
    document = lifetime_document([result], {"emulated": False})
    (cell,) = document["cells"]
    assert (document["kind"], document["schema_version"]) == ("kvtrace-lifetime", 1)
    assert cell["received"]["target_node"]["first_unknown"] == "0xff"
    assert (cell["error"], cell["own_data"], cell["events"]) == (None, None, 280)


def point(found, *, timed_out=False):
    return judge_point(
        PatchPoint.LAUNCH_END, Loading.LAZY, found, timed_out=timed_out, said="no device"
    )


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        ({"events": 2328, "before": 0}, Status.OK, "2,328 of 2,328 "),
        ({"events": 280, "before": 2048}, Status.OK, "280 of 2,328; 2,048 before"),
        ({"events": 279, "before": 2048}, Status.LOST, "279 of 2,328; 2,048 before"),
        ({"events": 0, "before": 2328}, Status.LOST, "0 of 2,328; 2,328 before"),
        ({"events": 3, "before": 0, "error": "cudaErrorIllegalAddress"}, Status.FAULT, "illegal"),
        ({"events": None, "before": 0}, Status.NOT_RUN, "not run: printed no outcome"),
        ({"events": 1, "before": 0, "failure": "x failed: 3"}, Status.NOT_RUN, "x failed: 3"),
    ],
)
def test_a_patch_point_is_judged_by_what_became_of_every_block(found, status, words):
    result = point({"error": "", "failure": "", "expected": 2328} | found)
    assert result.status is status
    console = Console(width=80, record=True)
    for part in patch_point_tables([result], emulated=False):
        console.print(part)
    assert words in console.export_text()


def test_a_patch_point_that_hangs_or_says_nothing():
    assert point(None, timed_out=True).status is Status.HANG
    assert (point(None).status, point(None).error) == (Status.NOT_RUN, "no device")


@pytest.mark.parametrize(
    "arguments",
    [("--engine", "other"), ("--timeout", "0"), ("--jobs", "0"), ("--program", "/nowhere")],
)
def test_bad_options_end_with_one_error(arguments, capsys):
    assert main(["lifetime", *arguments]) == 2
    assert capsys.readouterr().err.count("kvtrace: ") == 1


def test_cells_that_cannot_be_run_are_inconclusive(tmp_path, capsys):
    program = fake_program(tmp_path, "echo no device >&2; exit 1")
    library = tmp_path / "libfake.so"
    options = ["--program", str(program), "--sanitizer-library", str(library), "--json"]
    assert main(["lifetime", *options]) == 4
    document = json.loads(capsys.readouterr().out)
    assert {cell["error"] for cell in document["cells"]} == {"no device"}
    assert len(document["cells"]) == len(all_cells())
