"""The rows of exported tables: owners, what follows from the launch, and what is null."""

import builders
import polars as pl
import pytest
from builders import Trace, kv_address, recorded, replays

from kvtrace_cli.analysis import joined
from kvtrace_cli.analysis.attribution import attribute
from kvtrace_cli.analysis.export_frames import ExportSource
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.steps import step_tables

REQUEST = "cmpl-kvtrace-0-0-4f6b1c2d"


def source_of(path, *traces, **options):
    recording = recorded(path, *traces, **options)
    return ExportSource(recording, reconcile(recording), step_tables(recording))


def table(source, name):
    return pl.concat(source.slices_of(name))


def two_steps():
    """A forward step of two rows and a padding row, a dummy step, and a launch without a step."""
    trace = Trace()
    trace.changes = {"flags": builders.flags("CLOSED", "PATCHED", "WRITES")}
    forward = trace.node(0, 1, (3, 1, 1), step_stamp=1)
    for row in range(3):
        trace.enter(forward, (row, 0, 0))
        if row < 2:
            trace.store(forward, (row, 0, 0), kv_address(80 + row), thread_index=5)
    trace.enter_all(trace.plain((2, 1, 1), step_stamp=2))
    trace.enter_all(trace.plain())
    steps = [
        builders.started(ranks={"tensor": 1, "world": 3}),
        builders.step(1, requests=[[REQUEST, 2, 0]], admitted=[[REQUEST, 0, [[5]]]], padded_rows=3),
        builders.step(2, "dummy", rows=2),
    ]
    return trace, {"steps": steps, "layout": builders.layout()}


def test_a_block_entry_has_its_rows_owner(tmp_path):
    trace, options = two_steps()
    found = table(source_of(tmp_path, trace, **options), "block_events")
    columns = ("row", "owner", "request_id", "owner_request_index", "position", "step_kind")
    assert found.select(columns).rows() == [
        (0, "owned", REQUEST, 0, 0, "forward"),
        (1, "owned", REQUEST, 0, 1, "forward"),
        (2, "padding", None, None, None, "forward"),
        (0, "dummy", None, None, None, "dummy"),
        (1, "dummy", None, None, None, "dummy"),
        (0, "unknown", None, None, None, None),
    ]
    assert found["sequence"].to_list() == [0, 2, 4, 5, 6, 7]
    assert found["kernel"].unique().to_list() == [builders.TARGET]


def test_a_store_has_written_and_expected_slot(tmp_path):
    trace, options = two_steps()
    found = table(source_of(tmp_path, trace, **options), "stores")
    columns = ("sequence", "row", "position", "part", "written_slot", "expected_slot")
    assert found.select(columns).rows() == [(1, 0, 0, "K", 80, 80), (3, 1, 1, "K", 81, 81)]
    assert found["gpu_globaltimer_ns"].to_list() == [
        trace.events[position]["gpu_globaltimer_ns"] for position in (1, 3)
    ]
    assert found["thread_index"].to_list() == [5, 5]


def test_a_step_has_its_launches_and_their_entries(tmp_path):
    trace, options = two_steps()
    found = table(source_of(tmp_path, trace, **options), "steps")
    columns = ("step_stamp", "requests", "launches", "expected_blocks", "matched_blocks")
    assert found.select(columns).rows() == [(1, 1, 1, 3, 3), (2, 0, 1, 2, 2)]
    times = [event["gpu_globaltimer_ns"] for event in trace.events]
    assert found.select("first_globaltimer_ns", "last_globaltimer_ns").rows() == [
        (times[0], times[4]),
        (times[5], times[6]),
    ]
    assert found["positions_exact"].all()


def test_a_step_says_if_positions_are_upper_bounds(tmp_path):
    trace, options = two_steps()
    options["steps"][0]["inexact"] = ["speculative decoding"]
    found = table(source_of(tmp_path, trace, **options), "steps")
    assert not found["positions_exact"].any()


def test_owners_add_up_to_what_reconcile_counts(tmp_path):
    trace, options = two_steps()
    source = source_of(tmp_path, trace, **options)
    counts = attribute(source.result, source.recording, source.tables)
    for name, expected in (("block_events", counts.whole_life), ("stores", counts.stores)):
        owners = table(source, name)["owner"].to_list()
        for owner in ("owned", "padding", "dummy", "draft", "unknown"):
            assert owners.count(owner) == getattr(expected, owner), (name, owner)


def test_an_entry_without_a_launch_is_there_with_what_it_says_itself(tmp_path):
    trace = replays(nodes=1, count=1)
    trace.enter(trace.launches[0], grid_id=5, launch_stamp=0, kernel_slot=2)
    trace.enter(trace.launches[0])
    stray, again = table(source_of(tmp_path, trace), "block_events").to_dicts()[1:]
    assert (stray["launch_index"], stray["matched"], stray["graph_exec"]) == (None, False, None)
    assert (stray["kernel_slot"], stray["grid_id"], stray["owner"]) == (2, 5, "unknown")
    assert (again["launch_index"], again["matched"]) == (0, False)
    assert (again["row"], again["owner"]) == (None, "unknown")


def test_an_entry_that_is_no_block_of_its_launch_has_no_owner(tmp_path):
    trace, options = two_steps()
    trace.enter(trace.launches[0], (1, 0, 0))
    trace.enter(trace.launches[1], (0, 0, 0))
    found = table(source_of(tmp_path, trace, **options), "block_events").tail(2)
    columns = ("step_kind", "matched", "row", "owner", "position")
    assert found.select(columns).rows() == [
        ("forward", False, None, "unknown", None),
        ("dummy", False, None, "unknown", None),
    ]


def test_layers_decode_steps_and_requests_follow_from_the_launch(tmp_path):
    found = table(source_of(tmp_path, replays(nodes=2, count=3)), "block_events")
    columns = ("launch_id", "layer_index", "decode_step", "request_index")
    assert found.select(columns).rows() == [
        (replay, layer, replay, 0) for replay in (1, 2, 3) for layer in (0, 1)
    ]


def test_every_size_of_slice_gives_the_same(tmp_path, monkeypatch):
    trace, options = two_steps()
    source = source_of(tmp_path, trace, **options)
    whole = {name: table(source, name) for name in ("block_events", "stores")}
    for count in (1, 2, 3):
        monkeypatch.setattr(joined, "SLICE_EVENTS", count)
        for name, expected in whole.items():
            assert table(source, name).equals(expected)


def test_launches_of_two_processes_are_never_in_one_frame(tmp_path):
    first, second = replays(nodes=2, count=2), replays(nodes=3, count=1)
    second.process_id = 4712
    source = source_of(tmp_path, first, second)
    frames = list(source.slices_of("launches"))
    assert [frame["process_id"].unique().to_list() for frame in frames] == [[4711], [4712]]
    assert [frame.height for frame in frames] == [4, 3]
    assert pl.concat(frames)["launch_index"].to_list() == list(range(7))


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_token_ids": "many", "returned_token_ids": None},
        {"max_tokens": "eight", "token_host_monotonic_ns": [1, "soon"]},
        {"max_tokens": True, "token_host_monotonic_ns": [-1]},
    ],
)
def test_a_request_field_of_another_kind_is_null(changes, tmp_path):
    source = source_of(tmp_path, Trace(), requests=[builders.request(**changes)])
    (row,) = table(source, "requests").to_dicts()
    null = {"prompt_token_ids": "prompt_tokens", "returned_token_ids": "returned_tokens"}
    assert all(row[null.get(name, name)] is None for name in changes)
    assert row["request_id"] == "kvtrace-0"


def test_requests_are_in_the_order_in_which_they_were_sent(tmp_path):
    times = [5, 6, 7]
    requests = [
        builders.request(1, token_host_monotonic_ns=times),
        builders.request(0, role="warmup", error="refused", http_status=None),
    ]
    found = table(source_of(tmp_path, Trace(), requests=requests), "requests")
    columns = ("request_index", "role", "prompt_tokens", "returned_tokens", "error", "http_status")
    assert found.select(columns).rows() == [
        (0, "warmup", 3, 8, "refused", None),
        (1, "measured", 3, 8, None, 200),
    ]
    assert found["token_host_monotonic_ns"].to_list() == [None, times]


def test_ranks_are_those_that_engines_told(tmp_path):
    trace, options = two_steps()
    assert source_of(tmp_path / "told", trace, **options).ranks == {builders.PROCESS_ID: 3}
    del options["steps"][0]["ranks"]
    assert source_of(tmp_path / "not", trace, **options).ranks == {}
