"""Recording switched off and on in one process: what passes leaves nothing, the rest is whole."""

import subprocess

import pytest
from emulated import Done, build, prepare

from kvtrace_cli.analysis.model import Population, Verdict
from kvtrace_cli.capture.recording_switch import RecordingSwitch
from kvtrace_cli.config import Record

LAUNCHES_A_TURN = 2
BLOCKS_A_TURN = 3 + 2
NODES_A_TURN = 4 * 40


def switched_case(flavour, directory, *, make_file=True, **recording):
    """Run the case that makes turns 0 to 4 in the file that its injector follows."""
    built = build(flavour)
    run_dir, environment = prepare(built, directory, switched=True, **recording)
    if make_file:
        RecordingSwitch(run_dir.raw).create()
    done = subprocess.run(
        [built.cases, "switched"],
        env=environment | {"KVTRACE_TEST_SWITCH": str(run_dir.raw / "kvtrace.switch")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr, run_dir)


def switch_lines(done):
    return [line for line in done.journal() if line["event"] == "recording_switched"]


@pytest.mark.parametrize("flavour", ["plain", "address", "thread"])
def test_every_second_turn_passes_and_the_books_of_the_others_balance(flavour, tmp_path):
    done = switched_case(flavour, tmp_path / "run")
    assert (done.status, "Sanitizer" in done.errors) == (0, False), done.errors
    found = done.reconciled()
    # One launch comes before the first turn; turns 0, 2 and 4 are recorded.
    assert found.whole_life.plain_launches == Population(
        launches=1 + 3 * LAUNCHES_A_TURN,
        expected_blocks=1 + 3 * BLOCKS_A_TURN,
        matched_blocks=1 + 3 * BLOCKS_A_TURN,
    )
    assert found.whole_life.graph_nodes == Population(
        launches=3 * NODES_A_TURN,
        expected_blocks=3 * NODES_A_TURN,
        matched_blocks=3 * NODES_A_TURN,
    )
    assert done.truth["target_blocks"] == 1 + 5 * (BLOCKS_A_TURN + NODES_A_TURN)
    assert all(books.books_balance and not books.dropped for books in found.files[:1])


def test_the_journal_says_when_and_how_much_passed(tmp_path):
    done = switched_case("plain", tmp_path / "run")
    passed = LAUNCHES_A_TURN + NODES_A_TURN
    blocks = BLOCKS_A_TURN + NODES_A_TURN
    assert [
        (line["turn"], line["recording"], line["launches_passed"], line["blocks_passed"])
        for line in switch_lines(done)
    ] == [
        (1, False, 0, 0),
        (2, True, passed, blocks),
        (3, False, passed, blocks),
        (4, True, 2 * passed, 2 * blocks),
    ]
    (ended,) = (line for line in done.journal() if line["event"] == "launches_ended")
    assert (ended["launches_passed"], ended["blocks_passed"]) == (2 * passed, 2 * blocks)


def test_a_switched_recording_is_never_taken_for_a_whole_one(tmp_path):
    found = switched_case("plain", tmp_path / "run").reconciled()
    assert found.verdict is Verdict.INCONCLUSIVE
    (reason,) = found.reasons
    assert "was switched off 2 times" in reason
    assert f"{2 * (LAUNCHES_A_TURN + NODES_A_TURN)} launches" in reason


def test_stores_pass_as_entries_do(tmp_path):
    found = switched_case("plain", tmp_path / "run", record=Record.WRITES).reconciled()
    assert found.whole_life.graph_nodes.matched_blocks == 3 * NODES_A_TURN
    assert found.whole_life.graph_nodes.unexpected_blocks == 0


def test_without_its_file_all_is_recorded_and_the_failure_said(tmp_path):
    done = switched_case("plain", tmp_path / "run", make_file=False)
    assert done.status == 9  # the case itself has no file to write to
    assert not switch_lines(done)
    (failure,) = (line for line in done.journal() if line["event"] == "failure")
    assert failure["detail"].endswith("/kvtrace.switch")
