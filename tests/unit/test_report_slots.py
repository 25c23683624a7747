"""The map of KV slots: who wrote each last, and what the KV blocks around them are."""

from builders import Trace, flags, kv_address, layout, recorded, request, started, step

from kvtrace_cli.analysis.attribution import attribute
from kvtrace_cli.analysis.audit import audit
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.report_slots import no_slot_map, slot_map
from kvtrace_cli.analysis.steps import step_tables

OURS = "cmpl-kvtrace-0-0-1a2b3c4d"
OTHER = "chatcmpl-5"
WRITES = {"flags": flags("CLOSED", "PATCHED", "WRITES")}


def written(*steps):
    """Return a trace of steps, each (stamp, slots of its rows), two layers that write K and V.

    A row whose slot is None stores nothing.
    """
    trace = Trace(changes=dict(WRITES))
    for stamp, slots in steps:
        for layer in range(2):
            launch = trace.plain((len(slots), 1, 1), step_stamp=stamp)
            for row, slot in enumerate(slots):
                trace.enter(launch, (row, 0, 0))
                if slot is not None:
                    for part in "KV":
                        trace.store(launch, (row, 0, 0), kv_address(slot, layer, part))
    return trace


def mapped(tmp_path, trace, *steps, block_size=16, **options):
    options = {"layout": layout(block_size=block_size), "requests": [request()]} | options
    first = started(block_sizes=[block_size])
    recording = recorded(tmp_path, trace, steps=[first, *steps], **options)
    result, tables = reconcile(recording), step_tables(recording)
    attribution = attribute(result, recording, tables)
    found = slot_map(recording, result, tables, attribution, audit(recording, result, tables))
    return found, no_slot_map(recording, result)


def admitted(name, block):
    return [[name, 0, [[block]]]]


def test_a_slot_has_its_writer_position_and_layers(tmp_path):
    found, _ = mapped(
        tmp_path,
        written((1, [32, 33]), (2, [34])),
        step(1, requests=[[OURS, 2, 0]], admitted=admitted(OURS, 2)),
        step(2, requests=[[OURS, 1, 2]]),
    )
    assert (found.block_size, found.num_blocks, found.written_blocks) == (16, 32, 2)
    assert found.slots.rows() == [
        (2, 0, "request 0", 0, 1, 2, 2, 1, None),
        (2, 1, "request 0", 1, 1, 2, 2, 1, None),
        (2, 2, "request 0", 2, 2, 2, 2, 1, None),
    ]
    assert found.kv_blocks.rows() == [(0, "null block"), (2, "held")]


def test_the_last_writer_counts_and_the_others_are_counted(tmp_path):
    found, _ = mapped(
        tmp_path,
        written((1, [32]), (2, [32])),
        step(1, requests=[[OURS, 1, 0]], admitted=admitted(OURS, 2)),
        step(2, requests=[[OTHER, 1, 0]], finished=[OURS], admitted=admitted(OTHER, 2)),
    )
    assert found.slots.select("writer", "step_stamp", "rows_wrote").rows() == [(OTHER, 2, 2)]


def test_a_padding_row_that_wrote_is_no_requests_and_has_a_finding(tmp_path):
    found, _ = mapped(
        tmp_path,
        written((1, [32, 80])),
        step(1, requests=[[OURS, 1, 0]], admitted=admitted(OURS, 2), padded_rows=2),
    )
    assert found.slots.select("kv_block_id", "writer", "finding").rows() == [
        (2, "request 0", None),
        (5, "padding row", "padding-row-wrote"),
    ]
    assert found.kv_blocks.rows() == [(0, "null block"), (2, "held"), (5, "held by no request")]


def test_a_slot_that_should_have_been_written_is_on_the_map(tmp_path):
    found, _ = mapped(
        tmp_path,
        written((1, [32, None])),
        step(1, requests=[[OURS, 2, 0]], admitted=admitted(OURS, 2)),
    )
    assert found.slots.select("offset", "writer", "position", "k_layers", "finding").rows() == [
        (0, "request 0", 0, 2, None),
        (1, "never written", 1, 0, "missing-write"),
    ]


def test_blocks_with_findings_are_drawn_before_others(tmp_path):
    blocks = list(range(1, 301))
    first = step(
        1, requests=[[OURS, 300 * 16, 0]], admitted=[[OURS, 0, [blocks]]], padded_rows=300 * 16 + 1
    )
    trace = Trace(changes=dict(WRITES))
    launch = trace.plain((300 * 16 + 1, 1, 1), step_stamp=1)
    shape = layout(layers=1, num_blocks=512)
    for row in (*range(0, 300 * 16, 16), 300 * 16):
        trace.enter(launch, (row, 0, 0))
        trace.store(launch, (row, 0, 0), kv_address(16 + row, shape=shape))
    found, _ = mapped(tmp_path, trace, first, layout=shape)
    assert (found.written_blocks, found.shown_blocks) == (302, 240)
    states = dict(found.kv_blocks.rows())
    assert states[0] == "null block"
    assert states[301] == "held by no request"


def test_large_blocks_are_fewer(tmp_path):
    shape = layout(block_size=1024)
    trace = Trace(changes=dict(WRITES))
    launch = trace.plain((5, 1, 1), step_stamp=1)
    names = "abcde"
    for row in range(5):
        trace.enter(launch, (row, 0, 0))
        trace.store(launch, (row, 0, 0), kv_address(1024 * (1 + row), shape=shape))
    line = step(
        1,
        requests=[[name, 1, 0] for name in names],
        admitted=[[name, 0, [[1 + row]]] for row, name in enumerate(names)],
    )
    found, _ = mapped(tmp_path, trace, line, block_size=1024)
    assert (found.block_size, found.written_blocks, found.shown_blocks) == (1024, 6, 3)


def test_why_there_is_no_map(tmp_path):
    line = step(1, requests=[[OURS, 1, 0]], admitted=admitted(OURS, 2))
    blocks_only = written((1, [None]))
    blocks_only.changes = {}
    found, why = mapped(tmp_path / "a", blocks_only, line)
    assert (found, why) == (
        None,
        "Stores were not recorded; `kvtrace run --record writes` records them.",
    )
    found, why = mapped(tmp_path / "b", written((1, [32])), line, layout=None)
    assert found is None
    assert why.startswith("The layout of the KV tensors was not recorded")
