"""The frames of steps: whose row is which, in which KV block, and who holds a block when."""

import builders
import pytest
from builders import Trace, layout, reconciled, recorded, started, step

from kvtrace_cli.analysis.steps import step_tables


def tables(tmp_path, *lines, first=None):
    steps = [first or started(), *lines]
    return step_tables(recorded(tmp_path, Trace(), steps=steps))


def slots(found):
    columns = ("step_stamp", "row", "kv_group", "kv_block_id", "expected_slot")
    return found.slots.select(columns).rows()


def holdings(found):
    columns = ("kv_block_id", "request_id", "block_index", "first_step", "end_step", "writes_from")
    return found.holdings.select(columns).rows()


def test_steps_have_what_their_lines_say(tmp_path):
    found = tables(
        tmp_path,
        step(1, "dummy", rows=8, host_monotonic_ns=5),
        step(2, requests=[["a", 2, 0]], padded_rows=4, graph_mode="FULL"),
        step(3, "draft"),
    )
    assert found.steps.rows() == [
        (4711, 1, "dummy", 8, None, None, 5),
        (4711, 2, "forward", 2, 4, "FULL", 2),
        (4711, 3, "draft", None, None, None, 3),
    ]


def test_rows_follow_each_other_in_the_order_of_requests(tmp_path):
    found = tables(tmp_path, step(1, requests=[["b", 1, 40], ["none", 0, 3], ["a", 3, 7]]))
    assert found.rows.drop("process_id").rows() == [
        (1, 0, "b", 40),
        (1, 1, "a", 7),
        (1, 2, "a", 8),
        (1, 3, "a", 9),
    ]


def test_a_slot_is_that_of_the_requests_table_at_that_step(tmp_path):
    """Across a block's edge, after growth, with a table that begins with cached blocks."""
    found = tables(
        tmp_path,
        step(1, requests=[["a", 3, 15]], admitted=[["a", 15, [[4, 9]]]]),
        step(2, requests=[["a", 1, 31]]),
        step(3, requests=[["a", 1, 32]], grown=[["a", [[2]]]]),
    )
    assert slots(found) == [
        (1, 0, 0, 4, 4 * 16 + 15),
        (1, 1, 0, 9, 9 * 16),
        (1, 2, 0, 9, 9 * 16 + 1),
        (2, 0, 0, 9, 9 * 16 + 15),
        (3, 0, 0, 2, 2 * 16),
    ]


def test_a_position_that_the_table_does_not_reach_has_no_slot(tmp_path):
    found = tables(
        tmp_path,
        step(1, requests=[["a", 1, 16], ["b", 1, 0]], admitted=[["a", 0, [[1]]]]),
        step(2, requests=[["a", 1, 16]], grown=[["a", [[5]]]]),
        step(3, requests=[["a", 1, 16]], finished=["a"]),
    )
    assert slots(found) == [
        (1, 0, 0, None, None),
        (1, 1, 0, None, None),
        (2, 0, 0, 5, 80),
        (3, 0, 0, None, None),
    ]


def test_each_kv_group_has_its_own_table_and_block_size(tmp_path):
    found = tables(
        tmp_path,
        step(1, requests=[["a", 1, 17]], admitted=[["a", 0, [[3, 4], [7]]]]),
        step(2, requests=[["a", 1, 33]], grown=[["a", [[5], [8]]]]),
        first=started(block_sizes=[16, 32]),
    )
    assert slots(found) == [
        (1, 0, 0, 4, 4 * 16 + 1),
        (1, 0, 1, 7, 7 * 32 + 17),
        (2, 0, 0, 5, 5 * 16 + 1),
        (2, 0, 1, 8, 8 * 32 + 1),
    ]


def test_holdings_end_when_finished_or_preempted_or_never(tmp_path):
    found = tables(
        tmp_path,
        step(1, admitted=[["a", 0, [[1]]], ["b", 16, [[2, 3]]], ["c", 0, [[4]]]]),
        step(2, preempted=["b"], grown=[["a", [[2]]]]),
        {"event": "idle", "finished": ["a"]},
        step(3, resumed=[["b", 0, [[1]]]]),
    )
    assert sorted(holdings(found)) == [
        (1, "a", 0, 1, 3, 0),
        (1, "b", 0, 3, None, 0),
        (2, "a", 1, 2, 3, 0),
        (2, "b", 0, 1, 2, 16),
        (3, "b", 1, 1, 2, 16),
        (4, "c", 0, 1, None, 0),
    ]


def test_what_an_idle_line_changes_is_so_from_the_next_step(tmp_path):
    idle = {"event": "idle", "admitted": [["a", 0, [[6]]], ["gone", 0, [[7]]]]}
    found = tables(
        tmp_path,
        step(1, "dummy", rows=1),
        idle,
        {"event": "idle", "finished": ["gone"]},
        step(2, requests=[["a", 1, 0]]),
    )
    assert holdings(found) == [(6, "a", 0, 2, None, 0)]
    assert slots(found) == [(2, 0, 0, 6, 96)]


def test_an_id_that_comes_back_has_a_new_table(tmp_path):
    found = tables(
        tmp_path,
        step(1, requests=[["a", 1, 0]], admitted=[["a", 0, [[1]]]]),
        step(2, requests=[["a", 1, 0]], finished=["a"], admitted=[["a", 0, [[5]]]]),
    )
    assert slots(found) == [(1, 0, 0, 1, 16), (2, 0, 0, 5, 80)]
    assert [row[3:5] for row in holdings(found)] == [(1, 2), (2, None)]


def test_without_steps_the_frames_are_empty_and_have_their_columns(tmp_path):
    found = step_tables(recorded(tmp_path, Trace()))
    assert (found.steps.height, found.rows.height, found.slots.height) == (0, 0, 0)
    assert found.slots.columns == [
        "process_id", "step_stamp", "row", "kv_group", "kv_block_id", "expected_slot",
    ]  # fmt: skip
    assert "writes_from" in found.holdings.columns


def test_two_processes_are_told_apart(tmp_path):
    run = builders.write_run(tmp_path / "run", Trace(), steps=[started(), step(1)])
    line = step(1, requests=[["a", 1, 0]], admitted=[["a", 0, [[3]]]])
    builders.write_lines(run / "raw/9.steps.jsonl", [started(), line])
    recording = builders.read_recording(builders.open_run_dir(run, allow_incomplete=False))
    found = step_tables(recording)
    assert found.steps["process_id"].to_list() == [9, 4711]
    assert found.slots["process_id"].to_list() == [9]


def two_layers_in_steps():
    trace = Trace()
    for stamp in (0, 7, 1, 2):
        for _ in range(2):
            trace.enter_all(trace.plain((2, 1, 1), step_stamp=stamp))
    for node in range(2):
        trace.enter_all(trace.node(node, 1, step_stamp=2))
    return trace


def test_launches_have_the_kind_of_their_step_and_a_layer(tmp_path):
    """Plain launches are ranked within their step, graph nodes within their replay."""
    steps = [started(), step(1, "dummy", rows=2), step(2, requests=[["a", 1, 0]])]
    launches = reconciled(tmp_path, two_layers_in_steps(), steps=steps, layout=layout()).launches
    columns = ("step_stamp", "step_kind", "layer_index", "layer_rank_source")
    assert launches.select(columns).rows() == [
        (0, None, None, None),
        (0, None, None, None),
        (7, None, None, None),
        (7, None, None, None),
        (1, "dummy", 0, "step"),
        (1, "dummy", 1, "step"),
        (2, "forward", 0, "step"),
        (2, "forward", 1, "step"),
        (2, "forward", 0, "replay"),
        (2, "forward", 1, "replay"),
    ]


@pytest.mark.parametrize("other", [{"kernel_slot": 1}, {"context_index": 1}])
def test_layers_are_ranked_by_kernel_and_context(tmp_path, other):
    trace = Trace()
    for changes in ({}, other, {}, other):
        trace.plain(step_stamp=1, **changes)
    launches = reconciled(tmp_path, trace, steps=[started(), step(1)]).launches
    assert launches["layer_index"].to_list() == [0, 0, 1, 1]
