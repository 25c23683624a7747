"""Injector and emulator under the address, undefined-behaviour and thread sanitizers."""

import pytest
from emulated import build, run_case

from kvtrace_cli.analysis.model import Verdict

CASES = {
    "plain_and_graph": "agrees",
    "two_targets": "agrees",
    "graph_only": "agrees",
    "streams_4": "agrees",
    "two_threads": "agrees",
    "two_execs": "agrees",
    "child_graphs": "agrees",
    "upload": "agrees",
    "conditional": "mismatch",
    "changed_parameters": "agrees",
    "recreated": "agrees",
    "two_contexts": "agrees",
    "module_loaded_again": "agrees",
    "end_by_exit": "agrees",
    "end_by_thread": "agrees",
    "end_context_first": "agrees",
    "forked_child": "agrees",
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("flavour", ["address", "thread"])
def test_clean(flavour, case, tmp_path):
    done = run_case(build(flavour), tmp_path / "run", case)
    assert done.status == 0, done.errors[:4000]
    assert "Sanitizer" not in done.errors, done.errors[:4000]
    assert "runtime error" not in done.errors, done.errors[:4000]
    assert done.reconciled().verdict is Verdict(CASES[case])


@pytest.mark.parametrize("flavour", ["address", "thread"])
def test_a_ring_that_wraps_and_drops(flavour, tmp_path):
    done = run_case(build(flavour), tmp_path / "run", "many_blocks", ring_events=1024)
    assert done.status == 0, done.errors[:4000]
    assert "Sanitizer" not in done.errors, done.errors[:4000]
    events = next(one for one in done.reconciled().files if one.expected_blocks is not None)
    assert events.written + events.dropped == 1_600_000
