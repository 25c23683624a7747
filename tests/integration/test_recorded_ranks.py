"""Two ranks on two real H200s, tensor- and data-parallel, accounted for without a GPU.

Provenance: tests/data/README.md. `tp2` and `dp2` are Qwen3-14B's 40 layers; `tp2-shift` has four of
them, and a bug seeded into rank TP1: each row of the requests that were sent goes one slot further.
"""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kvtrace_cli.app import main
from kvtrace_cli.errors import ExitCode

DATA = Path(__file__).parents[1] / "data" / "h200-ranks"
LAYERS = 40
TENSOR_RULES = ["rank-steps", "rank-kv-blocks", "rank-layers", "rank-rows"]
DATA_RULES = ["rank-idle", "rank-requests"]
RULES = {"tp2": TENSOR_RULES, "dp2": DATA_RULES, "tp2-shift": TENSOR_RULES}
# Which replica ran each request of `dp2`, the warm-up first.
REPLICAS = {"kvtrace-0": 1, "kvtrace-1": 0, "kvtrace-2": 1, "kvtrace-3": 0}
POSITIONS = {"kvtrace-0": 8, "kvtrace-1": 211, "kvtrace-2": 235, "kvtrace-3": 25}
# The step of vLLM's start-up in which no request has rows: profiling and capture.
STARTUP_STEP = 1
# What says where a write belongs. Addresses and processes are each rank's own.
PLACE = ["step_stamp", "layer_index", "row", "request_id", "position", "part"]
# Rows of the engine's own requests, which the seeded bug leaves alone.
ENGINES_ROWS = 24


class Books(NamedTuple):
    """What one rank recorded in its whole life."""

    process_id: int
    launches: int
    blocks: int
    stores: int
    forward_steps: int


BOOKS = {
    "tp2": {"TP0": Books(1910, 920, 3_680, 3_760, 11), "TP1": Books(1911, 920, 3_680, 3_760, 11)},
    "dp2": {
        "DP0": Books(2484, 8_480, 53_920, 20_800, 202),
        "DP1": Books(2481, 840, 28_480, 21_360, 11),
    },
    "tp2-shift": {
        "TP0": Books(1925, 852, 6_160, 4_024, 203),
        "TP1": Books(1926, 852, 6_160, 4_024, 203),
    },
}
# Blocks of graph nodes and of plain launches in the measured requests, and in the whole life.
BLOCKS = {
    "tp2": ((560, 640), (1_200, 6_160)),
    "dp2": ((32_480, 15_360), (33_120, 49_280)),
    "tp2-shift": ((6_272, 2_560), (6_336, 5_984)),
}


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def printed(*command: object) -> tuple[int, str]:
    with redirect_stdout(StringIO()) as out:
        code = main([str(word) for word in command])
    return code, out.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Return the folder of the runs; copies, since reconciling writes into them."""
    return Path(shutil.copytree(DATA, tmp_path_factory.mktemp("recorded") / "ranks"))


@pytest.fixture(scope="module")
def documented(runs) -> Callable[[str, str], tuple[int, dict[str, Any]]]:
    """Return what a command says of a run, asked once."""
    known: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}

    def ask(command: str, name: str) -> tuple[int, dict[str, Any]]:
        if (command, name) not in known:
            code, text = printed(command, runs / name, "--json")
            known[command, name] = code, json.loads(text)
        return known[command, name]

    return ask


@pytest.fixture(scope="module")
def table(runs, tmp_path_factory) -> Callable[[str, str], pl.DataFrame]:
    """Return a table of a run, as it is exported; `rank` is told by the paths only."""
    folder = tmp_path_factory.mktemp("exported")

    def read(name: str, wanted: str) -> pl.DataFrame:
        target = folder / name
        if not target.exists():
            code, _ = printed("export", runs / name, "--parquet", "-o", target)
            assert code == ExitCode.AGREES
        return pl.read_parquet(target / wanted, hive_partitioning=True)

    return read


def without(run: Path, target: Path, *patterns: str) -> Path:
    """Return a copy of a run directory that lacks files."""
    copy = Path(shutil.copytree(run, target, ignore=shutil.ignore_patterns("summary.json")))
    for file in [file for pattern in patterns for file in (copy / "raw").glob(pattern)]:
        file.unlink()
    return copy


def of_ranks(frame: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the rows of the ranks 0 and 1; there are no others."""
    assert frame["rank"].unique().sort().to_list() == [0, 1]
    return [frame.filter(pl.col("rank") == rank).drop("rank") for rank in (0, 1)]


def sent(request_id: str) -> str:
    """Return the id that kvtrace gave a request; the engine puts more around it."""
    return "-".join(request_id.removeprefix("cmpl-").split("-")[:2])


@pytest.mark.parametrize("name", BOOKS)
def test_the_books_of_each_rank(documented, name):
    code, document = documented("reconcile", name)
    assert (code, document["verdict"], document["reasons"]) == (ExitCode.AGREES, "agrees", [])
    assert document["notes"] == []
    for rank in document["ranks"]:
        books = BOOKS[name][rank["name"]]
        assert rank["process_id"] == books.process_id
        assert rank["launches"] == books.launches
        assert (rank["expected_blocks"], rank["matched_blocks"]) == (books.blocks, books.blocks)
        assert (rank["unexpected_blocks"], rank["dropped"]) == (0, 0)
        assert rank["stores"] == books.stores
        assert rank["steps"] == {"forward": books.forward_steps, "dummy": 1, "draft": 0}
        assert (rank["verdict"], rank["faults"], rank["doubts"]) == ("agrees", [], [])
    assert [rank["name"] for rank in document["ranks"]] == list(BOOKS[name])


@pytest.mark.parametrize("name", BOOKS)
def test_the_books_of_all_ranks_together(documented, name):
    _, document = documented("reconcile", name)
    for stretch, blocks in zip(("measured_request", "whole_life"), BLOCKS[name], strict=True):
        for sort, expected in zip(("graph_nodes", "plain_launches"), blocks, strict=True):
            found = document[stretch][sort]
            assert (found["expected_blocks"], found["matched_blocks"]) == (expected, expected)
            assert (found["missing_blocks"], found["unexpected_blocks"]) == (0, 0)
    books = BOOKS[name].values()
    assert sum(one.blocks for one in books) == sum(BLOCKS[name][1])
    stores = sum(one.stores for one in books)
    assert document["stores"] == {"recorded": stores, "matched": stores, "unexpected": 0}
    order = document["order_join"]
    assert order["matches"] == order["total"] == sum(BLOCKS[name][1])


@pytest.mark.parametrize("name", BOOKS)
def test_no_file_dropped_or_skipped_anything(documented, name):
    _, document = documented("reconcile", name)
    files = document["files"]
    assert sorted(one["rank"] for one in files) == sorted([*BOOKS[name]] * 2)
    assert {(one["dropped"], one["sequence_gaps"]) for one in files} == {(0, 0)}
    assert {one["books_balance"] for one in files if ".events." in one["name"]} == {True}


@pytest.mark.parametrize("name", BOOKS)
def test_the_ranks_were_held_against_each_other(documented, name):
    _, document = documented("reconcile", name)
    assert (document["rank_checks"], document["rank_differences"]) == (RULES[name], [])


@pytest.mark.parametrize("name", BOOKS)
def test_reconcile_names_ranks_and_checks_within_80_columns(runs, name):
    code, out = printed("reconcile", runs / name)
    assert code == ExitCode.AGREES
    assert max(map(len, out.splitlines())) <= 80
    rows = [line.split() for line in out.splitlines() if line.endswith("agrees ")]
    assert [row[:2] for row in rows] == [
        [rank, str(books.process_id)] for rank, books in BOOKS[name].items()
    ]
    for rule in RULES[name]:
        assert f"{rule} as it should be" in words(out)
    graph_blocks = BLOCKS[name][0][0]
    assert f"agrees: {graph_blocks:,} of {graph_blocks:,} graph-node blocks" in words(out)


@pytest.mark.parametrize(
    ("rank", "replays", "span_ms", "gap_ms"),
    [
        ("TP0", 7, (5.179968, 5.192192, 6.485408), (0.406368, 0.410336, 0.411168)),
        ("TP1", 7, (5.180256, 5.189888, 6.48576), (0.40832, 0.412176, 0.413152)),
        ("DP0", 198, (7.914176, 7.99744, 8.081696), (0.6312, 0.646752, 10.275744)),
        ("DP1", 5, (8.02256, 8.043392, 8.170464), (0.633504, 0.639072, 0.646656)),
    ],
)
def test_each_rank_replays_a_graph_of_its_own(documented, rank, replays, span_ms, gap_ms):
    _, document = documented("reconcile", "tp2" if rank in BOOKS["tp2"] else "dp2")
    (graph,) = [one for one in document["measured_graphs"] if one["rank"] == rank]
    assert (graph["nodes"], graph["replays"]) == (LAYERS, replays)
    assert graph["same_nodes_in_every_replay"]
    for figure, expected in (("replay_span", span_ms), ("replay_gap", gap_ms)):
        times = [graph[figure][one] for one in ("min_ms", "median_ms", "max_ms")]
        assert times == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "writes", "forward_steps", "compared"),
    [("tp2", 7_520, 22, 2), ("dp2", 42_160, 213, 0)],
)
def test_an_audit_of_sound_ranks_is_clean(documented, name, writes, forward_steps, compared):
    code, document = documented("audit", name)
    assert (code, document["verdict"], document["findings"]) == (ExitCode.AGREES, "clean", [])
    judged = document["judged"]
    assert judged["expected_writes"] == writes
    assert (judged["processes"], judged["compared_ranks"]) == (2, compared)
    assert (judged["forward_steps"], judged["dummy_steps"]) == (forward_steps, 2)
    stores = {one["owner"]: one["stores"] for one in judged["owners"]}
    assert stores == {"owned": writes, "padding": 0, "dummy": 0, "draft": 0, "unknown": 0}


def test_an_audit_names_the_rank_that_shifts_its_slots(documented):
    code, document = documented("audit", "tp2-shift")
    assert (code, document["verdict"]) == (ExitCode.MISMATCH, "findings")
    assert document["judged"]["expected_writes"] == 8_048
    # Each row of a request that was sent, in four layers, K and V.
    rows = 4_024 // (4 * 2) - ENGINES_ROWS
    assert {one["rule"]: (one["findings"], one["rows"]) for one in document["rules"]} == {
        "wrong-slot": (rows * 4 * 2, rows),
        "rank-slots": (rows * 4 * 2, rows),
    }
    findings = pl.DataFrame(document["findings"], infer_schema_length=None)
    assert findings.height == 7_664
    assert findings["rank"].unique().to_list() == ["TP1"]
    assert (findings["written_slot"] - findings["expected_slot"] == 1).all()
    assert "_warmup_" not in "".join(findings["request_id"].unique())


def test_the_first_finding_says_both_slots(documented, runs):
    _, document = documented("audit", "tp2-shift")
    own = next(one for one in document["findings"] if one["rule"] == "wrong-slot")
    against = next(one for one in document["findings"] if one["rule"] == "rank-slots")
    for one in (own, against):
        assert (one["rank"], one["step_stamp"], one["layer_index"], one["row"]) == ("TP1", 4, 0, 1)
        assert (one["part"], one["expected_slot"], one["written_slot"]) == ("K", 17, 18)
    assert (own["other_rank"], against["other_rank"]) == ("", "TP0")

    code, out = printed("audit", runs / "tp2-shift")
    assert code == ExitCode.MISMATCH
    assert max(map(len, out.splitlines())) <= 80
    first = f"TP1: token 1 of request {own['request_id']} wrote K to slot 18; on TP0 to slot 17"
    assert f"rank-slots: 3,832 findings (479 rows, 201 steps, 4 layers, 4 requests) - {first}" in (
        words(out)
    )
    assert "expected slot 17, written slot 18" in words(out)


def test_both_tensor_ranks_entered_the_same_rows(table):
    columns = [*PLACE[:-1], "owner", "step_kind", "is_graph_node", "block_idx_x", "decode_step"]
    events = table("tp2", "block_events")
    first, second = (one.select(columns).sort(columns) for one in of_ranks(events))
    assert first.height == 3_680
    assert first.filter(pl.col("owner") == "owned").height == 1_880
    assert_frame_equal(first, second)


def test_both_tensor_ranks_wrote_the_same_tokens_to_the_same_slots(table):
    columns = [*PLACE, "kv_block_id", "offset", "written_slot"]
    stores = table("tp2", "stores")
    first, second = (one.select(columns).sort(columns) for one in of_ranks(stores))
    assert first.height == 3_760
    assert not first.select(PLACE).is_duplicated().any()
    assert sum(first.null_count().row(0)) == 0
    assert_frame_equal(first, second)
    assert (stores["written_slot"] == stores["expected_slot"]).all()


def test_the_slots_of_the_shifting_rank_are_one_further(table):
    first, second = of_ranks(table("tp2-shift", "stores"))
    pairs = first.join(second, on=PLACE, how="full", suffix="_of_other", validate="1:1")
    assert pairs.height == first.height == second.height == 4_024
    further = pl.col("written_slot_of_other") - pl.col("written_slot")
    is_sent = pl.col("request_id").str.contains("kvtrace-")
    found = pairs.group_by(is_sent.alias("is_sent"), further.alias("further")).len()
    assert set(found.rows()) == {(True, 1, 3_832), (False, 0, ENGINES_ROWS * 4 * 2)}
    assert (first["written_slot"] == first["expected_slot"]).all()


def test_each_request_was_on_one_replica_only(table):
    stores = table("dp2", "stores").filter(~pl.col("request_id").str.starts_with("_warmup_"))
    named = stores.with_columns(
        pl.col("request_id").map_elements(sent, return_dtype=pl.String).alias("sent")
    )
    assert dict(named.select("sent", "rank").unique().rows()) == REPLICAS
    assert named.select("sent", "rank").n_unique() == len(REPLICAS)
    written = named.group_by("sent", "layer_index", "part").agg(
        pl.len().alias("writes"), pl.col("position").n_unique().alias("positions")
    )
    assert written.height == len(REPLICAS) * LAYERS * 2
    assert {(row["sent"], row["writes"], row["positions"]) for row in written.to_dicts()} == {
        (name, positions, positions) for name, positions in POSITIONS.items()
    }


def test_steps_without_a_request_are_labelled_and_wrote_nothing(table):
    steps, events = table("dp2", "steps"), table("dp2", "block_events")
    dummy = steps.filter(pl.col("step_kind") == "dummy")
    assert dummy.sort("rank").select("rank", "step_stamp").rows() == [
        (0, STARTUP_STEP),
        (1, STARTUP_STEP),
    ]
    assert (steps.filter(pl.col("requests") == 0)["step_kind"] == "dummy").all()
    entered = events.filter(pl.col("owner") == "dummy")
    assert entered.height == dummy["matched_blocks"].sum() == 28_480
    assert entered["step_stamp"].unique().to_list() == [STARTUP_STEP]
    stores = table("dp2", "stores")
    assert stores["owner"].unique().to_list() == ["owned"]
    assert stores.filter(pl.col("step_kind") != "forward").is_empty()


def test_a_replica_of_a_dense_model_does_not_run_along_while_it_is_idle(table):
    busy, idle = of_ranks(table("dp2", "steps"))
    end = idle["host_monotonic_ns"].max()
    assert busy.filter(pl.col("host_monotonic_ns") > end).height == 188
    _, launches = of_ranks(table("dp2", "launches"))
    assert launches["step_stamp"].max() == idle["step_stamp"].max() == 12
    assert launches["step_stamp"].null_count() == 0


def test_a_run_of_ranks_is_the_same_as_itself(runs):
    code, text = printed("diff", runs / "tp2", runs / "tp2", "--json")
    document = json.loads(text)
    assert (code, document["verdict"]) == (ExitCode.AGREES, "same")
    assert document["differences"] == []
    # Seven replays, which both ranks run in lockstep, are seven samples.
    (span,) = (
        one
        for one in document["times"]
        if one["name"].startswith("first to last layer, replay of 40")
    )
    assert span["samples"] == [7, 7]
    assert {"tensor-parallel", "processes", "slots", "first-to-last-layer"} <= set(
        document["checks"]
    )


@pytest.mark.parametrize("name", ["tp2", "dp2"])
def test_the_report_has_the_pictures_of_each_rank_to_choose_from(runs, tmp_path, name):
    target = tmp_path / "report.html"
    code, _ = printed("report", runs / name, "-o", target)
    assert code == ExitCode.AGREES
    page = target.read_text()
    assert "2 x NVIDIA H200, driver 580.159.04" in page
    assert re.search(r"replay of 40, grid \d+<", page)
    # A timeline and a heat map, each with one picture a rank.
    options = re.findall(r'<div class="option"[^>]*aria-label="rank (\w+)"', page)
    assert options == [*BOOKS[name]] * 2
    assert len(re.findall(r'<div class="choice"', page)) == 2
    for rank, books in BOOKS[name].items():
        assert f"process {books.process_id} ({rank}), context 0." in page


def test_a_rank_whose_files_were_left_out_is_inconclusive_and_named(runs, tmp_path):
    """By README.md and docs/ranks.md that is exit code 4; 3 is for a run as it is recorded."""
    run = without(runs / "tp2", tmp_path / "run", "1911*")
    reason = "TP1: it was asked for, and no process said to be it."
    for command, verdict in (("reconcile", "inconclusive"), ("audit", "cannot judge")):
        code, out = printed(command, run)
        assert code == ExitCode.INCONCLUSIVE
        assert f"{verdict}: " in out
        assert reason in words(out)
    code, text = printed("reconcile", run, "--json")
    document = json.loads(text)
    assert (code, document["reasons"]) == (ExitCode.INCONCLUSIVE, [reason])
    found = [(one["name"], one["is_present"], one["verdict"]) for one in document["ranks"]]
    assert found == [("TP0", True, "agrees"), ("TP1", False, "inconclusive")]
    assert (document["rank_checks"], document["ranks"][0]["matched_blocks"]) == ([], 3_680)


def test_a_rank_that_told_nothing_is_inconclusive_and_its_process_named(runs, tmp_path):
    run = without(runs / "tp2", tmp_path / "run", "1911.steps*", "1911.layout*")
    code, text = printed("reconcile", run, "--json")
    assert code == ExitCode.INCONCLUSIVE
    assert json.loads(text)["reasons"] == [
        "TP1: it was asked for, and no process said to be it.",
        "Process 1911 recorded launches and told no rank, so nothing was held against it.",
    ]


def test_a_rank_that_ran_steps_and_recorded_nothing_is_a_mismatch(runs, tmp_path):
    run = without(runs / "tp2", tmp_path / "run", "1911*.kvt.gz")
    code, text = printed("reconcile", run, "--json")
    assert code == ExitCode.MISMATCH
    assert json.loads(text)["reasons"] == [
        "rank-rows: TP1 launched no target kernel in step 2; TP0 did.",
        "process 1911 (TP1): it recorded no launch of a target kernel and no block.",
    ]


def test_events_without_their_launches_are_refused(runs, tmp_path, capsys):
    run = without(runs / "tp2", tmp_path / "run", "1911.launches*")
    assert main(["reconcile", str(run)]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert "1911-0.events.kvt.gz: no 1911.launches.kvt beside it" in err
    assert "copy the whole directory or record again" in err
