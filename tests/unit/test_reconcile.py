"""Reconciling: every event finds its launch, and everything that does not fit is counted."""

from dataclasses import replace

import builders
import polars as pl
import pytest
from builders import Trace, flags, reconciled, replays, request, seven_replays

from kvtrace_cli.analysis.model import Population, Verdict
from kvtrace_cli.dumps import abi

BY_STAMP = "grid id and launch stamp"
BY_COUNT = "grid id and order of occurrence"


def counts(blocks):
    return (
        blocks.launches,
        blocks.expected_blocks,
        blocks.matched_blocks,
        blocks.missing_blocks,
        blocks.unexpected_blocks,
    )


def assert_reason(result, text):
    assert any(text in reason for reason in result.reasons), result.reasons


def test_the_articles_numbers(tmp_path):
    result = reconciled(tmp_path, seven_replays())
    assert (result.verdict, result.reasons, result.notes) == (Verdict.AGREES, (), ())
    assert counts(result.measured.graph_nodes) == (280, 280, 280, 0, 0)
    assert counts(result.measured.plain_launches) == (0, 0, 0, 0, 0)
    (shape,) = result.measured_graphs
    assert (shape.nodes, shape.replays, shape.first_launch_id, shape.last_launch_id) == (
        40,
        7,
        1,
        7,
    )
    assert (shape.first_sequence, shape.last_sequence) == (0, 279)
    assert shape.sequences_consecutive
    assert shape.same_nodes_in_every_replay
    assert shape.timer_steps_backwards == 0
    assert result.graph_join_method == BY_STAMP
    assert (result.order_join.matches, result.order_join.total) == (280, 280)
    assert result.order_join.agrees
    assert result.order_join.single_stream


def test_times_are_between_block_entries_on_the_gpu_clock(tmp_path):
    (shape,) = reconciled(tmp_path, seven_replays()).measured_graphs
    step_ms = builders.GPU_STEP_NS / 1e6
    assert (shape.replay_span.count, shape.replay_gap.count) == (7, 6)
    assert shape.replay_span.median_ms == pytest.approx(39 * step_ms)
    assert shape.replay_gap.max_ms == pytest.approx(step_ms)


def test_layers_and_decode_steps_are_ranks(tmp_path):
    events = reconciled(tmp_path, seven_replays(nodes=3)).block_events
    assert events["layer_index"].to_list() == [0, 1, 2] * 7
    assert events["decode_step"].to_list() == [step for step in range(1, 8) for _ in range(3)]


def test_several_blocks_a_node(tmp_path):
    result = reconciled(tmp_path, replays(nodes=3, count=4, grid=(5, 2, 3)))
    assert result.verdict is Verdict.AGREES
    assert counts(result.measured.graph_nodes) == (12, 360, 360, 0, 0)


def test_stamps_off_falls_back_to_counting(tmp_path):
    result = reconciled(tmp_path, replays(nodes=3, count=4, grid=(2, 2, 1), stamps=False))
    assert result.verdict is Verdict.AGREES
    assert result.graph_join_method == BY_COUNT
    assert result.block_events["decode_step"].to_list() == [
        s for s in (1, 2, 3, 4) for _ in range(12)
    ]


def test_counting_with_missing_events_is_said_to_be_uncertain(tmp_path):
    trace = replays(nodes=3, count=4, stamps=False)
    trace.lose(4)
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.MISMATCH
    assert counts(result.measured.graph_nodes) == (12, 12, 11, 1, 0)
    assert any("is not certain" in note for note in result.notes)


def test_with_stamps_the_launch_that_lacks_its_event_is_named(tmp_path):
    trace = seven_replays()
    trace.lose(100)
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.MISMATCH
    assert_reason(result, "1 of 280 graph-node blocks have no event.")
    assert_reason(result, "280 blocks expected, but 279 written and 0 dropped.")
    missing = result.launches.filter(pl.col("matched_blocks") < pl.col("expected_blocks"))
    assert missing.select("layer_index", "decode_step").rows() == [(100 % 40, 100 // 40 + 1)]
    assert not any("certain" in note for note in result.notes)


def test_stamps_that_came_round(tmp_path):
    """Two replays 65,535 launches apart carry one stamp and are told apart by counting."""
    trace = Trace()
    for launch_id in (1, 1 + abi.constant("KVTRACE_MAX_LAUNCH_STAMP")):
        for node in range(3):
            trace.enter_all(trace.node(node, launch_id, (2, 1, 1), launch_stamp=1))
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.AGREES
    assert result.block_events["launch_index"].to_list() == [i for i in range(6) for _ in range(2)]


def two_streams():
    """Return two graphs on two streams whose blocks enter alternately."""
    trace = Trace()
    launches = [
        [
            trace.node(
                node, launch_id=1, graph_exec=0x5000 + stream, stream=stream, api_stream=stream,
                grid_id=100 * stream + node, launch_stamp=stream,
            )
            for node in range(10)
        ]
        for stream in (1, 2)
    ]  # fmt: skip
    for pair in zip(*launches, strict=True):
        for launch in pair:
            trace.enter_all(launch)
    return trace


def test_two_streams_where_the_order_of_atomics_misleads(tmp_path):
    result = reconciled(tmp_path, two_streams())
    assert result.verdict is Verdict.AGREES
    assert result.order_join.agrees is False
    assert result.order_join.matches == 2
    assert not result.order_join.single_stream
    assert not result.notes
    assert [shape.sequences_consecutive for shape in result.graphs] == [False, False]


def test_a_single_stream_where_the_joins_disagree_is_noted(tmp_path):
    trace = Trace()
    first, second = trace.plain(), trace.plain()
    trace.enter(second)
    trace.enter(first)
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.AGREES
    assert any("gives 2 of 2 blocks to another launch" in note for note in result.notes)


def test_plain_launches_and_graph_nodes_are_never_mixed(tmp_path):
    trace = Trace()
    for _ in range(5):
        trace.enter_all(trace.plain((8, 1, 1)))
    trace.enter_all(trace.node(0, 1))
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.AGREES
    assert counts(result.whole_life.plain_launches) == (5, 40, 40, 0, 0)
    assert counts(result.whole_life.graph_nodes) == (1, 1, 1, 0, 0)
    assert result.order_join.single_stream


def test_only_launches_during_the_measured_request_count_as_measured(tmp_path):
    trace = seven_replays()
    warmup_end = 80 * builders.HOST_STEP_NS
    requests = [
        request(0, "warmup", host_monotonic_end_ns=warmup_end),
        request(1, host_monotonic_begin_ns=warmup_end + 1),
    ]
    result = reconciled(tmp_path, trace, requests=requests)
    assert result.verdict is Verdict.AGREES
    assert counts(result.measured.graph_nodes) == (200, 200, 200, 0, 0)
    assert counts(result.whole_life.graph_nodes) == (280, 280, 280, 0, 0)
    assert (result.measured_graphs[0].replays, result.graphs[0].replays) == (5, 7)
    assert result.measured_graphs[0].first_launch_id == 3
    steps = result.launches["decode_step"].to_list()
    assert steps[:80] == [None] * 80
    assert steps[80::40] == [1, 2, 3, 4, 5]


def test_a_repeated_block_index_is_unexpected_and_the_absent_one_missing(tmp_path):
    trace = Trace()
    launch = trace.plain((3, 1, 1))
    for x in (0, 1, 1):
        trace.enter(launch, (x, 0, 0))
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.MISMATCH
    assert counts(result.whole_life.plain_launches) == (1, 3, 2, 1, 1)
    assert result.block_events["matched"].to_list() == [True, True, False]


@pytest.mark.parametrize("block", [(3, 0, 0), (0, 2, 0), (0, 0, 1)])
def test_a_block_index_outside_the_grid_is_unexpected(tmp_path, block):
    trace = Trace()
    launch = trace.plain((3, 2, 1))
    trace.enter(launch, block)
    for inside in launch.blocks[1:]:
        trace.enter(launch, inside)
    result = reconciled(tmp_path, trace)
    assert counts(result.whole_life.plain_launches) == (1, 6, 5, 1, 1)


def test_an_event_too_many_after_a_counted_key(tmp_path):
    trace = replays(nodes=1, count=3, stamps=False)
    trace.enter(trace.launches[-1])
    result = reconciled(tmp_path, trace)
    assert counts(result.whole_life.graph_nodes) == (3, 3, 3, 0, 1)
    assert counts(result.whole_life.plain_launches) == (0, 0, 0, 0, 0)


def test_events_without_a_launch_are_counted_in_their_population(tmp_path):
    trace = seven_replays()
    node, plain = trace.launches[0], trace.plain()
    trace.enter_all(plain)
    trace.enter(node.with_values(launch_stamp=60_000))
    trace.enter(node.with_values(launch_stamp=0))
    trace.enter(plain.with_values(grid_id=55))
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.MISMATCH
    assert result.whole_life.graph_nodes.unexpected_blocks == 2
    assert result.whole_life.plain_launches.unexpected_blocks == 1
    assert result.measured.graph_nodes.unexpected_blocks == 0


def test_events_without_any_launch_record(tmp_path):
    trace = seven_replays()
    trace.launches.clear()
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.MISMATCH
    assert result.whole_life.graph_nodes.unexpected_blocks == 280
    assert result.order_join.agrees is None


def test_a_context_without_event_file_has_all_its_blocks_missing(tmp_path):
    run = builders.write_run(tmp_path / "run", seven_replays())
    (run / "raw/4711-0.events.kvt").unlink()
    recording = builders.read_recording(builders.open_run_dir(run, allow_incomplete=False))
    result = builders.reconcile(recording)
    assert result.verdict is Verdict.MISMATCH
    assert counts(result.whole_life.graph_nodes) == (280, 280, 0, 280, 0)


def test_dropped_events(tmp_path):
    trace = Trace()
    launch = trace.plain((10, 1, 1))
    for x in range(4):
        trace.enter(launch, (x, 0, 0))
    trace.drop(3)
    for x in range(7, 10):
        trace.enter(launch, (x, 0, 0))
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.MISMATCH
    books = result.files[0]
    assert (books.written, books.dropped, books.sequence_gaps) == (7, 3, 3)
    assert books.books_balance
    assert counts(result.whole_life.plain_launches) == (1, 10, 7, 3, 0)
    assert_reason(result, "3 records were dropped")


def test_dropped_launch_records_leave_the_books_open(tmp_path):
    trace = seven_replays()
    trace.launches_dropped = 2
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.MISMATCH
    assert result.files[0].books_balance is None
    assert any("only a lower bound" in note for note in result.notes)
    assert_reason(result, "4711.launches.kvt: 2 records were dropped")


def test_a_sequence_gap_without_a_drop_is_a_mismatch(tmp_path):
    trace = seven_replays()
    for event in trace.events[200:]:
        event["sequence_low"] += 5
    result = reconciled(tmp_path, trace)
    assert result.files[0].sequence_gaps == 5
    assert_reason(result, "5 sequences are missing between its events")


def test_launches_before_patching_cannot_have_events(tmp_path):
    trace = seven_replays()
    trace.plain((6, 1, 1), launch_flags=0)
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.MISMATCH
    assert result.whole_life.plain_launches == Population(
        launches=1, launches_before_patching=1, blocks_before_patching=6
    )
    assert_reason(result, "6 plain-launch blocks were launched before")


def test_a_timer_that_steps_back_is_counted_only(tmp_path):
    trace = seven_replays()
    trace.events[50]["gpu_globaltimer_ns"] -= 10 * builders.GPU_STEP_NS
    result = reconciled(tmp_path, trace)
    assert result.verdict is Verdict.AGREES
    assert result.files[0].timer_steps_backwards == 1
    assert result.graphs[0].timer_steps_backwards == 1


def test_replays_with_other_nodes_are_told(tmp_path):
    trace = seven_replays(nodes=3)
    trace.launches[4] = trace.launches[4].with_values(graph_node=0xABC)
    assert not reconciled(tmp_path, trace).graphs[0].same_nodes_in_every_replay


def test_an_exec_whose_address_came_back_is_another(tmp_path):
    trace = Trace()
    for generation in (1, 2):
        for node in range(2):
            stamp = {"exec_generation": generation, "launch_stamp": generation}
            trace.enter_all(trace.node(node, 1, **stamp))
    result = reconciled(tmp_path, trace)
    assert [shape.exec_generation for shape in result.graphs] == [1, 2]
    assert result.verdict is Verdict.AGREES


def test_two_contexts_of_one_process(tmp_path):
    """One launch file serves both event files; a grid id may come up in both."""
    first, second = seven_replays(nodes=2), replace(seven_replays(nodes=3), context_index=1)
    moved = [launch.with_values(context_index=1) for launch in second.launches]
    first.launches = second.launches = first.launches + moved
    result = reconciled(tmp_path, first, second)
    assert result.verdict is Verdict.AGREES
    assert [(shape.context_index, shape.nodes) for shape in result.graphs] == [(0, 2), (1, 3)]


def test_two_processes_with_the_same_grid_ids(tmp_path):
    traces = [replace(seven_replays(nodes=2), process_id=pid) for pid in (10, 9)]
    result = reconciled(tmp_path, *traces)
    assert result.verdict is Verdict.AGREES
    assert counts(result.whole_life.graph_nodes) == (28, 28, 28, 0, 0)
    assert [shape.process_id for shape in result.graphs] == [9, 10]


def test_a_process_without_target_is_listed_but_not_judged(tmp_path):
    idle = Trace(process_id=99, changes={"flags": flags("CLOSED")})
    result = reconciled(tmp_path, seven_replays(), idle)
    assert result.verdict is Verdict.AGREES
    assert result.unjudged_processes == (99,)


def test_kernels_are_named_from_the_journal(tmp_path):
    (kernel,) = reconciled(tmp_path, seven_replays()).kernels
    assert (kernel.name, kernel.kernel_slot) == (builders.TARGET, 0)
    assert (kernel.entry_points, kernel.matched_blocks) == (1, 280)


def one_pc_for_two_kernels():
    trace = Trace()
    for slot in (0, 1):
        trace.enter_all(trace.node(slot, 1, kernel_slot=slot))
    return trace


def event_names_another_slot():
    trace = Trace()
    trace.enter(trace.plain(), kernel_slot=3)
    return trace


def event_has_another_pc():
    trace = Trace()
    trace.enter(trace.plain(), pc=builders.PC + 16)
    return trace


@pytest.mark.parametrize(
    "trace", [one_pc_for_two_kernels, event_names_another_slot, event_has_another_pc]
)
def test_witnesses_that_disagree_about_a_kernel(tmp_path, trace):
    result = reconciled(tmp_path, trace())
    assert result.kernel_disagreements == 1
    assert result.verdict is Verdict.MISMATCH
    assert_reason(result, "stand for different kernels")


def test_a_journal_that_binds_the_pc_to_another_kernel(tmp_path):
    lines = builders.journal(kernel_slot=5, pc=builders.PC)
    assert reconciled(tmp_path, seven_replays(), journal_lines=lines).kernel_disagreements == 1
