"""Pairing a Sanitizer run with a CUPTI run by structure, and splitting time into what ran."""

import random
from dataclasses import replace

import gap_scenes as scenes
import polars as pl
import pytest
from builders import TARGET, request
from fuzz.fuzz_readers import damage
from hypothesis import given
from hypothesis import strategies as st

from kvtrace_cli.analysis.gap import gap
from kvtrace_cli.analysis.gap_model import GapVerdict, PartKind
from kvtrace_cli.analysis.gap_split import IDLE, Activities
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.dumps.schema import ActivityDump, Dump, record_schema
from kvtrace_cli.errors import KvtraceError


def read(path):
    return read_recording(open_run_dir(path, allow_incomplete=True))


def split(first, second, **options):
    blocks, activities = read(first), read(second)
    return gap(reconcile(blocks), blocks, activities, ("A", "B"), **options)


@pytest.fixture
def paired(tmp_path):
    return split(*scenes.write_pair(tmp_path))


def parts(span):
    return {
        part.name: (round(part.share_ms * 1000, 6), round(part.run_ms * 1000, 6))
        for part in span.parts
    }


def test_a_pair_is_split_into_what_ran(paired):
    assert paired.verdict is GapVerdict.PAIRED
    assert paired.reasons == ()
    (graph,) = paired.graphs
    assert (graph.nodes, graph.replays, graph.grids) == (2, 3, "2 x (1, 1, 1)")
    # Overlapping kernels share the 20 us in which both run.
    assert parts(graph.inside) == {
        TARGET: (20, 20),
        "gemm_k": (30, 40),
        scenes.NORM: (30, 40),
        "memsets": (10, 10),
        "idle": (20, 0),
    }
    assert parts(graph.between) == {"gemm_k": (30, 30), "copies": (20, 20), "idle": (40, 0)}
    assert graph.inside.parts[-1].kind is PartKind.IDLE
    assert (graph.inside.cupti.count, graph.between.cupti.count) == (3, 2)
    assert graph.inside.cupti.median_ms == pytest.approx(0.110)
    assert graph.between.cupti.median_ms == pytest.approx(0.090)


def test_each_clock_stays_in_its_own_run(paired):
    """The builder's blocks enter every 200 us, whatever CUPTI says."""
    (graph,) = paired.graphs
    assert graph.inside.sanitizer.median_ms == pytest.approx(0.2)
    assert graph.between.sanitizer.median_ms == pytest.approx(0.2)


def test_parts_are_all_of_a_span(paired):
    for span in (paired.graphs[0].inside, paired.graphs[0].between):
        assert sum(part.percent for part in span.parts) == pytest.approx(100)


def split_with_a_wait(path, wait_us):
    """Split six replays with five gaps of 90 us, 40 of them idle; the fourth waits longer."""
    seen = scenes.waits_before(scenes.seen(replays=6), 5, wait_us)
    return split(*scenes.write_pair(path, [scenes.launched(replays=6)], [seen]))


def test_a_long_gap_is_told_and_the_shares_without_it(tmp_path):
    found = split_with_a_wait(tmp_path, 1000)
    (graph,) = found.graphs
    long_spans, idle = graph.between.long_spans, graph.between.idle
    assert (long_spans.count, long_spans.over_ms) == (1, pytest.approx(0.135))
    assert long_spans.percent == pytest.approx(100 * 1090 / 1450)
    assert idle.percent == pytest.approx(100 * 1200 / 1450)
    assert idle.usual_percent == pytest.approx(100 * 40 / 90)
    assert idle.share_ms == pytest.approx(0.040)
    assert sum(part.usual_percent for part in graph.between.parts) == pytest.approx(100)
    (note,) = found.notes
    assert note == (
        "Between replays, 1 of 5 spans are long: more than 1.5 x the median, 0.135 ms. They are "
        "75.2 % of the time of all; idle is 82.8 % of all spans and 44.4 % of the others."
    )
    assert graph.inside.long_spans.count == 0
    assert [part.usual_percent for part in graph.inside.parts] == [
        part.percent for part in graph.inside.parts
    ]


@pytest.mark.parametrize(("wait_us", "count"), [(0, 0), (45, 0), (46, 1)])
def test_a_span_is_long_from_half_more_than_the_median_on(tmp_path, wait_us, count):
    found = split_with_a_wait(tmp_path, wait_us)
    assert found.graphs[0].between.long_spans.count == count
    assert len(found.notes) == count


def test_long_spans_of_several_graphs_say_whose_they_are(tmp_path):
    blocks = [replace(scenes.launched(replays=6), process_id=pid) for pid in (10, 20)]
    seen = [
        scenes.waits_before(replace(scenes.seen(replays=6), process_id=pid), 5, wait_us)
        for pid, wait_us in ((10, 0), (20, 1000))
    ]
    (note,) = split(*scenes.write_pair(tmp_path, blocks, seen)).notes
    assert note.startswith("Between replays (2 x (1, 1, 1), process 1), 1 of 5 spans are long")


def test_what_ran_in_long_spans_only_is_no_part_of_usual_ones(tmp_path):
    seen = scenes.waits_before(scenes.seen(replays=6), 5, 1000)
    seen.kernel("late_k", 1_200_000, 1_300_000)
    pair = scenes.write_pair(tmp_path, [scenes.launched(replays=6)], [seen])
    parts_by_name = {part.name: part for part in split(*pair).graphs[0].between.parts}
    assert parts_by_name["late_k"].usual_percent == 0
    assert parts_by_name["late_k"].percent == pytest.approx(100 * 100 / 1450)


def test_a_gap_over_a_plain_launch_is_none(tmp_path):
    trace, seen = scenes.launched(replays=1), scenes.seen(replays=1)
    trace.enter_all(trace.plain((4, 1, 1)))
    seen.kernel(scenes.TARGET_SYMBOL, 350_000, 360_000, grid_dim_x=4)
    for node in range(2):
        trace.enter_all(trace.node(node, 2))
        seen.kernel(
            scenes.TARGET_SYMBOL, 400_000 + node, 400_001 + node, **scenes.in_replay(2, node)
        )
    (graph,) = split(*scenes.write_pair(tmp_path, [trace], [seen])).graphs
    assert (graph.replays, graph.between) == (2, None)


def test_only_measured_replays_are_taken(tmp_path):
    """Host times of the builder count up by 1 us a launch: the first replay is launches 3 and 4."""
    measured = request(host_monotonic_begin_ns=4_500)
    first = scenes.write_blocks(tmp_path / "a", scenes.launched(), requests=[measured])
    second = scenes.write_seen(tmp_path / "b", scenes.seen(), requests=[measured])
    (graph,) = split(first, second).graphs
    assert (graph.replays, graph.between.cupti.count) == (2, 1)


def test_more_replays_in_one_run_are_inconclusive_unless_allowed(tmp_path):
    pair = scenes.write_pair(tmp_path, [scenes.launched(replays=3)], [scenes.seen(replays=5)])
    refused = split(*pair)
    assert refused.verdict is GapVerdict.INCONCLUSIVE
    assert refused.graphs == ()
    (reason,) = refused.reasons
    assert reason == (
        "Process 0: item 5 of its life is a replay of 2 target nodes, grids 2 x (1, 1, 1) in the "
        "second run only."
    )
    allowed = split(*pair, allow_unequal=True)
    assert allowed.verdict is GapVerdict.PAIRED
    assert allowed.notes == (reason,)
    assert [graph.replays for graph in allowed.graphs] == [3]


def test_unequal_runs_are_paired_from_the_first_measured_replay_on(tmp_path):
    measured = request(host_monotonic_begin_ns=4_500)
    first = scenes.write_blocks(tmp_path / "a", scenes.launched(), requests=[measured])
    seen = scenes.seen(replays=2)
    # One more than the first run's, and slower.
    for node in range(2):
        begin = 600_000 + node * 500_000
        seen.kernel(scenes.TARGET_SYMBOL, begin, begin + 10, **scenes.in_replay(3, node))
    seen.kernel(scenes.TARGET_SYMBOL, 1_200_000, 1_200_010, grid_dim_x=8)
    second = scenes.write_seen(tmp_path / "b", seen, requests=[measured])
    (graph,) = split(first, second, allow_unequal=True).graphs
    assert graph.replays == 2
    assert graph.inside.cupti.max_ms == pytest.approx(0.50001)


@pytest.mark.parametrize(
    ("nodes", "grid", "expected"),
    [
        (3, 1, "a replay of 3 target nodes, grids 3 x (1, 1, 1) in the second."),
        (2, 4, "a replay of 2 target nodes, grids 2 x (4, 1, 1) in the second."),
    ],
)
def test_graphs_of_another_shape_are_named(tmp_path, nodes, grid, expected):
    seen = scenes.seen(nodes=nodes)
    for record in seen.records[2:]:
        if record["name_id"] == 0:
            record["grid_dim_x"] = grid
    found = split(*scenes.write_pair(tmp_path, None, [seen]))
    assert found.verdict is GapVerdict.INCONCLUSIVE
    assert found.reasons[0].endswith(expected)
    assert "item 2 of its life" in found.reasons[0]


def test_processes_are_paired_in_order(tmp_path):
    blocks = [replace(scenes.launched(), process_id=pid) for pid in (10, 20)]
    seen = [replace(scenes.seen(), process_id=pid) for pid in (300, 400)]
    found = split(*scenes.write_pair(tmp_path, blocks, seen))
    assert [graph.process for graph in found.graphs] == [0, 1]


def test_another_number_of_processes_is_inconclusive(tmp_path):
    seen = [replace(scenes.seen(), process_id=pid) for pid in (300, 400)]
    found = split(*scenes.write_pair(tmp_path, None, seen))
    assert "launched in 1 processes of the first run and ran in 2" in found.reasons[0]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"dropped_count": 4}, "4 activity records were dropped"),
        ({"flags": 0}, "was not closed in order"),
        ({"first_failure_site": 42}, "the observer failed (site 42"),
        ({"complete": False}, "did not end in order"),
        ({"manifest": {"observer": "cupti"}}, "does not say which kernels"),
        ({"requests": [request(max_tokens=99)]}, "The runs differ in request_kinds"),
        (
            {"manifest": scenes.CUPTI_MANIFEST | {"versions": {"vllm": "9"}}},
            "The runs differ in vllm_version: None and '9'",
        ),
    ],
)
def test_what_makes_a_pair_doubtful(tmp_path, fields, expected):
    first = scenes.write_blocks(tmp_path / "a", scenes.launched())
    found = split(first, scenes.write_seen(tmp_path / "b", scenes.seen(), **fields))
    assert found.verdict is GapVerdict.INCONCLUSIVE
    assert any(expected in reason for reason in found.reasons)


@pytest.mark.parametrize(
    ("first", "second", "is_doubtful"),
    [("FLASH_ATTN", "FLASHINFER", True), ("FLASH_ATTN", None, False), (None, "FLASHINFER", False)],
)
def test_another_attention_is_a_doubt_only_where_both_are_known(
    tmp_path, first, second, is_doubtful
):
    manifests = [
        manifest | ({"attention": {"backends": [backend]}} if backend else {})
        for manifest, backend in (
            (scenes.SANITIZER_MANIFEST, first),
            (scenes.CUPTI_MANIFEST, second),
        )
    ]
    blocks = scenes.write_blocks(tmp_path / "a", scenes.launched(), manifest=manifests[0])
    found = split(blocks, scenes.write_seen(tmp_path / "b", scenes.seen(), manifest=manifests[1]))
    said = "The runs differ in attention: 'FLASH_ATTN' and 'FLASHINFER'."
    assert found.reasons == ((said,) if is_doubtful else ())


def test_the_two_runs_cannot_change_places(tmp_path):
    first, second = scenes.write_pair(tmp_path)
    reasons = " ".join(split(second, first).reasons)
    assert "The first run was observed by CUPTI" in reasons
    assert "The second run was not observed by CUPTI" in reasons


def test_a_first_run_that_is_not_whole_explains_nothing(tmp_path):
    trace = scenes.launched()
    trace.lose(3)
    found = split(*scenes.write_pair(tmp_path, [trace]))
    assert found.reasons[0].startswith("The first run is not whole by itself (mismatch)")


def test_what_cupti_could_not_measure_is_a_doubt(tmp_path):
    seen = scenes.seen()
    seen.records[3] |= {"gpu_cupti_begin_ns": 0, "gpu_cupti_end_ns": 0}
    found = split(*scenes.write_pair(tmp_path, None, [seen]))
    assert found.reasons == ("Process 0: CUPTI could not measure 1 of what ran.",)


intervals = st.lists(
    st.tuples(
        st.integers(1, 60), st.integers(0, 30), st.integers(0, 2), st.sampled_from([1, 2, 3])
    ),
    max_size=30,
)


@given(intervals, st.integers(1, 60), st.integers(1, 60))
def test_shares_add_up_to_the_span_and_idle_is_when_nothing_runs(found, begin, length):
    records = [
        {
            "gpu_cupti_begin_ns": at,
            "gpu_cupti_end_ns": at + lasts,
            "name_id": line,
            "activity_kind": kind,
        }
        for at, lasts, line, kind in found
    ]
    schema = record_schema(abi.ACTIVITIES_STRUCT)
    rows = [dict.fromkeys(schema, 0) | record for record in records]
    dump = Dump("x", None, pl.DataFrame(rows, schema=schema))
    end = begin + length
    result = Activities(ActivityDump(dump, ("a", "b", "c")), 0).split(begin, end)
    assert sum(result.shares.values()) == pytest.approx(length)
    running = [{at for at in range(begin, end) if one[0] <= at < one[0] + one[1]} for one in found]
    assert result.shares.get(IDLE, 0) == length - len(set().union(*running))
    assert sum(result.ran.values()) == sum(map(len, running))
    assert sum(result.runs.values()) == sum(map(bool, running))


@pytest.mark.parametrize("name", ["activity.kva", "activity.names"])
def test_a_damaged_run_of_cupti_is_read_or_refused(tmp_path, name):
    chance = random.Random(7)
    first, second = scenes.write_pair(tmp_path)
    blocks = read(first)
    result = reconcile(blocks)
    path = second / f"raw/4711.{name}"
    whole = path.read_bytes()
    for _ in range(300):
        path.write_bytes(damage(whole, chance))
        try:
            found = gap(result, blocks, read(second), ("A", "B"), allow_unequal=True)
        except KvtraceError:
            continue
        for graph in found.graphs:
            assert sum(part.percent for part in graph.inside.parts) == pytest.approx(100)
