from types import SimpleNamespace

import pytest

from kvtrace_cli.engine_site.kvtrace_engine_plugin.changes import SchedulerChanges


def new(request_id, blocks, computed=0):
    return SimpleNamespace(req_id=request_id, num_computed_tokens=computed, block_ids=(blocks,))


def output(*, finished=(), preempted=None, scheduled=(), cached=(), resumed=(), **more):
    """One scheduler output; `cached` holds (request id, new blocks or None, computed tokens)."""
    return SimpleNamespace(
        finished_req_ids=set(finished),
        preempted_req_ids=preempted,
        scheduled_new_reqs=list(scheduled),
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[one[0] for one in cached],
            new_block_ids=[None if one[1] is None else (one[1],) for one in cached],
            num_computed_tokens=[one[2] for one in cached],
            resumed_req_ids=set(resumed),
        ),
        **more,
    )


@pytest.fixture
def tracker():
    """With requests a and b running."""
    tracker = SchedulerChanges()
    tracker.take(output(scheduled=[new("a", [1, 2]), new("b", [3])]))
    return tracker


def test_a_new_request_is_admitted_with_what_the_prefix_cache_has():
    assert SchedulerChanges().take(output(scheduled=[new("a", [1, 2, 7], computed=32)])) == {
        "admitted": [["a", 32, [[1, 2, 7]]]]
    }


def test_blocks_of_every_kv_group_are_kept_apart():
    request = SimpleNamespace(req_id="a", num_computed_tokens=0, block_ids=([1, 2], [9]))
    assert SchedulerChanges().take(output(scheduled=[request])) == {
        "admitted": [["a", 0, [[1, 2], [9]]]]
    }


def test_a_decode_step_without_a_new_block_changes_nothing(tracker):
    assert tracker.take(output(cached=[("a", None, 9), ("b", None, 3)])) == {}


def test_new_blocks_of_a_running_request_are_grown(tracker):
    assert tracker.take(output(cached=[("a", None, 9), ("b", [8], 16)])) == {
        "grown": [["b", [[8]]]]
    }


def test_a_request_ends_only_if_it_had_blocks(tracker):
    assert tracker.take(output(finished=["never-ran", "b"])) == {"finished": ["b"]}
    assert tracker.take(output(finished=["b"])) == {}


def test_an_id_that_ends_and_comes_back_at_once_is_a_new_request(tracker):
    assert tracker.take(output(finished=["a"], scheduled=[new("a", [5])])) == {
        "finished": ["a"],
        "admitted": [["a", 0, [[5]]]],
    }


def test_the_first_runner_resumes_through_cached_requests(tracker):
    assert tracker.take(output(preempted={"b"})) == {"preempted": ["b"]}
    assert tracker.take(output(cached=[("b", [4, 5], 0)], resumed=["b"])) == {
        "resumed": [["b", 0, [[4, 5]]]]
    }


def test_a_preemption_that_was_never_told_is_told_when_the_request_resumes(tracker):
    assert tracker.take(output(cached=[("b", [4, 5], 16)], resumed=["b"])) == {
        "preempted": ["b"],
        "resumed": [["b", 16, [[4, 5]]]],
    }


def test_the_second_runner_resumes_through_new_requests(tracker):
    tracker.take(output(preempted={"b"}))
    assert tracker.take(output(scheduled=[new("b", [6], computed=16)])) == {
        "resumed": [["b", 16, [[6]]]]
    }
    assert tracker.take(output(cached=[("b", [7], 20)])) == {"grown": [["b", [[7]]]]}


def test_a_streaming_session_that_goes_on_gets_a_whole_new_table(tracker):
    assert tracker.take(output(scheduled=[new("a", [1, 2, 9], computed=30)])) == {
        "preempted": ["a"],
        "resumed": [["a", 30, [[1, 2, 9]]]],
    }


def test_a_preempted_request_that_ends_is_finished_and_its_id_new_again(tracker):
    tracker.take(output(preempted={"b"}))
    assert tracker.take(output(finished=["b"], scheduled=[new("b", [6])])) == {
        "finished": ["b"],
        "admitted": [["b", 0, [[6]]]],
    }


def test_copies_before_the_step_are_told(tracker):
    assert tracker.take(output(kv_cache_block_copies=[(2, 9), (3, 10)])) == {
        "copied_blocks": [[2, 9], [3, 10]]
    }


def test_an_output_of_another_shape_is_an_error_not_a_guess(tracker):
    with pytest.raises(AttributeError):
        tracker.take(SimpleNamespace(finished_req_ids=set(), scheduled_new_reqs=[]))
