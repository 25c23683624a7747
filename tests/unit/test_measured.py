"""Requests that overlap in time are one measured stretch; what is only one request's, is its."""

import pytest
from builders import HOST_STEP_NS, Trace, attributed, reconciled, replays, request

from kvtrace_cli.analysis.measured import measured_windows


def window(index, begin, end, role="measured", **changes):
    """Return a request under way from one launch's time to another's, both included."""
    times = {"host_monotonic_begin_ns": begin * HOST_STEP_NS}
    times["host_monotonic_end_ns"] = None if end is None else end * HOST_STEP_NS
    return request(index, role, **(times | changes))


def launches(tmp_path, *requests, count=8):
    trace = Trace()
    for _ in range(count):
        trace.enter_all(trace.plain())
    return reconciled(tmp_path, trace, requests=requests).launches


def found(tmp_path, *requests):
    frame = launches(tmp_path, *requests)
    return frame.select("measured_stretch", "request_index").rows()


OUTSIDE = (None, None)


def test_requests_one_after_the_other_keep_their_index(tmp_path):
    rows = found(tmp_path, window(5, 2, 3), window(6, 5, 7))
    assert rows == [
        OUTSIDE, (0, 5), (0, 5), OUTSIDE, (1, 6), (1, 6), (1, 6), OUTSIDE,
    ]  # fmt: skip


def test_requests_that_overlap_are_one_stretch_of_nobody(tmp_path):
    """Also the second and third, which meet only through the first."""
    rows = found(tmp_path, window(0, 1, 6), window(1, 2, 3), window(2, 5, 7), window(3, 8, 8))
    assert rows == [(0, None)] * 7 + [(1, 3)]


def test_the_order_of_lines_does_not_matter(tmp_path):
    forwards = found(tmp_path / "a", window(0, 1, 3), window(1, 2, 4), window(2, 6, 7))
    backwards = found(tmp_path / "b", window(2, 6, 7), window(1, 2, 4), window(0, 1, 3))
    assert forwards == backwards


def test_an_instant_that_two_requests_share_is_the_earlier_ones(tmp_path):
    assert found(tmp_path, window(0, 1, 3), window(1, 3, 4))[2:4] == [(0, 0), (1, 1)]


def test_a_request_that_never_ended_overlaps_all_that_follow(tmp_path):
    assert found(tmp_path, window(0, 3, None), window(1, 5, 6))[2:] == [(0, None)] * 6


def test_warm_up_requests_measure_nothing(tmp_path):
    assert found(tmp_path, window(0, 1, 8, role="warmup")) == [OUTSIDE] * 8
    assert measured_windows([window(0, 1, 8, role="warmup")]) == []


def test_without_requests_nothing_is_measured(tmp_path):
    assert not launches(tmp_path)["is_measured"].any()


def test_launches_know_whether_they_are_measured(tmp_path):
    frame = launches(tmp_path, window(0, 1, 4), window(1, 3, 5))
    assert frame["is_measured"].to_list() == [True] * 5 + [False] * 3


@pytest.mark.parametrize(
    ("requests", "steps"),
    [
        ([window(0, 1, 6)], [1, 1, 2, 2, 3, 3]),
        ([window(0, 1, 4), window(1, 5, 6)], [1, 1, 2, 2, 1, 1]),
        ([window(0, 1, 4), window(1, 3, 6)], [None] * 6),
    ],
)
def test_decode_steps_are_counted_where_one_request_is_alone(tmp_path, requests, steps):
    result = reconciled(tmp_path, replays(nodes=2, count=3), requests=requests)
    assert result.launches["decode_step"].to_list() == steps
    assert result.measured.graph_nodes.launches == 6


def test_the_measured_section_covers_all_stretches(tmp_path):
    requests = [window(0, 1, 3), window(1, 2, 3), window(2, 5, 6)]
    result = reconciled(tmp_path, replays(nodes=1, count=8), requests=requests)
    assert result.measured.graph_nodes.launches == 5
    assert result.measured_requests == 3
    (graph,) = result.measured_graphs
    # Between the replays of one stretch only: 1 to 3, and 5 to 6.
    assert (graph.replays, graph.replay_gap.count) == (5, 3)


def test_the_rows_of_the_measured_stretches_are_counted_apart(tmp_path):
    _, found = attributed(tmp_path, replays(nodes=1, count=4), requests=[window(0, 2, 3)])
    assert (found.measured.unknown, found.whole_life.unknown) == (2, 4)
