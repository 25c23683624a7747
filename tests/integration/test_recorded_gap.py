"""What ran inside replays and between two on a real H200, at batch 1, read without a GPU.

Provenance: tests/data/README.md. Qwen3-14B has 40 layers, so a replay has 40 cache writes: what
every layer runs is 39 times inside, and once between two replays.
"""

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import gap_scenes as scenes
import polars as pl
import pytest

from kvtrace_cli.app import main
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import RunDir, open_run_dir
from kvtrace_cli.errors import ExitCode
from scripts.pack_test_run import pack

PAIR = Path(__file__).parents[1] / "data" / "h200-gap"
LAYERS = 40
REPLAYS = 127
# Told apart by where they run: the projections by their places in a layer, the LM head after all.
CACHE_KERNEL = "reshape_and_cache_flash_kernel"
GATE_UP_GEMM = "nvjet_sm90_tst_384x8_64x4_4x1_v_bz_TNT"
DOWN_GEMM = "nvjet_sm90_tst_128x8_64x12_2x1_v_bz_splitK_TNT"
QKV_GEMM = "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT"
OUT_GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
LM_HEAD_GEMM = "nvjet_sm90_tst_384x8_64x4_2x1_v_bz_TNT"
SAMPLER = "_gumbel_sample_kernel"


def documented(*command: str) -> tuple[int, dict[str, Any]]:
    with redirect_stdout(StringIO()) as printed:
        code = main([*command, "--json"])
    return code, json.loads(printed.getvalue())


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[str, str]:
    """Return the two runs; copies, since reconciling writes into them."""
    copy = shutil.copytree(PAIR, tmp_path_factory.mktemp("recorded") / "pair")
    return str(copy / "blocks"), str(copy / "cupti")


@pytest.fixture(scope="module")
def told(pair) -> tuple[int, dict[str, Any]]:
    return documented("gap", *pair)


@pytest.fixture(scope="module")
def graph(told) -> dict[str, Any]:
    (one,) = told[1]["graphs"]
    return one


def part(graph: dict[str, Any], span: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in graph[span]["parts"] if one["name"] == name]
    return found


def test_every_replay_of_one_run_is_paired_with_its_own_in_the_other(told, graph):
    code, document = told
    assert (code, document["verdict"]) == (ExitCode.AGREES, "paired")
    assert (document["reasons"], document["emulated"]) == ([], False)
    assert (graph["nodes"], graph["grids"], graph["replays"]) == (LAYERS, "40 x (1, 1, 1)", REPLAYS)


def test_unequal_runs_being_allowed_changes_nothing(pair, told):
    assert documented("gap", *pair, "--allow-unequal") == told


@pytest.mark.parametrize(
    ("span", "observer", "count", "times_ms"),
    [
        ("inside", "sanitizer", 127, (8.050752, 8.077152, 8.16432)),
        ("inside", "cupti", 127, (7.944262, 7.962438, 8.33143)),
        ("between", "sanitizer", 126, (0.632, 0.647984, 0.659424)),
        ("between", "cupti", 126, (0.63104, 0.6466085, 4.013218)),
    ],
)
def test_how_long_both_saw_the_spans_to_be(graph, span, observer, count, times_ms):
    found = graph[span][observer]
    assert found["count"] == count
    times = [found[name] for name in ("min_ms", "median_ms", "max_ms")]
    assert times == pytest.approx(times_ms)


@pytest.mark.parametrize("span", ["inside", "between"])
def test_the_shares_are_all_of_a_span(graph, span):
    assert sum(one["percent"] for one in graph[span]["parts"]) == pytest.approx(100)


@pytest.mark.parametrize(
    ("span", "largest"),
    [
        (
            "inside",
            [
                (GATE_UP_GEMM, 39, 3.319715, 41.668),
                (DOWN_GEMM, 39, 1.680229, 21.083),
                (QKV_GEMM, 39, 0.779235, 9.787),
                (OUT_GEMM, 39, 0.609118, 7.646),
            ],
        ),
        (
            "between",
            [
                (LM_HEAD_GEMM, 1, 0.350945, 47.750),
                (GATE_UP_GEMM, 1, 0.0848645, 11.520),
                (DOWN_GEMM, 1, 0.043552, 5.942),
                (QKV_GEMM, 1, 0.02016, 2.765),
                (SAMPLER, 1, 0.0196155, 2.592),
            ],
        ),
    ],
)
def test_what_took_most_comes_first(graph, span, largest):
    first = graph[span]["parts"][: len(largest)]
    assert {one["kind"] for one in first} == {"kernel"}
    assert [(one["name"], one["runs"]) for one in first] == [row[:2] for row in largest]
    assert [one["share_ms"] for one in first] == pytest.approx([row[2] for row in largest])
    assert [one["percent"] for one in first] == pytest.approx([row[3] for row in largest], abs=1e-3)


def test_a_layers_work_is_39_times_inside_and_once_between(graph):
    for gemm in (GATE_UP_GEMM, DOWN_GEMM, QKV_GEMM, OUT_GEMM):
        runs = [part(graph, span, gemm)["runs"] for span in ("inside", "between")]
        assert runs == [LAYERS - 1, 1]


def test_cache_writes_are_inside_only_and_the_lm_head_between_only(graph):
    names = {
        span: {one["name"]: one["runs"] for one in graph[span]["parts"]}
        for span in ("inside", "between")
    }
    assert names["inside"][CACHE_KERNEL] == LAYERS
    assert CACHE_KERNEL not in names["between"]
    assert LM_HEAD_GEMM not in names["inside"]


@pytest.mark.parametrize(
    ("span", "idle_ms", "idle_percent", "usual_percent"),
    [("inside", 0.464771, 5.875, 5.875), ("between", 0.0421635, 17.798, 6.577)],
)
def test_the_gpu_idles_for_a_small_part(graph, span, idle_ms, idle_percent, usual_percent):
    idle = graph[span]["parts"][-1]
    assert (idle["name"], idle["kind"]) == ("idle", "idle")
    assert idle["share_ms"] == pytest.approx(idle_ms)
    assert idle["percent"] == pytest.approx(idle_percent, abs=1e-3)
    assert idle["usual_percent"] == pytest.approx(usual_percent, abs=1e-3)


def test_the_few_gaps_in_which_it_waited_are_told(told, graph):
    """They waited for 0.43 to 3.41 ms."""
    assert graph["inside"]["long_spans"]["count"] == 0
    long_spans = graph["between"]["long_spans"]
    assert (long_spans["count"], long_spans["over_ms"]) == (5, pytest.approx(0.969913))
    assert long_spans["percent"] == pytest.approx(15.5, abs=1e-3)
    assert part(graph, "between", LM_HEAD_GEMM)["usual_percent"] == pytest.approx(54.27, abs=1e-3)
    (note,) = told[1]["notes"]
    assert note.startswith("Between replays, 5 of 126 spans are long")
    assert "idle is 17.8 % of all spans and 6.6 % of the others" in note


def test_two_thirds_of_a_gap_are_outside_of_the_graph(pair):
    (activity,) = read_recording(open_run_dir(Path(pair[1]), allow_incomplete=False)).activities
    replays = (
        activity.dump.records.filter(pl.col("graph_id") != 0)
        .group_by("graph_id", "correlation_id")
        .agg(pl.col("gpu_cupti_begin_ns").min(), pl.col("gpu_cupti_end_ns").max())
        .filter(pl.len().over("graph_id") == REPLAYS)
        .sort("gpu_cupti_begin_ns")
    )
    assert len(replays) == REPLAYS
    following = pl.col("gpu_cupti_begin_ns").shift(-1).cast(pl.Int64)
    outside = replays.select(following - pl.col("gpu_cupti_end_ns").cast(pl.Int64)).to_series()
    assert outside.median() == pytest.approx(440_576, abs=1)


def test_both_observers_counted_the_same_launches(pair):
    code, blocks = documented("reconcile", pair[0])
    assert (code, blocks["verdict"]) == (ExitCode.AGREES, "agrees")
    nodes = blocks["measured_request"]["graph_nodes"]
    assert (nodes["launches"], nodes["matched_blocks"], nodes["missing_blocks"]) == (5080, 5080, 0)
    life = blocks["whole_life"]
    launches = [life[sort]["launches"] for sort in ("graph_nodes", "plain_launches")]
    assert launches == [5120, 600]

    code, seen = documented("reconcile", pair[1])
    assert (code, seen["verdict"]) == (ExitCode.INCONCLUSIVE, "inconclusive")
    (reason,) = seen["reasons"]
    assert "ran 5120 times in graphs and 600 times as plain launches" in reason


def test_of_cupti_only_what_it_saw_is_shown(pair, tmp_path, capsys, monkeypatch):
    """No blocks, so no counts of them, no rows without an owner and nothing that is lacking."""
    monkeypatch.setenv("COLUMNS", "80")
    page = tmp_path / "report.html"
    assert main(["reconcile", pair[1]]) == ExitCode.INCONCLUSIVE
    tables = capsys.readouterr().out
    assert main(["reconcile", pair[1], "--markdown", "-"]) == ExitCode.INCONCLUSIVE
    written = capsys.readouterr().out
    assert main(["report", pair[1], "-o", str(page)]) == ExitCode.AGREES
    capsys.readouterr()
    for shown in (tables, written, page.read_text()):
        assert "What CUPTI saw run" in shown
        assert "CUPTI observed this run, so by design it has no blocks" in shown
        for absent in (
            "Thread blocks that entered",
            "0 of 0 plain-launch blocks",
            "5400 entered",
            "takes no step stamps",
            "join by order of atomics",
        ):
            assert absent not in shown
    cells = [line.split() for line in tables.splitlines()]
    assert ["whole", "life", "graph", "5,120"] in cells
    assert ["plain", "600"] in cells


def test_of_cupti_nothing_is_said_to_be_lacking_in_the_document(pair):
    _, seen = documented("reconcile", pair[1])
    assert (seen["attribution"], seen["requests"], seen["notes"]) == (None, [], [])
    # Who ran CUPTI can still be told.
    assert seen["settings"]["steps"] is True


def test_an_audit_of_cupti_says_that_it_cannot_judge_and_no_zeros(pair, capsys):
    assert main(["audit", pair[1]]) == ExitCode.INCONCLUSIVE
    out = capsys.readouterr().out
    assert "cannot judge" in out
    assert "in steps" not in out


def test_spans_are_those_that_reconciling_tells(pair, graph):
    _, blocks = documented("reconcile", pair[0])
    (one,) = blocks["measured_graphs"]
    assert one["replay_span"] == graph["inside"]["sanitizer"]
    assert one["replay_gap"] == graph["between"]["sanitizer"]


def test_the_report_draws_it(pair, tmp_path, capsys):
    target = tmp_path / "report.html"
    assert main(["report", pair[0], "--gap", pair[1], "-o", str(target)]) == ExitCode.AGREES
    capsys.readouterr()
    page = target.read_text()
    assert "127 replays of 40 target nodes" in page
    assert all(name in page for name in (GATE_UP_GEMM, LM_HEAD_GEMM))


def test_a_packed_pair_says_what_the_pair_does(tmp_path):
    paths = scenes.write_pair(tmp_path)
    packed = [tmp_path / "packed" / path.name for path in paths]
    for path, target in zip(paths, packed, strict=True):
        pack(RunDir(path), RunDir(target))
    code, document = documented("gap", *map(str, packed))
    assert code == ExitCode.AGREES
    assert document["graphs"] == documented("gap", *map(str, paths))[1]["graphs"]
