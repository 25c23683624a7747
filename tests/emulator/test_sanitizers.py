"""Injector and emulator under the address, undefined-behaviour and thread sanitizers."""

import pytest
from emulated import build, run_case

from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.config import Record

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
    "end_asked": "agrees",
    "end_in_forked_child": "agrees",
    "launch_after_end": "inconclusive",
    "step_stamps": "agrees",
}
STORE_CASES = ("stores", "stores_two_threads", "refused_writes", "end_context_first")


def assert_clean(done):
    assert done.status == 0, done.errors[:4000]
    assert "Sanitizer" not in done.errors, done.errors[:4000]
    assert "runtime error" not in done.errors, done.errors[:4000]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("flavour", ["address", "thread"])
def test_clean(flavour, case, tmp_path):
    done = run_case(build(flavour), tmp_path / "run", case)
    assert_clean(done)
    assert done.reconciled().verdict is Verdict(CASES[case])


@pytest.mark.parametrize("flavour", ["address", "thread"])
def test_clean_where_the_end_comes_while_a_thread_launches(flavour, tmp_path):
    assert_clean(run_case(build(flavour), tmp_path / "run", "end_asked_while_busy"))


@pytest.mark.parametrize("case", STORE_CASES)
@pytest.mark.parametrize("flavour", ["address", "thread"])
def test_clean_with_every_store_recorded(flavour, case, tmp_path):
    assert_clean(run_case(build(flavour), tmp_path / "run", case, record=Record.ALL_WRITES))


@pytest.mark.parametrize(
    ("case", "record", "events"),
    [
        ("many_blocks", Record.BLOCKS, 1_600_000),
        ("many_stores", Record.ALL_WRITES, 2000 * 6 * (1 + 16)),
    ],
)
@pytest.mark.parametrize("flavour", ["address", "thread"])
def test_a_ring_that_wraps_and_drops(flavour, case, record, events, tmp_path):
    done = run_case(build(flavour), tmp_path / "run", case, ring_events=1024, record=record)
    assert_clean(done)
    books = next(one for one in done.reconciled().files if one.expected_blocks is not None)
    assert books.dropped > 0
    assert books.written + books.dropped == events
