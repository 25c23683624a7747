"""The tables: readable at 80 columns, and nothing important cut off."""

import io
from dataclasses import replace

import pytest
from builders import Trace, flags, reconciled, replays, seven_replays
from rich.console import Console

from kvtrace_cli.reports.tables import reconciliation_tables


def printed(result):
    console = Console(width=80, record=True, file=io.StringIO())
    for table in reconciliation_tables(result):
        console.print(table)
    return console.export_text()


def test_the_articles_run_at_80_columns(tmp_path):
    text = printed(reconciled(tmp_path, seven_replays()))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "agrees: 280 of 280 graph-node blocks entered during the measured request" in text
    assert "EMULATED" not in text
    assert "GPU globaltimer" in text
    assert "grid id and launch stamp" in text
    assert "unpatched" not in text


def test_an_emulated_run_says_so_in_title_and_conclusion(tmp_path):
    trace = replace(seven_replays(), changes={"flags": flags("CLOSED", "PATCHED", "EMULATED")})
    text = printed(reconciled(tmp_path, trace))
    assert "KV-cache kernel (EMULATED)" in text
    assert "(emulated)" in text


def test_faults_are_all_told(tmp_path):
    trace = replays(nodes=3, count=4, stamps=False)
    trace.lose(4)
    trace.plain((3, 1, 1), launch_flags=0)
    trace.changes = {"first_failure_site": 9, "first_failure_result": 3}
    idle = Trace(process_id=99, changes={"flags": flags("CLOSED")})
    text = printed(reconciled(tmp_path, trace, idle))
    words = " ".join(text.split())
    assert "mismatch: 11 of 12 graph-node blocks" in words
    assert "failed at patch_module (3)" in words
    assert "is not certain" in words
    assert "unpatched" in words
    assert (
        "launched before patching 0 graph-node blocks of 0 launches, 3 plain-launch blocks of 1; "
        "none of them counts as missing"
    ) in words
    assert "no target kernel in process 99" in words
    assert "…" not in text


def test_several_streams_are_said_to_limit_the_order_join(tmp_path):
    trace = Trace()
    launches = [trace.plain(stream=stream) for stream in (1, 2)]
    for launch in reversed(launches):
        trace.enter_all(launch)
    words = " ".join(printed(reconciled(tmp_path, trace)).split())
    assert "blocks the same; with several streams only the grid id tells" in words
    assert "agrees: 2 of 2 plain-launch blocks entered during the measured request" in words


@pytest.mark.parametrize("traces", [(), (Trace(),)])
def test_empty_recordings_are_printed_too(tmp_path, traces):
    assert "inconclusive: 0 of 0" in printed(reconciled(tmp_path, *traces))


def test_a_mixed_or_absent_sequence_range(tmp_path):
    trace = seven_replays(nodes=2)
    trace.node(0, 1, graph_exec=0x7000, grid_id=5)
    trace.enter_all(trace.plain())
    trace.enter_all(trace.node(0, 8))
    text = printed(reconciled(tmp_path, trace))
    assert "0..15, mixed" in text
    assert "others" in text
    assert "0 of 1" in text
