"""`kvtrace lifetime` on the emulator, the whole path from the command to a cell's process, and what
it said on an H200.
"""

import gzip
import json
import os
import subprocess
import sys
from functools import cache
from itertools import product

import pytest
from emulated import ROOT, SANITIZER_OPTIONS, build

from kvtrace_cli.analysis.lifetime_model import HEAP_MARK
from kvtrace_cli.capture.injection import LATE_PATCHING_VARIABLE

RECORDED = ROOT / "tests/data/h200-lifetime"
ALL = 40 * 7
FAULT = ("fault", "cudaErrorMisalignedAddress")
MODULES = ("same-module", "other-module")
GRAPHS = ("kernels", "memsets")


def run(*arguments):
    built = build("plain")
    return subprocess.run(
        [
            *(sys.executable, "-m", "kvtrace_cli", "lifetime", "--engine", "emulator"),
            *("--program", built.lifetime, "--sanitizer-library", built.emulator),
            *("--jobs", "2", *arguments),
        ],
        env=os.environ | {"COLUMNS": "80", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@cache
def document():
    done = run("--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def recorded(heap):
    return json.loads(gzip.decompress((RECORDED / f"{heap}.json.gz").read_bytes()))


def outcomes(document):
    return {
        (one["callback"], one["binding"], one["neighbours"], one["graph"]): one["status"]
        for one in document["cells"]
    }


def cell(callback, binding, neighbours, graph):
    (found,) = (
        one
        for one in document()["cells"]
        if (one["callback"], one["binding"], one["neighbours"], one["graph"])
        == (callback, binding, neighbours, graph)
    )
    return found


def test_every_cell_says_something_and_is_marked_emulated():
    assert (document()["schema_version"], document()["emulated"]) == (1, True)
    assert len(document()["cells"]) == 4 * 5 * 2 * 2
    assert {one["status"] for one in document()["cells"]} == {"ok", "fault"}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("callback", ["counter", "full_event"])
@pytest.mark.parametrize(
    ("binding", "faults"),
    [
        ("target-only", ("same-module",)),
        ("per-launch", ("same-module",)),
        ("every-function", ()),
        ("re-bound", ()),
        ("never", MODULES),
    ],
)
def test_a_callback_that_follows_its_pointer_faults_where_a_function_is_unbound(
    binding, faults, callback, graph
):
    for neighbours in MODULES:
        found = cell(callback, binding, neighbours, graph)
        if neighbours in faults:
            assert (found["status"], found["error"], found["replays"]) == (*FAULT, 0)
        else:
            assert (found["status"], found["error"], found["events"]) == ("ok", None, ALL)


def test_a_callback_that_follows_nothing_never_faults():
    for callback, binding in product(
        ("no_op", "pointer_read"),
        ("target-only", "per-launch", "every-function", "re-bound", "never"),
    ):
        for neighbours, graph in product(MODULES, GRAPHS):
            assert cell(callback, binding, neighbours, graph)["status"] == "ok"


def test_what_an_unbound_function_is_given_is_seen_without_a_fault():
    given = cell("pointer_read", "target-only", "same-module", "kernels")["received"]
    assert given["target_node"]["as_bound"] == ALL
    assert (given["neighbour_node"]["unknown"], given["neighbour_plain"]["null"]) == (ALL, 1)
    assert int(given["neighbour_node"]["first_unknown"], 16) % 8 != 0


@pytest.mark.parametrize(("graph", "own"), [("kernels", 7), ("memsets", ALL)])
def test_data_of_each_node_is_the_last_nodes_in_a_graph_of_kernels_alone(graph, own):
    events = cell("full_event", "per-launch", "other-module", graph)
    assert (events["events"], events["own_data"]) == (ALL, own)
    given = cell("pointer_read", "per-launch", "other-module", graph)["received"]["target_node"]
    assert (given["as_bound"], given["of_another"]) == (own, ALL - own)


def test_data_bound_again_between_replays_is_the_new_one():
    assert cell("full_event", "re-bound", "same-module", "kernels")["own_data"] == ALL


def test_an_h200_came_to_the_same_in_every_cell():
    assert outcomes(document()) == outcomes(recorded("used"))


def test_on_an_h200_whoever_follows_what_an_unbound_node_is_given_faults():
    for one in recorded("used")["cells"]:
        given = one["received"]
        for launch in ("target_node", "neighbour_node"):
            unbound = one["binding"] == "never" or (
                launch == "neighbour_node" and one["binding"] in ("target-only", "per-launch")
            )
            if unbound and launch in given:
                assert given[launch]["unknown"] == ALL
                assert given[launch]["first_unknown"] == hex(HEAP_MARK)
        # A plain launch of an unbound function is given NULL.
        assert all(given[launch]["unknown"] == 0 for launch in given if launch.endswith("plain"))
        if one["status"] == "fault":
            assert one["callback"] in ("counter", "full_event")
            assert one["error"] == "cudaErrorIllegalAddress"


def test_on_an_h200_nothing_faults_while_new_memory_is_zeros():
    """So the pointer that nobody bound comes from memory of the host that nobody wrote to."""
    assert set(outcomes(recorded("fresh")).values()) == {"ok", "events lost"}
    for one in recorded("fresh")["cells"]:
        assert all(given["unknown"] == 0 for given in one["received"].values())
        assert (one["status"] == "events lost") == (
            one["binding"] == "never" and one["callback"] in ("counter", "full_event")
        )


def test_the_tables_are_whole_at_80_columns():
    done = run()
    assert done.returncode == 0, done.stderr
    assert "(EMULATED)" in done.stdout
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "garbage 0x7f00deadbeef (no multiple of 8)" in done.stdout


def test_whoever_patches_after_the_first_launch_loses_its_2048_blocks():
    """The article's sum: 1,768 missing of 2,048, less the 280 that its expectation left out."""
    done = run("--patch-points", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["kind"], document["schema_version"]) == ("kvtrace-patch-points", 1)
    assert len(document["points"]) == 7 * 2
    for one in document["points"]:
        assert (one["expected"], one["error"]) == (2_048 + ALL, None)
        found = one["status"], one["events"], one["launched_before_patching"]
        if one["patched_at"] in ("module-load", "function-load", "launch-begin"):
            assert found == ("ok", 2_048 + ALL, 0)
        elif one["patched_at"] != "other-thread":  # which comes when it comes
            assert found == ("ok", ALL, 2_048)


@pytest.mark.parametrize(
    ("point", "found"), [("module-load", (2_328, 0)), ("launch-end", (280, 2_048))]
)
def test_functions_that_come_loaded_with_their_module_are_met_at_their_launch(point, found):
    """As with eager loading, where the Sanitizer need not tell of them before."""
    built = build("plain")
    cell = ("counter", "every-function", "other-module", "kernels")
    done = subprocess.run(
        [built.lifetime, *cell, point, built.emulator],
        env=SANITIZER_OPTIONS | {"KVTRACE_EMULATOR_QUIET_LOADS": "1", LATE_PATCHING_VARIABLE: "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = json.loads(done.stdout)
    assert (told["error"], told["failure"]) == ("", "")
    assert (told["events"], told["before"]) == found


def test_patch_points_are_told_at_80_columns():
    done = run("--patch-points")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.count("280 of 2,328; 2,048 before") >= 6
    assert "(EMULATED)" in done.stdout


@pytest.mark.parametrize("callback", ["no_op", "pointer_read", "counter", "full_event"])
def test_a_cell_is_clean_under_the_address_sanitizer(callback):
    built = build("address")
    done = subprocess.run(
        [built.lifetime, callback, "every-function", "same-module", "kernels", built.emulator],
        env=SANITIZER_OPTIONS,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["replays"] == 7


def test_a_library_that_is_no_sanitizer_is_said():
    built = build("plain")
    arguments = ("counter", "never", "same-module", "kernels", "/nowhere.so")
    done = subprocess.run(
        [built.lifetime, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert "/nowhere.so" in json.loads(done.stdout)["failure"]


def test_a_cell_that_the_program_does_not_know_is_refused():
    done = subprocess.run(
        [build("plain").lifetime, "counter"], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2
