"""The verdict: silence and the unknowable are never success, and a mismatch outweighs both."""

from dataclasses import replace

import builders
import pytest
from builders import Trace, flags, reconciled, request, seven_replays

from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.reports.checks import Status
from kvtrace_cli.reports.reconcile_checks import reconcile_checks


def assert_reason(result, text):
    assert any(text in reason for reason in result.reasons), result.reasons


def graph_counts(section):
    blocks = section.graph_nodes
    return (blocks.launches, blocks.expected_blocks, blocks.matched_blocks)


def empty(**changes):
    return Trace(changes=changes)


INCONCLUSIVE = {
    "nothing recorded": ([], {}, "attached to no process"),
    "no target": ([empty(flags=flags("CLOSED"))], {}, "No process patched a target kernel"),
    "no launch": ([empty()], {}, "no launch of it and no event"),
    "conditional nodes": (
        [replace(seven_replays(), changes={"flags": flags("CLOSED", "CONDITIONAL_NODES")})],
        {},
        "conditional nodes",
    ),
    "device graphs": (
        [replace(seven_replays(), changes={"flags": flags("CLOSED", "DEVICE_GRAPHS")})],
        {},
        "launch graphs from the device",
    ),
    "incomplete": ([seven_replays()], {"complete": False}, "did not end in order"),
    "injector failure": (
        [replace(seven_replays(), changes={"first_failure_site": 10, "first_failure_result": 3})],
        {},
        "process 4711 failed at bind_function (result 3)",
    ),
    "events not closed": (
        [replace(seven_replays(), changes={"flags": flags("PATCHED")})],
        {},
        "Process 4711 did not close its files in order, so what came last may be missing on both",
    ),
    "empty window": (
        [seven_replays()],
        {"requests": [request(host_monotonic_begin_ns=1 << 61)]},
        "no target kernel was launched during it",
    ),
    "launched after the end": (
        [replace(seven_replays(), changes={"flags": flags("PATCHED")})],
        {"journal_lines": [{"event": "launched_after_end"}]},
        "Process 4711 launched a target kernel after its recording had ended",
    ),
    "target not patched": (
        [seven_replays()],
        {"journal_lines": [{"event": "target_not_patched", "name": "k"}]},
        "The target kernel k ran in a module that could not be patched",
    ),
}


@pytest.mark.parametrize("case", INCONCLUSIVE)
def test_silence_and_the_unknowable_are_never_success(tmp_path, case):
    traces, options, reason = INCONCLUSIVE[case]
    result = reconciled(tmp_path, *traces, **options)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert_reason(result, reason)


def test_attached_but_no_context(tmp_path):
    run = builders.write_run(tmp_path / "run")
    builders.write_lines(run / "raw/5.journal.jsonl", [{"event": "attached"}])
    recording = builders.read_recording(builders.open_run_dir(run, allow_incomplete=False))
    result = builders.reconcile(recording)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert_reason(result, "no process created a CUDA context")


def test_a_mismatch_outweighs_the_inconclusive(tmp_path):
    trace = seven_replays()
    trace.lose(5)
    result = reconciled(tmp_path, trace, complete=False)
    assert result.verdict is Verdict.MISMATCH
    assert_reason(result, "did not end in order")


def test_an_incomplete_run_still_gives_numbers(tmp_path):
    trace = replace(seven_replays(), changes={"flags": flags("PATCHED")})
    requests = [request(host_monotonic_end_ns=None, http_status=None)]
    result = reconciled(tmp_path, trace, complete=False, requests=requests)
    assert graph_counts(result.measured) == (280, 280, 280)
    assert_reason(result, "Process 4711 did not close its files in order")


def killed(**changes):
    return Trace(process_id=5, changes={"flags": flags("PATCHED")}, **changes)


def test_what_a_killed_process_recorded_last_is_a_doubt_beside_one_that_ended_well(tmp_path):
    other = killed()
    other.enter_all(other.plain())
    result = reconciled(tmp_path, seven_replays(), other)
    assert result.verdict is Verdict.INCONCLUSIVE
    (reason,) = result.reasons
    assert reason.startswith("Process 5 did not close its files in order")
    assert "--shutdown-timeout 30" in reason


def test_one_file_that_was_not_closed_is_enough(tmp_path):
    run = builders.write_run(tmp_path / "run", seven_replays())
    launches = seven_replays().launch_file(flags=flags("PATCHED"))
    (run / "raw/4711.launches.kvt").write_bytes(launches)
    recording = builders.read_recording(builders.open_run_dir(run, allow_incomplete=False))
    result = builders.reconcile(recording)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert len(result.reasons) == 1


def test_a_killed_process_that_recorded_nothing_decides_nothing(tmp_path):
    """Engines kill helpers as a matter of course."""
    result = reconciled(tmp_path, seven_replays(), killed())
    assert result.verdict is Verdict.AGREES
    assert "Process 5 did not close its files in order; it had recorded nothing." in result.notes


def test_a_mismatch_of_a_killed_process_is_a_mismatch(tmp_path):
    trace = replace(seven_replays(), changes={"flags": flags("PATCHED")})
    trace.lose(5)
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.MISMATCH
    assert_reason(result, "Process 4711 did not close its files in order")


def test_without_a_measured_request_only_the_whole_life_is_judged(tmp_path):
    result = reconciled(tmp_path, seven_replays(), requests=[])
    assert result.verdict is Verdict.AGREES
    assert result.measured is None
    assert any("No measured request" in note for note in result.notes)


def test_an_emulated_run_is_marked(tmp_path):
    trace = replace(seven_replays(), changes={"flags": flags("CLOSED", "PATCHED", "EMULATED")})
    assert reconciled(tmp_path, trace).emulated


@pytest.mark.parametrize(("engine", "emulated"), [("emulator", True), ("vllm", False)])
def test_an_emulated_run_that_recorded_nothing_is_marked(tmp_path, engine, emulated):
    assert reconciled(tmp_path, manifest={"engine": engine}).emulated is emulated


@pytest.mark.parametrize(
    ("flag", "option"), [("NO_PATCH", "--record none"), ("NO_OP_PATCH", "--patch no-op")]
)
def test_a_run_without_events_by_design_is_inconclusive_and_says_only_that(tmp_path, flag, option):
    trace = Trace(changes={"flags": flags("CLOSED", flag)})
    trace.plain((6, 1, 1), launch_flags=0)
    seen = {"event": "target_not_patched", "name": "k", "by_design": True}
    result = reconciled(tmp_path, trace, journal_lines=[seen])
    assert result.verdict is Verdict.INCONCLUSIVE
    assert not result.records_blocks
    (reason,) = result.reasons
    assert option in reason
    assert {check.status for check in reconcile_checks(result)} <= {
        Status.INCONCLUSIVE,
        Status.PASSED,
    }
