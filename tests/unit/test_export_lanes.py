"""Slices that overlap: which share a lane, and that none is lost or moved in time."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace_cli.analysis.export_lanes import pack, with_lanes

SCHEMA = {
    "track": pl.UInt32,
    "root": pl.UInt64,
    "depth": pl.UInt8,
    "begin_ns": pl.UInt64,
    "end_ns": pl.UInt64,
    "root_launch": pl.UInt32,
}


def drawn(*rows):
    frame = pl.DataFrame([(7, *row, row[0]) for row in rows], schema=SCHEMA, orient="row")
    columns = ("lane", "depth", "begin_ns", "end_ns")
    return with_lanes(frame, ["track"]).select(columns).rows()


@pytest.mark.parametrize(
    ("spans", "lanes"),
    [
        ([], []),
        ([(0, 5), (5, 9), (9, 9), (9, 12)], [0, 0, 0, 0]),
        ([(0, 9), (1, 3), (2, 8), (4, 6)], [0, 1, 2, 1]),
        ([(3, 3), (3, 3)], [0, 0]),
    ],
)
def test_a_lane_is_free_again_at_the_end_of_its_slice(spans, lanes):
    assert pack(spans).to_list() == lanes


def test_children_stay_inside_of_their_parent():
    assert drawn((1, 0, 0, 10), (1, 1, 4, 10), (1, 1, 0, 4), (2, 0, 10, 12), (2, 1, 10, 10)) == [
        (0, 0, 0, 10),
        (0, 1, 0, 4),
        (0, 1, 4, 10),
        (0, 0, 10, 12),
        (0, 1, 10, 10),
    ]


def test_a_child_that_begins_before_the_one_before_it_ended_goes_to_a_lane_behind():
    """The second parent overlaps the first, so there are two lanes of parents before it."""
    assert drawn(
        (1, 0, 0, 10), (1, 1, 0, 6), (1, 1, 5, 7), (1, 1, 6, 10), (2, 0, 8, 12), (2, 1, 8, 12)
    ) == [
        (0, 0, 0, 10),
        (0, 1, 0, 6),
        (0, 1, 6, 10),
        (1, 0, 8, 12),
        (1, 1, 8, 12),
        (2, 0, 5, 7),
    ]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
        ),
        max_size=6,
    )
)
def test_no_two_slices_of_a_lane_overlap_whatever_there_is(parents):
    rows = []
    for root, (shift, spans) in enumerate(parents):
        children = [(shift + min(span), shift + max(span)) for span in spans]
        whole = min(begin for begin, _ in children), max(end for _, end in children)
        rows += [(root, 0, *whole), *((root, 1, *child) for child in children)]
    found = drawn(*rows)
    assert sorted(row[2:] for row in found) == sorted(row[2:] for row in rows)
    until = {}
    parent = None
    for lane, depth, begin, end in found:
        if depth == 0:
            assert begin >= until.get((lane, 0), 0)
            until[lane, 0], until[lane, 1] = end, begin
            parent = lane, begin, end
        else:
            assert parent[0] == lane
            assert parent[1] <= begin <= end <= parent[2]
            assert begin >= until[lane, 1]
            until[lane, 1] = end
