"""Runs recorded on a real H200, read without a GPU. Provenance: tests/data/README.md."""

import json
import shutil
from pathlib import Path

import pytest

from kvtrace_cli.analysis.model import Reconciliation, Verdict
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.app import main
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir

DATA = Path(__file__).parents[1] / "data"
GRAPH_CASES = sorted(path.name for path in (DATA / "h200-graph-cases").iterdir())
# More streams than one: the order of atomics cannot tell the nodes apart.
SEVERAL_STREAMS = {"streams_2", "streams_4", "streams_16", "two_execs"}


def reconciled(path: Path) -> Reconciliation:
    return reconcile(read_recording(open_run_dir(path, allow_incomplete=True)))


@pytest.mark.parametrize("flash_attention", [2, 3])
def test_one_request_on_an_h200_is_280_of_280(flash_attention, tmp_path, capsys):
    run_dir = tmp_path / "run"
    shutil.copytree(DATA / f"h200-fa{flash_attention}", run_dir)
    assert main(["reconcile", str(run_dir)]) == 0
    assert "agrees: 280 of 280 graph-node blocks entered" in capsys.readouterr().out
    manifest = json.loads((run_dir / "manifest.json").read_text())
    assert [gpu["name"] for gpu in manifest["gpus"]] == ["NVIDIA H200"]
    assert manifest["config"]["engine"]["flash_attention"] == flash_attention

    result = reconciled(run_dir)
    assert result.measured is not None
    nodes = result.measured.graph_nodes
    assert (nodes.launches, nodes.expected_blocks, nodes.matched_blocks) == (280, 280, 280)
    (graph,) = result.measured_graphs
    assert (graph.nodes, graph.replays, graph.first_launch_id, graph.last_launch_id) == (
        40,
        7,
        1,
        7,
    )
    assert graph.same_nodes_in_every_replay
    assert graph.sequences_consecutive
    assert graph.timer_steps_backwards == 0
    assert sum(books.dropped for books in result.files) == 0


@pytest.mark.parametrize("flash_attention", [2, 3])
def test_every_block_of_the_servers_whole_life_is_found(flash_attention):
    result = reconciled(DATA / f"h200-fa{flash_attention}")
    life = (result.whole_life.graph_nodes, result.whole_life.plain_launches)
    assert sum(part.launches for part in life) == 920
    assert sum(part.expected_blocks for part in life) == 3680
    assert sum(part.matched_blocks for part in life) == 3680
    assert sum(part.unexpected_blocks for part in life) == 0
    assert result.graph_join_method == "grid id and launch stamp"
    assert result.order_join.matches == 3680


def test_drops_on_both_sides_are_counted(tmp_path, capsys):
    run_dir = tmp_path / "run"
    shutil.copytree(DATA / "h200-tiny", run_dir)
    assert main(["reconcile", str(run_dir)]) == 1
    assert "23,520 expected = 4,096 written + 19,424 dropped" in capsys.readouterr().out
    events, launches = reconciled(run_dir).files
    assert (events.expected_blocks, events.written, events.dropped) == (23520, 4096, 19424)
    assert events.books_balance
    # As many launches as a whole run of the same shape has: h200-fa3.
    assert (launches.written, launches.dropped) == (256, 920 - 256)


def test_a_killed_engine_leaves_what_was_drained(tmp_path, capsys):
    run_dir = tmp_path / "run"
    shutil.copytree(DATA / "h200-killed", run_dir)
    assert main(["reconcile", str(run_dir)]) == 2
    assert "--allow-incomplete" in capsys.readouterr().err
    assert main(["reconcile", str(run_dir), "--allow-incomplete"]) == 1
    result = reconciled(run_dir)
    nodes = result.whole_life.graph_nodes
    # Two replays were on their way; all 405 before them are complete.
    assert (nodes.expected_blocks, nodes.matched_blocks) == (16600, 16555)
    assert nodes.unexpected_blocks == 0
    (graph,) = result.measured_graphs
    assert graph.replays == 407
    assert result.files[0].sequence_gaps == 0


@pytest.mark.parametrize("case", GRAPH_CASES)
def test_graph_corner_cases_agree_with_what_really_ran(case):
    run_dir = DATA / "h200-graph-cases" / case
    truth = json.loads((run_dir / "manifest.json").read_text())["graph_case"]["truth"]
    result = reconciled(run_dir)
    events = [books for books in result.files if books.expected_blocks is not None]
    recorded = sum(books.written + books.dropped for books in events)
    if case == "target_only_bound":
        # The article's crash: neighbours of the patched module were never bound.
        assert truth["error"] == "misaligned address"
        assert result.verdict is Verdict.MISMATCH
        return
    assert recorded == truth["target_blocks"]
    assert result.whole_life.graph_nodes.unexpected_blocks == 0
    assert result.whole_life.plain_launches.unexpected_blocks == 0
    assert result.kernel_disagreements == 0
    if case == "conditional":
        # The host reports the body's nodes whether they ran or not: it cannot know.
        assert result.whole_life.graph_nodes.missing_blocks == 10
        assert any("conditional" in reason for reason in result.reasons)
    elif case == "one_shot":
        assert result.verdict is Verdict.MISMATCH
        assert all(books.books_balance for books in events)
    else:
        assert result.verdict is Verdict.AGREES
    if case in SEVERAL_STREAMS:
        assert result.order_join.agrees is False
