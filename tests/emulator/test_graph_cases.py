"""The corner cases of graph replay, judged by what really ran: the same table as on a GPU."""

import pytest
from emulated import MISALIGNED_ADDRESS, build, run_case

from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.config import Bind

# Blocks of target kernels that must run, each with one event.
AGREE = {
    "plain": sum((1 + i % 5) * (1 + i % 3) * (1 + i % 2) for i in range(50)),
    "plain_and_graph": 8 + 7 * (3 + 40),
    "alone": 280,
    "neighbour_last": 280,
    "target_last": 280,
    "other_module": 280,
    "memset_nodes": 280,
    "two_targets": 7 * 40 * 3,
    "graph_only": 18,
    "streams_2": 7 * 25 * 3,
    "streams_4": 7 * 25 * 6,
    "streams_16": 7 * 25 * 24,
    "two_threads": 8000,
    "two_execs": 560,
    "child_graphs": 70,
    "upload": 120,
    "disabled": 7 * 38,
    "changed_parameters": 3 * 2 + 3 * 7,
    "recreated": 480,
    "many_replays": 140_000,
    "two_contexts": 560,
    "module_loaded_again": 7,
    "many_launches": 5000,
}


def counts(found):
    parts = (found.whole_life.graph_nodes, found.whole_life.plain_launches)
    return {
        name: sum(getattr(part, f"{name}_blocks") for part in parts)
        for name in ("expected", "matched", "missing", "unexpected")
    }


@pytest.mark.parametrize("case", AGREE)
def test_every_block_that_ran_is_recorded_once(case, tmp_path):
    done = run_case(build("plain"), tmp_path / "run", case)
    assert done.status == 0, done.output + done.errors
    assert done.truth["target_blocks"] == AGREE[case]
    found = done.reconciled()
    ran = done.truth["target_blocks"]
    assert counts(found) == {"expected": ran, "matched": ran, "missing": 0, "unexpected": 0}
    assert (found.verdict, found.reasons) == (Verdict.AGREES, ())
    assert found.emulated
    assert found.kernel_disagreements == 0


def test_the_host_cannot_know_which_conditional_bodies_ran(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "conditional")
    found = done.reconciled()
    assert done.truth["target_blocks"] == 10
    assert counts(found) == {"expected": 20, "matched": 10, "missing": 10, "unexpected": 0}
    assert found.verdict is Verdict.MISMATCH
    assert any("conditional nodes" in reason for reason in found.reasons)


def test_four_streams_defeat_the_join_by_order_but_not_by_grid_id(tmp_path):
    found = run_case(build("plain"), tmp_path / "run", "streams_4").reconciled()
    assert found.whole_life.graph_nodes.matched_blocks == 1050
    assert found.order_join.total == 1050
    assert found.order_join.matches < 800
    assert found.order_join.agrees is False


def test_a_single_stream_is_told_apart_by_order_as_well(tmp_path):
    found = run_case(build("plain"), tmp_path / "run", "target_last").reconciled()
    assert (found.order_join.matches, found.order_join.agrees) == (280, True)


@pytest.mark.parametrize("case", ["target_last", "graph_only"])
def test_modules_that_are_loaded_eagerly(case, tmp_path):
    eager = {"CUDA_MODULE_LOADING": "EAGER"}
    done = run_case(build("plain"), tmp_path / "run", case, environment=eager)
    assert done.reconciled().verdict is Verdict.AGREES


def test_without_stamps_replays_are_told_apart_by_counting(tmp_path):
    found = run_case(build("plain"), tmp_path / "run", "target_last", stamps=False).reconciled()
    assert found.verdict is Verdict.AGREES
    assert found.block_events["launch_stamp"].unique().to_list() == [0]
    assert "order of occurrence" in found.graph_join_method


def test_unbound_neighbours_fault_when_a_graph_replays_them(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "neighbour_last", bind=Bind.TARGET_ONLY)
    assert (done.status, done.truth["code"]) == (9, MISALIGNED_ADDRESS)
    assert done.truth["error"] == "misaligned address"
    bound = {line["name"]: line["bound"] for line in done.journal() if "bound" in line}
    assert bound == {"probe_target": True, "probe_target_b": True, "probe_neighbour": False}
    assert done.reconciled().verdict is not Verdict.AGREES


def test_unbound_functions_of_modules_that_are_not_patched_are_no_danger(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "other_module", bind=Bind.TARGET_ONLY)
    assert done.status == 0
    assert done.reconciled().verdict is Verdict.AGREES


def test_more_blocks_than_the_ring_holds_are_counted_as_drops(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "many_blocks", ring_events=4096)
    found = done.reconciled()
    events = next(books for books in found.files if books.expected_blocks is not None)
    assert done.truth["target_blocks"] == 1_600_000
    assert events.dropped > 0
    assert events.written + events.dropped == 1_600_000
    assert found.verdict is Verdict.MISMATCH


def test_a_one_shot_ring_keeps_the_first_and_counts_the_rest(tmp_path):
    done = run_case(
        build("plain"), tmp_path / "run", "many_blocks", ring_events=65536, one_shot=True
    )
    found = done.reconciled()
    events = next(books for books in found.files if books.expected_blocks is not None)
    assert (events.written, events.dropped) == (65536, 1_600_000 - 65536)
    assert found.verdict is Verdict.MISMATCH


def test_more_launches_than_the_table_holds_are_counted_as_drops(tmp_path):
    done = run_case(
        build("plain"), tmp_path / "run", "many_launches", launch_records=64, one_shot=True
    )
    found = done.reconciled()
    launches = next(books for books in found.files if books.expected_blocks is None)
    assert (launches.written, launches.dropped) == (64, 5000 - 64)
    assert found.verdict is Verdict.MISMATCH


def test_a_ring_that_wraps_twenty_times_loses_nothing(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "slow_blocks", ring_events=65536)
    found = done.reconciled()
    assert counts(found)["matched"] == 1_400_000
    assert found.verdict is Verdict.AGREES
    assert found.block_events.height > 20 * 65536
