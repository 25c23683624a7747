"""When a module is patched, and the arms that record launches and no events."""

import json

import pytest
from emulated import build, run_case
from emulated_runs import needs_libraries
from test_emulated_run import run

from kvtrace_cli.analysis.model import Population, Verdict
from kvtrace_cli.config import Patch, PatchAt, Record

NODES_AND_REPLAYS = 7 * 40
# The first step has as many rows, as vLLM's has with --max-num-batched-tokens 2048.
FIRST_STEP = ("--capture-sizes", "1,2,4,8,2048", "--max-num-batched-tokens", "2048")
LATE = "first-launch-end"
EIGHT_UNPATCHED = (
    "8 plain-launch blocks were launched before their kernel was patched, so they cannot have "
    "events."
)


def patched_lines(done):
    return [line for line in done.journal() if line["event"] == "module_patched"]


@pytest.mark.parametrize("flavour", ["plain", "address", "thread"])
def test_the_launch_before_patching_is_counted_apart_and_all_later_ones_are_recorded(
    flavour, tmp_path
):
    done = run_case(
        build(flavour), tmp_path / "run", "plain_and_graph", patch_at=PatchAt.FIRST_LAUNCH_END
    )
    assert (done.status, "Sanitizer" in done.errors) == (0, False), done.errors
    found = done.reconciled()
    assert found.whole_life.plain_launches == Population(
        launches=8,
        expected_blocks=7 * 3,
        matched_blocks=7 * 3,
        launches_before_patching=1,
        blocks_before_patching=8,
    )
    assert found.whole_life.graph_nodes == Population(
        launches=NODES_AND_REPLAYS,
        expected_blocks=NODES_AND_REPLAYS,
        matched_blocks=NODES_AND_REPLAYS,
    )
    assert found.verdict is Verdict.MISMATCH
    assert found.reasons == (EIGHT_UNPATCHED,)
    assert [line["patched"] for line in patched_lines(done)] == [True]


def test_a_target_that_only_runs_in_graphs_is_never_patched(tmp_path):
    done = run_case(build("plain"), tmp_path / "run", "alone", patch_at=PatchAt.FIRST_LAUNCH_END)
    nodes = done.reconciled().whole_life.graph_nodes
    assert (nodes.expected_blocks, nodes.blocks_before_patching) == (0, NODES_AND_REPLAYS)
    assert not patched_lines(done)


def test_a_module_that_cannot_be_patched_late_leaves_the_program_alone(tmp_path):
    done = run_case(
        build("plain"),
        tmp_path / "run",
        "plain_and_graph",
        patch_at=PatchAt.FIRST_LAUNCH_END,
        environment={"KVTRACE_EMULATOR_FAIL": "sanitizerPatchModule:0:1"},
    )
    assert done.status == 0
    assert done.truth["target_blocks"] == 8 + 7 * (3 + 40)
    found = done.reconciled()
    assert any("failed at patch_module" in reason for reason in found.reasons)
    assert [line["patched"] for line in patched_lines(done)] == [False]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_function_that_cannot_be_bound_late_costs_the_module_its_patches(n, tmp_path):
    done = run_case(
        build("plain"),
        tmp_path / "run",
        "plain_and_graph",
        patch_at=PatchAt.FIRST_LAUNCH_END,
        environment={"KVTRACE_EMULATOR_FAIL": f"sanitizerSetCallbackData:{n}:1"},
    )
    assert (done.status, done.truth["target_blocks"]) == (0, 8 + 7 * (3 + 40))
    assert [line["event"] for line in done.journal()].count("module_unpatched") == 1
    found = done.reconciled()
    assert found.verdict is Verdict.MISMATCH
    assert any("failed at bind_function" in reason for reason in found.reasons)


@pytest.mark.parametrize("flavour", ["plain", "address", "thread"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_function_that_cannot_be_bound_at_its_launch_is_launched_with_nothing(
    n, flavour, tmp_path
):
    """Every call of patching hangs there, so the module keeps its patches."""
    done = run_case(
        build(flavour),
        tmp_path / "run",
        "plain_and_graph",
        environment={
            "KVTRACE_EMULATOR_QUIET_LOADS": "1",
            "KVTRACE_EMULATOR_FAIL": f"sanitizerSetCallbackData:{n}:1",
        },
    )
    assert (done.status, done.truth["target_blocks"]) == (0, 8 + 7 * (3 + 40)), done.errors
    bound = [line["bound"] for line in done.journal() if line["event"] == "function_bound"]
    assert (bound.count(False), "module_unpatched" in str(done.journal())) == (int(n < 3), False)
    found = done.reconciled()
    if n < 3:
        assert any("failed at bind_function" in reason for reason in found.reasons)
        assert found.verdict is Verdict.MISMATCH


def test_functions_that_come_loaded_with_their_module_are_bound_at_their_launch(tmp_path):
    done = run_case(
        build("plain"),
        tmp_path / "run",
        "plain_and_graph",
        environment={"KVTRACE_EMULATOR_QUIET_LOADS": "1"},
    )
    assert done.status == 0, done.errors
    assert done.reconciled().verdict is Verdict.AGREES


def test_patching_in_a_launchs_callback_ends_the_emulated_process_with_a_word(tmp_path):
    done = run_case(
        build("plain"),
        tmp_path / "run",
        "plain_and_graph",
        patch_at=PatchAt.FIRST_LAUNCH_END,
        without=("KVTRACE_EMULATOR_LATE_PATCHING",),
    )
    assert done.status < 0
    assert "sanitizerAddPatches in a launch's callback: on a GPU it hangs" in done.errors


@pytest.mark.parametrize("arm", [{"record": Record.NONE}, {"patch": Patch.NO_OP}])
@pytest.mark.parametrize("flavour", ["plain", "address"])
def test_arms_without_events_record_every_launch_and_conclude_nothing(flavour, arm, tmp_path):
    done = run_case(build(flavour), tmp_path / "run", "plain_and_graph", **arm)
    assert done.status == 0, done.errors
    found = done.reconciled()
    assert found.verdict is Verdict.INCONCLUSIVE
    (reason,) = (text for text in found.reasons if "measured request" not in text)
    assert reason.startswith("No block event was to be recorded: with --")
    launches = found.whole_life.graph_nodes.launches + found.whole_life.plain_launches.launches
    assert launches == NODES_AND_REPLAYS + 8
    assert found.block_events.is_empty()
    patches = [line["patched"] for line in patched_lines(done)]
    assert patches == ([] if "record" in arm else [True])


@pytest.mark.parametrize("arm", [("--record", "none"), ("--patch", "no-op")])
@needs_libraries
def test_a_run_of_such_an_arm_is_inconclusive(arm, tmp_path):
    done = run(tmp_path / "run", *arm)
    assert done.returncode == 4, done.stdout
    assert "never attached" not in done.stderr
    assert "launched unrecorded" in done.stdout
    assert "No block event was to be recorded" in done.stdout


@needs_libraries
def test_the_articles_missing_blocks_are_its_first_launch_less_the_nodes_it_did_not_expect(
    tmp_path,
):
    done = run(tmp_path / "run", "--json", *FIRST_STEP, "--patch-at", LATE)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    graph = document["whole_life"]["graph_nodes"]
    plain = document["whole_life"]["plain_launches"]
    assert (plain["launches_before_patching"], plain["blocks_before_patching"]) == (1, 2048)
    assert (plain["missing_blocks"], graph["missing_blocks"]) == (0, 0)
    assert graph["blocks_before_patching"] == 0
    assert [reason.split()[0] for reason in document["reasons"]] == ["2048"]
    # The article expected the blocks of all plain launches, and counted those of nodes as well.
    its_expectation = plain["expected_blocks"] + plain["blocks_before_patching"]
    its_count = plain["matched_blocks"] + graph["matched_blocks"]
    assert its_expectation - its_count == 1768 == 2048 - NODES_AND_REPLAYS


@needs_libraries
def test_patched_at_module_load_none_is_missing(tmp_path):
    done = run(tmp_path / "run", "--json", *FIRST_STEP)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    for blocks in document["whole_life"].values():
        assert (blocks["missing_blocks"], blocks["blocks_before_patching"]) == (0, 0)
