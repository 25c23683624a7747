"""Reading in pieces and joining in slices never changes what is concluded."""

import pytest
from builders import Trace, reconciled, replays, seven_replays
from polars.testing import assert_frame_equal

from kvtrace_cli.analysis import joined, matching
from kvtrace_cli.dumps import event_pieces
from kvtrace_cli.dumps.reader import read_events
from kvtrace_cli.errors import DumpFormatError


def in_slices(monkeypatch, count):
    monkeypatch.setattr(event_pieces, "PIECE_RECORDS", count)
    monkeypatch.setattr(joined, "SLICE_EVENTS", count)
    monkeypatch.setattr(matching, "PIECE_EVENTS", count)


def counted():
    """Stamps off, and an exec that ran once more than was recorded."""
    trace = replays(nodes=3, count=4, grid=(2, 1, 1), stamps=False)
    trace.enter_all(trace.launches[0])
    return trace


def faulty():
    """Blocks that come again, lie outside, have no launch, are missing, or go back in time."""
    trace = replays(nodes=4, count=3, grid=(3, 1, 1))
    for position in (0, 7, 11):
        trace.enter(trace.launches[position], (1, 0, 0))
    trace.enter(trace.launches[2], (9, 0, 0))
    trace.enter(trace.launches[3], grid_id=5)
    trace.enter(trace.launches[3], grid_id=6, launch_stamp=0)
    trace.enter(trace.launches[3], (2, 0, 0), gpu_globaltimer_ns=3)
    trace.lose(11)
    return trace


def mixed():
    trace = Trace()
    for number in range(5):
        trace.enter_all(trace.plain((4, 2, 1)))
        trace.enter_all(trace.node(0, number + 1, (2, 1, 1)))
        trace.drop(2)
    return trace


@pytest.mark.parametrize("make", [seven_replays, counted, faulty, mixed, Trace])
def test_every_size_of_slice_gives_the_same(make, tmp_path, monkeypatch):
    whole = reconciled(tmp_path / "whole", make())
    for count in (1, 2, 3, 5, 7, 16):
        in_slices(monkeypatch, count)
        parts = reconciled(tmp_path / str(count), make())
        assert parts == whole
        assert_frame_equal(parts.block_events, whole.block_events)
        assert_frame_equal(parts.launches, whole.launches)


def test_two_contexts_of_one_process(tmp_path, monkeypatch):
    def make():
        first = seven_replays(nodes=3)
        second = Trace(context_index=1, launches=first.launches)
        second.enter_all(second.plain((5, 1, 1), context_index=1))
        return first, second

    whole = reconciled(tmp_path / "whole", *make())
    in_slices(monkeypatch, 4)
    parts = reconciled(tmp_path / "parts", *make())
    assert parts == whole
    assert_frame_equal(parts.block_events, whole.block_events)


@pytest.mark.parametrize("dropped", [0, 1])
def test_a_tag_that_is_wrong_in_a_later_piece_is_named_by_its_place(dropped, tmp_path, monkeypatch):
    in_slices(monkeypatch, 4)
    trace = seven_replays(nodes=3)
    trace.dropped = dropped
    for tag in range(4):
        trace.events[9][f"tag{tag}"] = 40000
    path = tmp_path / "4711-0.events.kvt"
    path.write_bytes(trace.event_file())
    with pytest.raises(DumpFormatError, match="event 9 has the tags"):
        read_events(path)
