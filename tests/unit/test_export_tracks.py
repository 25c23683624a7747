"""What a timeline shows: tracks, names, times, and what is left out of a long one."""

from collections import Counter

import builders
import pytest
from builders import Trace, replays, write_run
from decoded_trace import assert_true_to, export_source, read_trace

from kvtrace_cli.analysis.export_tracks import LeftOut, timeline
from kvtrace_cli.exports.perfetto import write_trace

PLENTY = 10**6
T0 = 1_700_000_000_000_000_000


def drawn(path, *traces, max_slices=PLENTY, **options):
    """Return the timeline of a run, and the tracks of its file."""
    source = export_source(write_run(path / "run", *traces, **options))
    found = timeline(source, max_slices)
    processes = found.slices["process_id"].unique()
    write_trace(path / "t.pftrace", found, {number: f"process {number}" for number in processes})
    tracks = read_trace(path / "t.pftrace")
    if max_slices == PLENTY:
        assert_true_to(source, tracks)
    return found, tracks


def names(track):
    return [("  " if one.parent else "") + one.name for one in track.slices]


def by_name(tracks, name):
    (found,) = [track for track in tracks if track.name == name]
    return found


def at(trace, launch, *times):
    for block, now in zip(launch.blocks, times, strict=True):
        trace.enter(launch, block, gpu_globaltimer_ns=T0 + now)


def test_replays_hold_their_nodes_and_the_request_its_decode_steps(tmp_path):
    _, tracks = drawn(tmp_path, replays(nodes=2, count=2))
    assert [track.name for track in tracks] == [
        "requests",
        "graph exec 1 (0x5000), stream 0x77",
    ]
    assert names(tracks[0]) == ["request 0", "  decode step 1", "  decode step 2"]
    kernel = builders.TARGET
    nodes = [f"  layer 0: {kernel}", f"  layer 1: {kernel}"]
    assert names(tracks[1]) == ["replay 1", *nodes, "replay 2", *nodes]
    replay, node = tracks[1].slices[3:5]
    assert replay.args["decode_step"] == 2
    assert node.args == {
        "layer_index": 0,
        "launch_id": 2,
        "launch_index": 2,
        "step_stamp": 0,
        "expected_blocks": 1,
        "matched_blocks": 1,
        "first_sequence": 2,
        "last_sequence": 2,
    }
    assert node.is_instant
    assert not replay.is_instant


def test_each_stream_and_exec_and_context_has_its_track(tmp_path):
    trace = Trace()
    for launch in (
        trace.node(0, 1, stream=0),
        trace.node(1, 1, stream=8),
        trace.node(0, 1, graph_exec=0x6000, exec_generation=2),
        trace.plain(stream=9),
        trace.plain(stream=0),
    ):
        trace.enter_all(launch)
    second = Trace(context_index=1, launches=trace.launches)
    second.enter_all(second.plain(context_index=1))
    _, tracks = drawn(tmp_path, trace, second, requests=[])
    assert sorted(track.name for track in tracks) == [
        "graph exec 1 (0x5000), default stream, context 0",
        "graph exec 1 (0x5000), stream 0x8, context 0",
        "graph exec 2 (0x6000), stream 0x77, context 0",
        "plain launches, default stream, context 0",
        "plain launches, stream 0x77, context 1",
        "plain launches, stream 0x9, context 0",
    ]


def test_nodes_whose_blocks_interleave_are_drawn_apart_with_their_own_times(tmp_path):
    trace = Trace()
    first, second, third = (trace.node(node, 1, (2, 1, 1)) for node in range(3))
    at(trace, first, 0, 40)
    at(trace, second, 20, 60)
    at(trace, third, 40, 80)
    _, tracks = drawn(tmp_path, trace, requests=[])
    lanes = [[(one.name[:7], one.span) for one in track.slices] for track in tracks]
    assert lanes == [
        [
            ("replay ", (T0, T0 + 80)),
            ("layer 0", (T0, T0 + 40)),
            ("layer 2", (T0 + 40, T0 + 80)),
        ],
        [("layer 1", (T0 + 20, T0 + 60))],
    ]
    assert len({track.name for track in tracks}) == 1


def test_entries_that_go_back_in_time_change_nothing(tmp_path):
    trace = Trace()
    first, second = (trace.node(node, 1, (2, 1, 1)) for node in range(2))
    at(trace, first, 50, 10)
    at(trace, second, 5, 5)
    _, tracks = drawn(tmp_path, trace, requests=[])
    assert [one.span for one in tracks[0].slices] == [
        (T0 + 5, T0 + 50),
        (T0 + 5, T0 + 5),
        (T0 + 10, T0 + 50),
    ]


def stepped(requests=2):
    """Two prompts in one step, then one step for each request, at times that overlap."""
    ids = [f"cmpl-kvtrace-{index}-0-aa" for index in range(requests)]
    trace = Trace()
    at(trace, trace.plain((4, 1, 1), step_stamp=1), 0, 0, 10, 10)
    at(trace, trace.node(0, 1, (1, 1, 1), step_stamp=2), 20)
    at(trace, trace.node(0, 2, (1, 1, 1), step_stamp=3), 30)
    steps = [
        builders.started(),
        builders.step(1, requests=[[name, 2, 0] for name in ids], graph_mode="NONE"),
        builders.step(2, requests=[[ids[0], 1, 2]]),
        builders.step(3, requests=[[ids[1], 1, 2]], padded_rows=4),
    ]
    sent = [builders.request(index) for index in range(requests)]
    return trace, {"steps": steps, "requests": sent}


def test_requests_that_overlap_have_a_lane_each_with_their_steps(tmp_path):
    trace, options = stepped()
    _, tracks = drawn(tmp_path, trace, **options)
    lanes = [track for track in tracks if track.name == "requests"]
    assert [names(track) for track in lanes] == [
        [
            "request cmpl-kvtrace-0-0-aa",
            "  step 1: positions 0 to 1",
            "  step 2: position 2",
        ],
        [
            "request cmpl-kvtrace-1-0-aa",
            "  step 1: positions 0 to 1",
            "  step 3: position 2",
        ],
    ]
    assert [track.slices[0].span for track in lanes] == [(T0, T0 + 20), (T0, T0 + 30)]
    assert [track.slices[0].args["request_index"] for track in lanes] == [0, 1]
    steps = by_name(tracks, "engine steps")
    assert names(steps) == ["step 1: forward", "step 2: forward", "step 3: forward"]
    assert steps.slices[0].args["graph_mode"] == "NONE"
    assert steps.slices[2].args["padded_rows"] == 4


def test_what_never_entered_has_no_slice_and_is_counted(tmp_path):
    trace = replays(nodes=2, count=1)
    trace.lose(1)
    trace.enter(trace.launches[0], grid_id=5)
    found, tracks = drawn(tmp_path, trace, requests=[])
    assert (found.timeless, found.unmatched) == (1, 1)
    assert names(tracks[0]) == ["replay 1", f"  layer 0: {builders.TARGET}"]


def test_a_kernel_that_no_journal_names_has_its_slot(tmp_path):
    trace = Trace()
    trace.enter_all(trace.plain(kernel_slot=3))
    _, tracks = drawn(tmp_path, trace, requests=[])
    assert names(tracks[0]) == ["kernel slot 3"]


def long_run():
    """Five replays of three nodes; a request takes in the last two."""
    trace = replays(nodes=3, count=5)
    begin = trace.launches[9].values["host_monotonic_ns"]
    return trace, {"requests": [builders.request(host_monotonic_begin_ns=begin)]}


@pytest.mark.parametrize(
    ("limit", "kept", "left_out"),
    [
        (23, {"request": 1, "replay": 5, "decode": 2, "layer": 15}, ()),
        (
            22,
            {"request": 1, "replay": 5, "decode": 2, "layer": 12},
            (LeftOut("nodes", 3, 15),),
        ),
        (
            11,
            {"request": 1, "replay": 5, "decode": 2, "layer": 3},
            (LeftOut("nodes", 12, 15),),
        ),
        (
            8,
            {"request": 1, "replay": 5, "decode": 2},
            (LeftOut("nodes", 15, 15),),
        ),
        (
            7,
            {"request": 1, "replay": 5},
            (LeftOut("steps of requests", 2, 2), LeftOut("nodes", 15, 15)),
        ),
        (
            3,
            {"request": 1, "replay": 2},
            (
                LeftOut("replays and plain launches", 3, 5),
                LeftOut("steps of requests", 2, 2),
                LeftOut("nodes", 15, 15),
            ),
        ),
    ],
)
def test_a_limit_keeps_whole_replays_the_measured_first(limit, kept, left_out, tmp_path):
    trace, options = long_run()
    found, tracks = drawn(tmp_path, trace, max_slices=limit, **options)
    slices = [one for track in tracks for one in track.slices]
    assert Counter(one.name.split()[0] for one in slices) == kept
    assert found.left_out == left_out
    shown = {one.args["launch_id"] for one in slices if one.name.startswith("replay")}
    assert {4, 5} <= shown
    in_detail = Counter(one.args["launch_id"] for one in slices if one.name.startswith("layer"))
    assert set(in_detail.values()) <= {3}
    assert {4, 5} <= set(in_detail) or len(in_detail) < 2
    assert 4 in in_detail or not in_detail
