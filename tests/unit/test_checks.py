"""Checks say what was looked at, and are never better than the verdict."""

import builders
import pytest
from builders import Trace, flags, reconciled, request, seven_replays

from kvtrace_cli.analysis.diff_model import Aspect, Diff, Difference, DiffVerdict
from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.reports.checks import Check, CheckReport, Status, judged_report
from kvtrace_cli.reports.diff_checks import diff_checks, diff_report
from kvtrace_cli.reports.reconcile_checks import reconcile_checks

_STATUSES = {
    Verdict.AGREES: set(),
    Verdict.MISMATCH: {Status.FAILED},
    Verdict.INCONCLUSIVE: {Status.INCONCLUSIVE},
}


def by_name(checks):
    found = {check.name: check for check in checks}
    assert len(found) == len(checks)
    return found


def bad(checks):
    return {name for name, check in by_name(checks).items() if check.status is not Status.PASSED}


def with_missing():
    trace = seven_replays()
    trace.lose(5)
    return trace


def with_drops():
    trace = seven_replays()
    trace.lose(5)
    trace.dropped = 1
    return trace


def with_launch_drops():
    trace = seven_replays()
    trace.launches_dropped = 2
    return trace


def with_stray():
    trace = seven_replays()
    trace.enter_all(trace.plain())
    del trace.launches[-1]
    return trace


RUNS = {
    "agrees": (seven_replays, {}, set()),
    "missing": (with_missing, {}, {"graph-node-blocks", "measured-graph-node-blocks", "books"}),
    "dropped": (
        with_drops,
        {},
        {"graph-node-blocks", "measured-graph-node-blocks", "dropped-records"},
    ),
    "launch records dropped": (with_launch_drops, {}, {"dropped-records", "books"}),
    "unexpected": (with_stray, {}, {"plain-launch-blocks", "books"}),
    "incomplete": (seven_replays, {"complete": False}, {"doubts"}),
    "nothing launched": (Trace, {}, {"doubts"}),
    "no target": (lambda: Trace(changes={"flags": flags("CLOSED")}), {}, {"doubts"}),
    "a window without a launch": (
        seven_replays,
        {"requests": [request(host_monotonic_begin_ns=1 << 61)]},
        {"doubts"},
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_checks_of_a_run_say_what_is_wrong(tmp_path, case):
    trace, options, expected = RUNS[case]
    result = reconciled(tmp_path, trace(), **options)
    assert bad(reconcile_checks(result)) == expected


@pytest.mark.parametrize("case", RUNS)
def test_the_worst_check_is_the_verdict(tmp_path, case):
    trace, options, _ = RUNS[case]
    result = reconciled(tmp_path, trace(), **options)
    found = {check.status for check in reconcile_checks(result)} - {Status.PASSED}
    assert found >= _STATUSES[result.verdict]
    assert Status.FAILED not in found or result.verdict is Verdict.MISMATCH
    assert bool(found) == (result.verdict is not Verdict.AGREES)


def test_doubts_beside_a_mismatch_stay_inconclusive(tmp_path):
    checks = by_name(reconcile_checks(reconciled(tmp_path, with_missing(), complete=False)))
    assert checks["doubts"].status is Status.INCONCLUSIVE
    assert checks["doubts"].message == (
        "The run did not end in order, so what came last may be missing."
    )
    assert checks["graph-node-blocks"].status is Status.FAILED
    assert checks["graph-node-blocks"].message == (
        "279 of 280 graph-node blocks entered: 1 missing."
    )


def test_what_was_not_launched_is_not_counted_as_passed(tmp_path):
    result = reconciled(tmp_path, seven_replays())
    assert "plain-launch-blocks" not in by_name(reconcile_checks(result))


def test_a_run_without_files_has_one_check_and_it_is_not_passed(tmp_path):
    run = builders.write_run(tmp_path / "run")
    recording = builders.read_recording(builders.open_run_dir(run, allow_incomplete=False))
    (check,) = reconcile_checks(builders.reconcile(recording))
    assert (check.name, check.status) == ("doubts", Status.INCONCLUSIVE)


@pytest.mark.parametrize("status", [Status.FAILED, Status.INCONCLUSIVE])
def test_a_verdict_that_no_check_shows_becomes_one(status):
    passed = Check("diff", "nodes", Status.PASSED, "No difference.")
    report = CheckReport("a", "word", status, "the reason", emulated=False, checks=(passed,))
    told = judged_report("diff", report)
    assert told.checks == (passed, Check("diff", "verdict", status, "word: the reason"))
    assert judged_report("diff", told) == told


NODES = Difference(Aspect.STRUCTURE, "nodes", "graph of 8 rows", "40 nodes", "41 nodes", True)
ORDER = Difference(Aspect.STRUCTURE, "nodes", "graph of 1 row", "40 nodes", "39 nodes", True)
DRIVER = Difference(Aspect.COMPARABILITY, "driver", "driver", "580.1", "581.0", False)
MODEL = Difference(Aspect.COMPARABILITY, "model", "model", "Qwen3-14B", "Qwen3-8B", True)


def diff(verdict, *differences, checks=("kernels",)):
    return Diff(verdict, differences, (), (), checks, "before", "after", emulated=False)


def test_each_rule_of_a_diff_is_one_check():
    checks = by_name(
        diff_checks(diff(DiffVerdict.DIFFERS, DRIVER, NODES, ORDER, checks=("kernels", "nodes")))
    )
    assert {name: check.status for name, check in checks.items()} == {
        "driver": Status.NOTED,
        "nodes": Status.FAILED,
        "kernels": Status.PASSED,
    }
    assert checks["nodes"].message == "graph of 8 rows: 40 nodes, then 41 nodes. And 1 more."
    assert checks["nodes"].detail == f"{NODES.text}\n{ORDER.text}"


def test_what_only_lists_does_not_hide_what_decides():
    listed = Difference(Aspect.STRUCTURE, "nodes", "dummy graph", "1 node", "2 nodes", False)
    (check,) = diff_checks(diff(DiffVerdict.DIFFERS, listed, NODES, checks=()))
    assert (check.status, check.message) == (Status.FAILED, f"{NODES.text} And 1 more.")


def test_runs_that_cannot_be_compared_fail_no_check():
    checks = by_name(diff_checks(diff(DiffVerdict.INCONCLUSIVE, MODEL, NODES)))
    assert {checks["model"].status, checks["nodes"].status} == {Status.INCONCLUSIVE}


def test_an_inconclusive_diff_says_what_may_be_allowed():
    report = diff_report(diff(DiffVerdict.INCONCLUSIVE, MODEL), ["model"])
    assert report.status is Status.INCONCLUSIVE
    assert report.headline == MODEL.text
    assert report.notes == ("to compare them all the same: --allow model",)
