"""The frames behind a report's timeline, heat map and gaps: what each mark stands for."""

import builders
import pytest
from builders import Trace, recorded, replays, request, seven_replays, started, step
from rank_scenes import recorded_ranks, tensor_ranks

from kvtrace_cli.analysis.attribution import attribute
from kvtrace_cli.analysis.audit import audit
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.report_frames import pictures
from kvtrace_cli.analysis.report_model import Mark, SequenceGap
from kvtrace_cli.analysis.steps import step_tables


def everything_drawn(recording):
    result, tables = reconcile(recording), step_tables(recording)
    attribution = attribute(result, recording, tables)
    return pictures(recording, result, tables, attribution, audit(recording, result, tables))


def drawn(tmp_path, *traces, **options):
    """Return what is drawn of a run of one rank."""
    (only,) = everything_drawn(recorded(tmp_path, *traces, **options)).by_rank
    return only


def plain_steps(stamps, layers=3):
    trace = Trace()
    for stamp in stamps:
        for _ in range(layers):
            trace.enter_all(trace.plain(step_stamp=stamp))
    return trace


def test_a_timeline_has_one_mark_a_node_execution(tmp_path):
    found = drawn(tmp_path, seven_replays())
    timeline = found.timeline
    assert (timeline.mark, timeline.passes, timeline.shown_passes) == (Mark.POINT, 7, 7)
    assert (timeline.layers, timeline.marks.height) == (40, 280)
    # Every block of the builder enters 0.2 ms after the one before.
    columns = ("begin_ms", "layer", "launched", "pass_name", "blocks")
    assert timeline.marks.select(columns).rows()[40:42] == [
        (8.0, 0, "graph 1", "decode step 2", 1),
        (8.2, 1, "graph 1", "decode step 2", 1),
    ]
    assert timeline.span_ms == pytest.approx(279 * 0.2)


def test_too_many_executions_become_one_line_a_replay(tmp_path):
    timeline = drawn(tmp_path, replays(40, 101)).timeline
    assert (timeline.mark, timeline.marks.height, timeline.layers) == (Mark.LINE, 101, 40)
    columns = ("begin_ms", "end_ms", "layer", "last_layer", "blocks")
    assert timeline.marks.select(columns).row(0) == (0.0, 7.8, 0, 39, 40)


def test_plain_steps_are_named_by_their_step(tmp_path):
    trace = plain_steps([1, 2])
    steps = [started(), *(step(stamp, requests=[["a", 1, stamp - 1]]) for stamp in (1, 2))]
    found = drawn(tmp_path, trace, steps=steps)
    marks = found.timeline.marks
    assert marks.select("launched", "pass_name", "step_stamp").unique().sort(
        "pass_name"
    ).rows() == [
        ("plain", "step 1", 1),
        ("plain", "step 2", 2),
    ]
    assert (found.heat_map.column, found.heat_map.passes, found.heat_map.layers) == ("step", 2, 2)


def test_prefill_is_no_column_of_the_heat_map_where_graphs_are_replayed(tmp_path):
    trace = plain_steps([1])
    for launch_id in (1, 2):
        for node in range(3):
            trace.enter_all(trace.node(node, launch_id))
    found = drawn(tmp_path, trace, steps=[started(), step(1, requests=[["a", 1, 0]])])
    assert found.timeline.passes == 3
    assert (found.heat_map.column, found.heat_map.passes) == ("decode step", 2)
    assert found.heat_map.cells["pass_number"].unique().sort().to_list() == [1, 2]


def test_launches_without_a_layer_are_counted_and_not_drawn(tmp_path):
    trace = seven_replays()
    trace.enter_all(trace.plain())
    found = drawn(tmp_path, trace)
    assert (found.stretch.launches, found.stretch.unplaced) == (281, 1)
    assert found.timeline.marks.height == 280


def test_nothing_that_has_a_layer(tmp_path):
    trace = Trace()
    trace.enter_all(trace.plain())
    found = drawn(tmp_path, trace)
    assert (found.timeline, found.heat_map) == (None, None)
    assert found.stretch.unplaced == 1


def test_nothing_that_entered(tmp_path):
    found = everything_drawn(recorded(tmp_path, Trace()))
    assert (found.by_rank, found.other_ranks) == ((), 0)


def test_each_rank_is_drawn_by_itself(tmp_path):
    scenes = tensor_ranks(3)
    scenes[1].launched = lambda stamp, _layer: stamp != 4
    found = everything_drawn(recorded_ranks(tmp_path, scenes))
    assert [one.stretch.rank for one in found.by_rank] == ["TP0", "TP1", "TP2"]
    assert [one.stretch.process_id for one in found.by_rank] == [4711, 4712, 4713]
    # Two layers of a dummy step, of the prompt, and of one or two decode steps.
    assert [one.timeline.marks.height for one in found.by_rank] == [8, 6, 8]
    assert [one.heat_map.passes for one in found.by_rank] == [4, 3, 4]


def test_of_many_ranks_the_first_are_drawn_and_the_others_are_counted(tmp_path):
    found = everything_drawn(recorded_ranks(tmp_path, tensor_ranks(10)))
    assert [one.stretch.rank for one in found.by_rank] == [f"TP{rank}" for rank in range(8)]
    assert found.other_ranks == 2


def test_a_heat_map_has_the_interval_to_the_next_layer(tmp_path):
    heat_map = drawn(tmp_path, seven_replays()).heat_map
    assert (heat_map.column, heat_map.passes, heat_map.grouped) == ("decode step", 7, 1)
    # The last of 40 layers has no next one.
    assert (heat_map.layers, heat_map.cells.height) == (39, 273)
    assert heat_map.cells["interval_us"].unique().to_list() == [200.0]
    assert (heat_map.median_us, heat_map.max_us) == (200.0, 200.0)


def test_the_slowest_layer_is_the_one_with_the_longest_median(tmp_path):
    trace = Trace()
    for launch_id in range(1, 4):
        for node in range(4):
            trace.enter_all(trace.node(node, launch_id))
            if node == 2:
                trace.drop()  # takes one step of the clock
    assert drawn(tmp_path, trace).heat_map.slowest_layer == 2


def test_a_layer_that_lacks_its_block_leaves_two_cells_empty(tmp_path):
    trace = seven_replays(4)
    trace.lose(5)  # layer 1 of the second replay
    cells = drawn(tmp_path, trace).heat_map.cells.rows_by_key(["pass_number"])
    assert [layer for layer, _ in cells[2]] == [2]
    assert [layer for layer, _ in cells[3]] == [0, 1, 2]


def test_many_steps_share_columns(tmp_path):
    heat_map = drawn(tmp_path, replays(20, 330)).heat_map
    assert (heat_map.passes, heat_map.grouped) == (330, 3)
    assert heat_map.cells["pass_number"].unique().sort().to_list() == list(range(1, 331, 3))


def test_replays_of_requests_at_once_are_no_decode_steps(tmp_path):
    found = drawn(tmp_path, seven_replays(), requests=[request(0), request(1)])
    assert found.heat_map.column == "graph replay"
    assert found.timeline.marks["pass_name"][0] == "replay 1"


def test_without_a_measured_request_the_whole_life_is_drawn(tmp_path):
    found = drawn(tmp_path, seven_replays(), requests=[])
    assert (found.stretch.measured, found.timeline.marks.height) == (False, 280)


def test_one_context_is_drawn_and_the_others_are_counted(tmp_path):
    small, large = replays(4, 2), replays(4, 3)
    small.process_id, large.process_id = 10, 11
    stretch = drawn(tmp_path, small, large).stretch
    assert (stretch.process_id, stretch.launches, stretch.other_contexts) == (11, 12, 1)


def test_graphs_have_the_numbers_of_the_terminals_table(tmp_path):
    trace = Trace()
    for number, launch_id in ((0, 1), (1, 1), (0, 2)):
        for node in range(2):
            key = {
                "graph_exec": builders.GRAPH_EXEC + number,
                "launch_stamp": 10 * number + launch_id,
            }
            trace.enter_all(trace.node(node, launch_id, **key))
    marks = drawn(tmp_path, trace).timeline.marks
    assert marks["launched"].to_list() == ["graph 1"] * 2 + ["graph 2"] * 2 + ["graph 1"] * 2


def test_gaps_are_where_the_drops_were(tmp_path):
    trace = Trace()
    trace.drop(2)
    for node in range(3):
        trace.enter_all(trace.node(node, 1))
        if node == 1:
            trace.drop(5)
    found = everything_drawn(recorded(tmp_path, trace))
    name = f"{builders.PROCESS_ID}-0.events.kvt"
    assert found.gaps == (SequenceGap(name, None, 2), SequenceGap(name, 3, 5))
    assert found.gap_count == 2


def test_figures_are_medians_with_their_clock(tmp_path):
    figures = everything_drawn(recorded(tmp_path, seven_replays())).figures
    spans = [one for one in figures if "last layer" in one.name]
    assert [(one.median_ms, one.samples, one.clock) for one in spans] == [
        (pytest.approx(7.8), 7, "GPU globaltimer")
    ]
