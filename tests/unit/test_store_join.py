"""Stores find the launch of their block's entry, and never disturb the counts of entries."""

from dataclasses import replace

import polars as pl
import pytest
from builders import Trace, flags, journal, reconciled, replays, seven_replays
from polars.testing import assert_frame_equal

from kvtrace_cli.analysis import joined, matching
from kvtrace_cli.analysis.joined import store_slices
from kvtrace_cli.analysis.model import StoreCounts, Verdict
from kvtrace_cli.dumps import event_pieces


def with_stores(trace, stores=2):
    """Return the same trace with stores after each entry."""
    again = Trace(stamps=trace.stamps, launches=trace.launches)
    for event in trace.events:
        changes = {name: value for name, value in event.items() if not name.startswith("tag")}
        launch = next(one for one in trace.launches if one.values["grid_id"] == event["grid_id"])
        launch = launch.with_values(launch_stamp=event["launch_stamp"])
        block = tuple(event[f"block_idx_{axis}"] for axis in "xyz")
        again.enter(launch, block, kernel_slot=changes["kernel_slot"])
        for number in range(stores):
            again.store(launch, block, address=4096 + number)
    return again


def stores_of(result):
    return pl.concat(store_slices(result.contexts))


def launches_of_stores(result):
    return stores_of(result).select("launch_index", "matched").rows()


@pytest.mark.parametrize("stamps", [True, False])
def test_everything_about_entries_is_the_same_with_stores(tmp_path, stamps):
    plain = replays(nodes=3, count=4, grid=(2, 2, 1), stamps=stamps)
    without = reconciled(tmp_path / "without", plain)
    result = reconciled(tmp_path / "with", with_stores(plain))
    assert result.verdict is Verdict.AGREES
    assert result.whole_life == without.whole_life
    assert result.kernels == without.kernels
    assert result.order_join == without.order_join
    assert result.graphs[0].matched_blocks == 48
    assert result.graphs[0].sequences_consecutive
    assert_frame_equal(
        result.block_events.select("grid_id", "launch_index", "matched", "layer_index"),
        without.block_events.select("grid_id", "launch_index", "matched", "layer_index"),
    )
    assert (without.stores, result.stores) == (None, StoreCounts(96, 96))
    assert stores_of(result)["launch_index"].to_list() == [
        index for index in without.block_events["launch_index"] for _ in range(2)
    ]


def test_stores_of_another_launch_between_an_execs_entries_are_told(tmp_path):
    trace = Trace()
    node, other = trace.node(0, 1), trace.plain()
    trace.enter_all(other)
    trace.enter_all(node)
    trace.store(other)
    trace.store(node)
    assert not reconciled(tmp_path, trace).graphs[0].sequences_consecutive


def test_the_books_count_entries_only(tmp_path):
    books = reconciled(tmp_path, with_stores(seven_replays(nodes=2))).files[0]
    assert (books.written, books.stores_written, books.entries_written) == (42, 28, 14)
    assert (books.expected_blocks, books.books_balance) == (14, True)


def test_a_store_belongs_to_the_most_recent_entry_of_its_block(tmp_path):
    """Two replays that share grid id and stamp: only the order of events tells them apart."""
    trace = Trace(stamps=False)
    first, second = trace.node(0, 1, (2, 1, 1)), trace.node(0, 2, (2, 1, 1))
    for launch in (first, second):
        trace.enter(launch, (0, 0, 0))
        trace.enter(launch, (1, 0, 0))
        trace.store(launch, (1, 0, 0))
        trace.store(launch, (0, 0, 0))
    trace.store(second, (1, 0, 0))
    result = reconciled(tmp_path, trace)
    assert launches_of_stores(result) == [(0, True)] * 2 + [(1, True)] * 3


def test_a_store_before_its_entry_is_of_the_next_one(tmp_path):
    """A thread of another warp may store before the first thread has recorded the entry."""
    trace = Trace()
    launch = trace.plain((2, 1, 1))
    trace.store(launch, (1, 0, 0), thread_index=64)
    trace.enter_all(launch)
    assert launches_of_stores(reconciled(tmp_path, trace)) == [(0, True)]


def test_stores_of_no_block_that_entered_are_a_mismatch(tmp_path):
    trace = Trace()
    launch = trace.plain((2, 1, 1))
    trace.enter(launch, (0, 0, 0))
    trace.store(launch, (0, 0, 0))
    trace.store(launch, (1, 0, 0))
    trace.store(launch.with_values(grid_id=77))
    trace.store(launch.with_values(launch_stamp=3))
    result = reconciled(tmp_path, trace)
    assert launches_of_stores(result) == [(0, True)] + [(None, False)] * 3
    assert (result.stores, result.stores.unexpected) == (StoreCounts(4, 1), 3)
    assert result.verdict is Verdict.MISMATCH
    assert "3 of 4 stores are of no block that entered for a recorded launch." in result.reasons


def test_stores_of_an_entry_outside_the_grid_are_unexpected(tmp_path):
    trace = Trace()
    launch = trace.plain((1, 1, 1))
    trace.enter_all(launch)
    trace.enter(launch, (5, 0, 0))
    trace.store(launch, (5, 0, 0))
    result = reconciled(tmp_path, trace)
    assert launches_of_stores(result) == [(0, False)]
    assert result.whole_life.plain_launches.unexpected_blocks == 1
    assert result.stores.unexpected == 1


def test_stores_of_an_entry_without_a_launch_are_unexpected(tmp_path):
    trace = Trace()
    stray = trace.plain().with_values(grid_id=5)
    trace.enter_all(trace.launches[0])
    trace.enter(stray)
    trace.store(stray)
    assert launches_of_stores(reconciled(tmp_path, trace)) == [(None, False)]


def recording_writes(trace):
    trace.changes = {"flags": flags("CLOSED", "PATCHED", "WRITES")}
    return trace


def dropping(entries, stores):
    trace = recording_writes(Trace())
    launch = trace.plain((4, 1, 1))
    for x in range(4 - entries):
        trace.enter(launch, (x, 0, 0))
    trace.drop(entries)
    trace.drop_stores(stores)
    return trace


def ended(**fields):
    return [*journal(), {"event": "ended", "context_index": 0, **fields}]


def test_dropped_stores_are_no_dropped_entries(tmp_path):
    trace = dropping(entries=1, stores=5)
    result = reconciled(tmp_path, trace, journal_lines=ended(stores_dropped=5))
    books = result.files[0]
    assert (books.dropped, books.stores_dropped, books.entries_dropped) == (6, 5, 1)
    assert books.books_balance is True
    assert result.verdict is Verdict.MISMATCH


def test_books_that_do_not_balance_name_the_entries(tmp_path):
    trace = dropping(entries=1, stores=5)
    result = reconciled(tmp_path, trace, journal_lines=ended(stores_dropped=4))
    assert result.files[0].books_balance is False
    assert any("4 blocks expected, but 3 written and 2 dropped" in why for why in result.reasons)


@pytest.mark.parametrize(
    "lines",
    [journal(), ended(), ended(stores_dropped=5, context_index=1)],
    ids=["killed", "not said", "other context"],
)
def test_if_nobody_knows_how_many_stores_were_dropped_the_books_stay_open(tmp_path, lines):
    result = reconciled(tmp_path, dropping(entries=1, stores=5), journal_lines=lines)
    books = result.files[0]
    assert (books.stores_dropped, books.entries_dropped, books.books_balance) == (None, None, None)
    assert any("how many of its 6 drops were stores is not known" in note for note in result.notes)


def test_without_stores_recorded_all_drops_are_entries(tmp_path):
    trace = replace(dropping(entries=2, stores=0), changes={})
    assert reconciled(tmp_path, trace).files[0].entries_dropped == 2


def test_stores_asked_for_of_which_there_are_none(tmp_path):
    trace = recording_writes(Trace())
    trace.enter_all(trace.plain())
    assert reconciled(tmp_path, trace).stores == StoreCounts(0, 0)


def far_apart():
    """Stores whose entry is slices away, before and after, of shared keys and of none."""
    trace = replays(nodes=3, count=2, grid=(2, 1, 1), stamps=False)
    again = with_stores(trace, stores=1)
    for position in (0, 4, 1):
        again.store(trace.launches[position], (1, 0, 0))
    late = again.plain((2, 1, 1))
    again.store(late, (1, 0, 0))
    again.store(late, (0, 0, 0))
    again.store(late, (7, 0, 0))
    again.enter_all(late)
    return again


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_every_size_of_slice_gives_the_same(tmp_path, monkeypatch, count):
    whole = reconciled(tmp_path / "whole", far_apart())
    assert whole.stores == StoreCounts(18, 17)
    monkeypatch.setattr(event_pieces, "PIECE_RECORDS", count)
    monkeypatch.setattr(joined, "SLICE_EVENTS", count)
    monkeypatch.setattr(matching, "PIECE_EVENTS", count)
    parts = reconciled(tmp_path / "parts", far_apart())
    assert parts == whole
    assert_frame_equal(parts.block_events, whole.block_events)
    assert_frame_equal(stores_of(parts), stores_of(whole))
