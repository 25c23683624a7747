"""Commands on runs of several ranks: names wherever a process is shown, and exit codes."""

import json

import duckdb
import polars as pl
import pyarrow.dataset
import pytest
from builders import step
from polars.testing import assert_frame_equal
from rank_scenes import (
    REQUEST,
    RankScene,
    data_ranks,
    pipeline_ranks,
    slot_of,
    steps_of,
    tensor_ranks,
    write_ranks,
)

from kvtrace_cli.app import main
from kvtrace_cli.errors import ExitCode

TWO = {"tensor": 2, "pipeline": 1, "data": 1}


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def shifted(stamp, layer, row, part, slot):
    """One token of one layer goes one slot too far."""
    return slot + ((stamp, layer, row, part) == (3, 1, 0, "K"))


@pytest.fixture
def agreeing(tmp_path):
    return write_ranks(tmp_path / "run", tensor_ranks(), parallel=TWO)


@pytest.fixture
def shifting(tmp_path):
    first, second = tensor_ranks()
    second.written_slot = shifted
    return write_ranks(tmp_path / "shifted", [first, second], parallel=TWO)


def words(text):
    return " ".join(text.split())


def test_reconcile_accounts_for_each_rank(agreeing, capsys):
    assert main(["reconcile", str(agreeing)]) == ExitCode.AGREES
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    rows = [line.split() for line in out.splitlines() if line.startswith("TP")]
    assert rows == [
        ["TP0", "4711", "8", "18", "18", "40", "0", "3", "1", "agrees"],
        ["TP1", "4712", "8", "18", "18", "40", "0", "3", "1", "agrees"],
    ]
    assert "4712-0.events.kvt TP1 58 0 0 0 closed, patched," in words(out)
    assert "rank-rows as it should be" in words(out)


def test_reconcile_tells_machines_of_each_rank(agreeing, capsys):
    assert main(["reconcile", str(agreeing), "--json"]) == ExitCode.AGREES
    document = json.loads(capsys.readouterr().out)
    assert [(rank["process_id"], rank["name"], rank["verdict"]) for rank in document["ranks"]] == [
        (4711, "TP0", "agrees"),
        (4712, "TP1", "agrees"),
    ]
    assert document["ranks"][1]["tensor"] == document["ranks"][1]["number"] == 1
    assert {books["rank"] for books in document["files"]} == {"TP0", "TP1"}
    summary = json.loads((agreeing / "summary.json").read_text())
    assert summary["rank_checks"] == ["rank-steps", "rank-kv-blocks", "rank-layers", "rank-rows"]
    assert "process_id" not in json.dumps(summary)
    assert summary["structure"]["processes"][0]["ranks"] == ["TP0", "TP1"]


def test_a_missing_rank_is_a_failed_check_in_every_output(tmp_path, capsys):
    run = write_ranks(tmp_path / "run", tensor_ranks(1), parallel=TWO)
    junit = tmp_path / "junit.xml"
    code = main(["reconcile", str(run), "--github", "--junit", str(junit)])
    assert code == ExitCode.INCONCLUSIVE
    out = capsys.readouterr().out
    missing = "TP1: it was asked for, and no process said to be it."
    assert missing in words(out)
    assert ["TP1", "-", "0", "0", "0", "0", "0", "0", "0", "inconclusive"] in [
        line.split() for line in out.splitlines()
    ]
    assert "ranks inconclusive::1 of 2 ranks account for all of their blocks." in out
    assert 'name="ranks"' in junit.read_text()


def test_a_rank_that_parts_fails_its_own_check(tmp_path, capsys):
    first, second = tensor_ranks()
    second.entered = lambda stamp, layer, row: (stamp, layer, row) != (3, 1, 0)
    run = write_ranks(tmp_path / "run", [first, second], parallel=TWO)
    assert main(["reconcile", str(run), "--markdown", "-"]) == ExitCode.MISMATCH
    out = capsys.readouterr().out
    assert "`rank-rows` | TP1 parts from TP0 in step 3, layer 1: row 0 entered on TP0 alone." in out


def test_audit_holds_ranks_against_each_other(shifting, capsys):
    assert main(["audit", str(shifting), "--json"]) == ExitCode.MISMATCH
    document = json.loads(capsys.readouterr().out)
    assert document["judged"]["compared_ranks"] == 2
    slot = slot_of(3)
    assert [
        (one["rule"], one["rank"], one["other_rank"], one["expected_slot"], one["written_slot"])
        for one in document["findings"]
    ] == [("wrong-slot", "TP1", "", slot, slot + 1), ("rank-slots", "TP1", "TP0", slot, slot + 1)]
    place = document["findings"][1]
    assert (place["step_stamp"], place["layer_index"], place["row"], place["part"]) == (
        3,
        1,
        0,
        "K",
    )
    assert (place["request_id"], place["position"]) == (REQUEST, 3)


def test_audit_names_the_rank_in_words(shifting, capsys):
    assert main(["audit", str(shifting)]) == ExitCode.MISMATCH
    out = words(capsys.readouterr().out)
    assert (
        f"TP1: token 3 of request {REQUEST} wrote K to slot {slot_of(3) + 1}; on TP0 to slot "
        f"{slot_of(3)}"
    ) in out
    assert "process 4712 (TP1)" in out
    assert "2 ranks compared" in out


def test_a_clean_audit_of_ranks_passes_a_check_of_them(agreeing, capsys):
    assert main(["audit", str(agreeing), "--markdown", "-"]) == ExitCode.AGREES
    assert "`rank-slots`" in capsys.readouterr().out


def test_a_single_rank_is_never_said_to_be_compared(tmp_path, capsys):
    run = write_ranks(tmp_path / "run", [RankScene()])
    assert main(["audit", str(run), "--markdown", "-"]) == ExitCode.AGREES
    assert "rank-slots" not in capsys.readouterr().out


def test_show_names_the_ranks_that_computed_a_token(shifting, capsys):
    code = main(["show", str(shifting), "--request", REQUEST, "--token", "3"])
    assert code == ExitCode.AGREES
    out = words(capsys.readouterr().out)
    assert "process 4711 (TP0)" in out
    assert "process 4712 (TP1)" in out
    assert "wrong-slot (K), rank-slots (K) in layer 1" in out


def read_back(directory):
    """Return a table as polars, DuckDB and PyArrow read it."""
    by_polars = pl.read_parquet(directory)
    by_duckdb = duckdb.sql(f"SELECT * FROM read_parquet('{directory}/**/*.parquet')").pl()
    by_arrow = pl.from_arrow(pyarrow.dataset.dataset(directory, partitioning="hive").to_table())
    return by_polars, by_duckdb, by_arrow.cast({"rank": pl.Int64})


def test_every_rank_is_a_partition_that_polars_duckdb_and_pyarrow_read(tmp_path):
    idle = [step(1, kind="dummy", rows=4), step(2, kind="dummy", rows=1)]
    scenes = data_ranks(steps_of(), steps_of(), idle, idle)
    for number, scene in enumerate(scenes):
        # Two engines of two ranks; their processes are not in the order of ranks.
        scene.place = (number // 2, 0, number % 2)
        scene.process_id = 4714 - number
        scene.started = {"ranks": scene.ranks() | {"world": number % 2}}
    run = write_ranks(tmp_path / "run", scenes)
    assert main(["export", str(run), "--parquet", "-o", str(tmp_path / "out")]) == ExitCode.AGREES
    for table in ("block_events", "stores", "launches", "steps"):
        first, *others = read_back(tmp_path / "out" / table)
        for other in others:
            assert_frame_equal(first, other)
    events = pl.read_parquet(tmp_path / "out/block_events")
    assert sorted(events.select("rank", "process_id").unique().rows()) == [
        (0, 4714),
        (1, 4713),
        (2, 4712),
        (3, 4711),
    ]
    columns = json.loads((tmp_path / "out/_columns.json").read_text())
    assert {one["name"]: one["rank"] for one in columns["processes"]} == {
        "DP0 TP0": 0,
        "DP0 TP1": 1,
        "DP1 TP0": 2,
        "DP1 TP1": 3,
    }
    ((count,),) = duckdb.sql(
        f"SELECT count(*) FROM read_parquet('{tmp_path}/out/block_events/**/*.parquet') "
        "WHERE rank = 2"
    ).fetchall()
    assert count == events.filter(pl.col("rank") == 2).height == 10


def test_diff_compares_rank_by_rank_and_not_by_process_id(tmp_path, capsys):
    """The same ranks under other process ids, in another order, are the same run."""
    scenes = pipeline_ranks(range(2), range(2, 5))
    before = write_ranks(tmp_path / "before", scenes)
    ids = [scene.process_id for scene in scenes]
    for scene, process_id in zip(scenes, reversed(ids), strict=True):
        scene.process_id = process_id
    after = write_ranks(tmp_path / "after", scenes)
    arguments = ["diff", str(before), str(after), "--no-times"]
    assert main(arguments) == ExitCode.AGREES
    summaries = []
    for run in (before, after):
        assert main(["reconcile", str(run)]) == ExitCode.AGREES
        summaries.append(json.loads((run / "summary.json").read_text()) | {"times": None})
    assert summaries[0] == summaries[1]
    capsys.readouterr()


def test_how_long_an_idle_data_rank_runs_along_is_no_difference(tmp_path, capsys):
    runs = []
    for passes in (2, 5):
        idle = [step(1 + number, kind="dummy", rows=1) for number in range(passes)]
        runs.append(write_ranks(tmp_path / str(passes), data_ranks(steps_of(), idle)))
    assert main(["diff", *map(str, runs), "--no-times", "--json"]) == ExitCode.AGREES
    document = json.loads(capsys.readouterr().out)
    listed = [one for one in document["differences"] if one["rule"] == "dummy-rows"]
    assert [(one["before"], one["after"], one["decides"]) for one in listed] == [
        ("12", "18", False)
    ]


def test_diff_names_the_rank_that_changed(tmp_path, capsys):
    scenes = pipeline_ranks(range(2), range(2, 5))
    before = write_ranks(tmp_path / "before", scenes)
    scenes[1].layers = range(2, 6)
    after = write_ranks(tmp_path / "after", scenes)
    options = ["--no-times", "--json", "--allow", "model-shape"]
    assert main(["diff", str(before), str(after), *options]) == ExitCode.MISMATCH
    document = json.loads(capsys.readouterr().out)
    found = [one for one in document["differences"] if one["rule"] == "course"]
    assert [one["where"] for one in found] == ["PP1, measured request 1"]


@pytest.mark.parametrize("dimension", ["tensor", "pipeline", "data"])
def test_another_number_of_ranks_cannot_be_compared(tmp_path, capsys, dimension):
    sizes = {"tensor": 1, "pipeline": 1, "data": 1}
    before = write_ranks(tmp_path / "before", [RankScene()], parallel=sizes)
    scenes = [RankScene(), RankScene(process_id=4712)]
    order = ("data", "pipeline", "tensor")
    scenes[1].place = tuple(int(name == dimension) for name in order)
    if dimension == "pipeline":
        scenes[1].layers = range(2, 4)
    if dimension == "data":
        scenes[1].lines = steps_of("other")
    after = write_ranks(tmp_path / "after", scenes, parallel=sizes | {dimension: 2})
    code = main(["diff", str(before), str(after), "--no-times", "--json"])
    assert code == ExitCode.INCONCLUSIVE
    document = json.loads(capsys.readouterr().out)
    rules = {one["rule"]: (one["before"], one["after"]) for one in document["differences"]}
    assert rules[f"{dimension}-parallel"] == ("1", "2")


def test_a_layout_of_pipeline_ranks_has_the_layers_of_all(tmp_path):
    run = write_ranks(tmp_path / "run", pipeline_ranks(range(2), range(2, 5)))
    assert main(["reconcile", str(run)]) == ExitCode.AGREES
    settings = json.loads((run / "summary.json").read_text())["settings"]
    assert [view["layers"] for view in settings["kv_views"]] == [5]
    assert (settings["tensor_parallel"], settings["pipeline_parallel"]) == (1, 2)
