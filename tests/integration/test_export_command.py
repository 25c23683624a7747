"""`kvtrace export` on recorded and emulated runs, read back with the tools people use."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import builders
import duckdb
import polars as pl
import pyarrow.dataset
import pyarrow.parquet
import pytest
from builders import Trace, replays, write_run
from decoded_trace import assert_true_to, export_source, read_trace
from emulated_runs import kvtrace, needs_libraries, run_arguments
from polars.testing import assert_frame_equal

from kvtrace_cli.analysis import joined
from kvtrace_cli.analysis.export_columns import TABLES
from kvtrace_cli.app import main
from kvtrace_cli.errors import ExitCode

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"
FORMATS = ("--parquet", "--arrow", "--perfetto")


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def export(tmp_path, capsys):
    """Export a run; return where to, the exit code, and what was said."""

    def call(run_dir, *options, out=tmp_path / "out"):
        code = main(["export", str(run_dir), "-o", str(out), *options])
        return out, code, capsys.readouterr()

    return call


def in_polars(directory, table):
    return pl.read_parquet(directory / table)


def test_polars_duckdb_and_pyarrow_read_the_same_tables(export):
    out, code, _ = export(DATA / "h200-writes", "--parquet")
    assert code == ExitCode.AGREES
    for table in TABLES:
        frame = in_polars(out, table)
        by_duckdb = duckdb.sql(f"SELECT * FROM read_parquet('{out / table}/**/*.parquet')").pl()
        by_arrow = pl.from_arrow(
            pyarrow.dataset.dataset(out / table, partitioning="hive").to_table()
        )
        ranks = ["rank"] if table != "requests" else []
        assert frame.columns == [*TABLES[table], *ranks]
        assert_frame_equal(frame, by_duckdb)
        assert_frame_equal(frame, by_arrow.cast(dict.fromkeys(ranks, pl.Int64)))


def test_arrow_has_the_same_tables_as_parquet(export, tmp_path):
    parquet, _, _ = export(DATA / "h200-writes", "--parquet")
    arrow, code, _ = export(DATA / "h200-writes", "--arrow", out=tmp_path / "arrow")
    assert code == ExitCode.AGREES
    for table in TABLES:
        frame = pl.scan_ipc(arrow / table).collect()
        assert_frame_equal(frame, in_polars(parquet, table))
        found = pyarrow.dataset.dataset(arrow / table, format="ipc", partitioning="hive")
        assert found.count_rows() == frame.height
        assert not any("view" in str(kind) for kind in found.schema.types)


def test_every_event_of_a_recording_is_there_once(export):
    out, _, _ = export(DATA / "h200-writes", "--parquet")
    source = export_source(DATA / "h200-writes")
    events = pl.concat(dump.records for dump in source.recording.events)
    sequences = [in_polars(out, table)["sequence"] for table in ("block_events", "stores")]
    assert pl.concat(sequences).sort().to_list() == events["sequence"].to_list()
    times = pl.concat(
        in_polars(out, table).select("sequence", "gpu_globaltimer_ns")
        for table in ("block_events", "stores")
    )
    assert_frame_equal(times.sort("sequence"), events.select("sequence", "gpu_globaltimer_ns"))


def test_a_question_in_sql_is_answered_as_the_audit_answers_it(export):
    """15 positions of the measured request, each K and V in 40 layers at the assigned slot."""
    out, _, _ = export(DATA / "h200-writes", "--parquet")
    found = duckdb.sql(
        f"""SELECT position, part, count(DISTINCT layer_index), bool_and(
                written_slot = expected_slot)
            FROM read_parquet('{out}/stores/*/*.parquet') WHERE owner_request_index = 1
            GROUP BY ALL ORDER BY ALL"""
    ).fetchall()
    assert found == [(position, part, 40, True) for position in range(15) for part in "KV"]


def test_long_tables_are_written_in_parts(export, tmp_path, monkeypatch):
    whole, _, _ = export(DATA / "h200-writes", "--parquet", out=tmp_path / "whole")
    monkeypatch.setattr(joined, "SLICE_EVENTS", 1000)
    parts, _, _ = export(DATA / "h200-writes", "--parquet")
    for table in ("block_events", "stores"):
        files = sorted((parts / table / "rank=0").iterdir())
        assert len(files) > 3
        assert [path.name for path in files] == [
            f"part-{number:05}.parquet" for number in range(len(files))
        ]
        assert_frame_equal(in_polars(parts, table), in_polars(whole, table))


def test_the_documents_examples_run(export, tmp_path, monkeypatch):
    for form in ("parquet", "arrow"):
        export(DATA / "h200-writes", f"--{form}", out=tmp_path / f"run1-{form}")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/export.md").read_text()
    first, second = re.findall(r"```python\n(.+?)```", text, re.DOTALL)
    for example in (first, second):
        exec(example, {})
    (question,) = re.findall(r"```sql\n(.+?)```", text, re.DOTALL)
    # The engine's own warm-up requests and ours; each position is in every layer.
    assert {row[2] for row in duckdb.sql(question).fetchall()} == {40}


def test_the_columns_file_says_what_each_column_is(export):
    out, _, _ = export(DATA / "h200-writes", "--parquet")
    document = json.loads((out / "_columns.json").read_text())
    assert (document["verdict"], document["emulated"], document["incomplete"]) == (
        "agrees",
        False,
        False,
    )
    (process,) = document["processes"]
    assert (process["rank"], process["ranks"]["tensor"]) == (0, 0)
    for table in document["tables"]:
        frame = in_polars(out, table["table"])
        assert table["rows"] == frame.height
        assert [column["name"] for column in table["columns"]] == list(TABLES[table["table"]])
        for column in table["columns"]:
            assert column["type"] == str(frame.schema[column["name"]])
            assert column["unit"]
            assert column["meaning"]


def test_a_run_without_plug_in_has_rank_minus_1_and_says_what_is_left_out(export):
    out, code, said = export(DATA / "h200-fa3", "--parquet")
    assert code == ExitCode.AGREES
    assert "not recorded in this run, so left out: stores, steps" in said.err
    assert sorted(path.name for path in out.iterdir()) == [
        "_columns.json",
        "block_events",
        "launches",
        "requests",
    ]
    events = pyarrow.parquet.read_table(out / "block_events")
    assert events["rank"].to_pylist() == [-1] * 3680


def test_two_ranks_are_two_partitions(export, tmp_path):
    first, second = replays(nodes=2, count=1), replays(nodes=3, count=1)
    second.process_id = 4712
    run_dir = write_run(tmp_path / "run", first, second, steps=[builders.started()])
    path = run_dir / "raw/4712.steps.jsonl"
    builders.write_lines(path, [builders.started(ranks={"world": 1})])
    out, _, _ = export(run_dir, "--parquet")
    events = in_polars(out, "block_events")
    assert events.group_by("rank", "process_id").len().sort("rank").rows() == [
        (0, 4711, 2),
        (1, 4712, 3),
    ]


def test_a_table_of_which_nothing_was_recorded_is_there_and_empty(export, tmp_path):
    trace = Trace(changes={"flags": builders.flags("CLOSED", "PATCHED", "WRITES")})
    trace.plain()
    out, _, _ = export(write_run(tmp_path / "run", trace), "--parquet")
    for table in ("block_events", "stores"):
        frame = in_polars(out, table)
        assert frame.columns == [*TABLES[table], "rank"]
        assert frame.is_empty()


@pytest.mark.parametrize(
    "name",
    [
        "h200-fa2",
        "h200-fa3",
        "h200-writes",
        "h200-killed",
        "h200-tiny",
        "h200-faults/none",
        "h200-graph-cases/streams_2",
        "h200-graph-cases/streams_16",
        "h200-graph-cases/programmatic",
        "h200-graph-cases/two_execs",
        "h200-graph-cases/plain",
    ],
)
def test_a_timeline_nests_never_overlaps_and_has_the_recordings_times(name, export):
    out, code, _ = export(DATA / name, "--perfetto", "--allow-incomplete")
    assert code == ExitCode.AGREES
    assert_true_to(export_source(DATA / name), read_trace(out))


def test_what_has_no_place_in_a_timeline_is_said(export):
    _, _, said = export(DATA / "h200-tiny", "--perfetto", "--json")
    entries = json.loads(said.out)["entries_without_launch"]
    assert (
        entries == 4096 - export_source(DATA / "h200-tiny").result.launches["matched_blocks"].sum()
    )
    assert f"left out: {entries:,} block entries that belong to no launch" in said.err


def test_the_timeline_of_one_request(export):
    out, _, said = export(DATA / "h200-writes", "--perfetto")
    tracks = read_trace(out)
    assert {track.process for track in tracks} == {"process 1017"}
    (decode,) = [track for track in tracks if track.name.startswith("graph exec 168 ")]
    replays_of = [one for one in decode.slices if one.parent is None]
    assert [one.name for one in replays_of] == [f"replay {number}" for number in range(1, 8)]
    assert len(decode.slices) == 7 * 41
    assert "all on the GPU globaltimer; host times are left out" in said.err


def test_branches_of_a_graph_that_run_at_once_are_drawn_apart(export):
    name = DATA / "h200-graph-cases/streams_16"
    out, _, _ = export(name, "--perfetto")
    lanes = read_trace(out)
    assert len(lanes) > len({track.name for track in lanes})


def test_trace_processor_reads_the_same(export):
    """Only where its program is installed: it is a download of its own."""
    shell = shutil.which("trace_processor") or shutil.which("trace_processor_shell")
    if shell is None:
        pytest.skip("trace_processor is not installed")
    out, _, _ = export(DATA / "h200-writes", "--perfetto")
    done = subprocess.run(
        [shell, "-Q", "SELECT count(*) AS n, min(dur) AS d FROM slice", str(out)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "975,0" in done.stdout


def test_a_limit_says_what_was_left_out(export):
    out, _, said = export(DATA / "h200-fa3", "--perfetto", "--max-slices", "700", "--json")
    document = json.loads(said.out)
    assert document["slices"] <= 700
    assert document["slices"] == sum(len(track.slices) for track in read_trace(out))
    (left_out,) = document["left_out"]
    assert left_out["level"] == "nodes"
    assert f"left out: {left_out['slices']} of 320 nodes" in said.err
    everything = document["slices"] + left_out["slices"]
    assert f"--max-slices {everything} takes all of them" in said.err


@pytest.mark.parametrize("option", FORMATS)
def test_a_document_on_stdout_and_the_rest_on_stderr(option, export):
    out, code, said = export(DATA / "h200-fa3", option, "--json")
    document = json.loads(said.out)
    assert (code, document["schema_version"]) == (ExitCode.AGREES, 2)
    assert (document["path"], document["format"]) == (str(out), option.removeprefix("--"))
    assert f"wrote {out}" in said.err.replace("\n", "")


def test_nothing_goes_to_stdout_without_json(export):
    _, _, said = export(DATA / "h200-fa3", "--arrow")
    assert said.out == ""


@pytest.mark.parametrize(
    ("option", "name"),
    [("--parquet", "run-parquet"), ("--arrow", "run-arrow"), ("--perfetto", "run.pftrace")],
)
def test_by_default_it_goes_beside_the_run(option, name, tmp_path, monkeypatch):
    write_run(tmp_path / "run", replays(nodes=1, count=1))
    before = sorted((tmp_path / "run").rglob("*"))
    monkeypatch.chdir(tmp_path / "run")
    assert main(["export", ".", option]) == ExitCode.AGREES
    assert (tmp_path / name).exists()
    assert sorted((tmp_path / "run").rglob("*")) == before


def test_a_run_that_does_not_reconcile_is_exported_with_a_note(export):
    _, code, said = export(DATA / "h200-tiny", "--parquet", "--json")
    assert code == ExitCode.AGREES
    (note,) = json.loads(said.out)["notes"]
    assert "`kvtrace reconcile` says of this run: mismatch: " in note
    assert "says of this run: mismatch" in said.err


def refused(code, said):
    assert code == ExitCode.USAGE
    assert said.out == ""
    assert said.err.startswith("kvtrace: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("options", [(), ("--parquet", "--perfetto"), FORMATS])
def test_exactly_one_format(options, export):
    out, code, said = export(DATA / "h200-fa3", *options)
    assert "give one of --parquet, --arrow and --perfetto" in refused(code, said)
    assert not out.exists()


def test_slices_are_of_timelines(export):
    _, code, said = export(DATA / "h200-fa3", "--parquet", "--max-slices", "9")
    assert "--max-slices" in refused(code, said)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nowhere", "no such directory"),
        ("h200-faults", "not a run directory"),
        ("h200-killed", "give --allow-incomplete"),
    ],
)
def test_what_is_no_whole_run_is_refused(name, expected, export):
    out, code, said = export(DATA / name, "--parquet")
    assert expected in refused(code, said)
    assert not out.exists()


def test_a_damaged_run_leaves_no_export(export, tmp_path):
    run_dir = write_run(tmp_path / "run", replays(nodes=1, count=1))
    events = run_dir / "raw/4711-0.events.kvt"
    events.write_bytes(events.read_bytes()[:-3])
    out, code, said = export(run_dir, "--parquet")
    assert "4711-0.events.kvt" in refused(code, said)
    assert not out.exists()


@pytest.mark.parametrize("option", FORMATS)
def test_an_earlier_export_is_replaced_with_force_only(option, export):
    export(DATA / "h200-fa2", option)
    out, code, said = export(DATA / "h200-fa3", option)
    assert "already there" in refused(code, said)
    _, code, _ = export(DATA / "h200-fa3", option, "--force")
    assert code == ExitCode.AGREES
    if option == "--parquet":
        assert in_polars(out, "block_events")["process_id"].unique().to_list() == [1054]


@pytest.mark.parametrize("option", FORMATS)
def test_a_run_of_which_nothing_was_recorded_is_inconclusive(option, export, tmp_path):
    out, code, said = export(write_run(tmp_path / "run"), option)
    assert code == ExitCode.INCONCLUSIVE
    assert "nothing to export" in said.err
    assert not out.exists()


def test_a_run_without_a_matched_entry_has_no_timeline(export, tmp_path):
    trace = Trace()
    trace.plain()
    out, code, said = export(write_run(tmp_path / "run", trace), "--perfetto")
    assert code == ExitCode.INCONCLUSIVE
    assert "nothing has a time" in said.err
    assert not out.exists()
    assert not list(tmp_path.glob(".out*"))


def test_without_its_package_perfetto_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['perfetto'] = None;"
        "from kvtrace_cli.app import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["export", str(DATA / "h200-fa3"), "-o", str(tmp_path / "out")]
    without = [
        subprocess.run(
            [sys.executable, "-c", code, *arguments, option],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        for option in ("--perfetto", "--parquet")
    ]
    assert [done.returncode for done in without] == [ExitCode.USAGE, ExitCode.AGREES]
    assert without[0].stderr.count("\n") == 1
    assert "pip install 'kvtrace[perfetto]'" in without[0].stderr


@needs_libraries
def test_an_emulated_run_is_marked_in_every_format(tmp_path, export):
    requests = tmp_path / "requests.jsonl"
    builders.write_lines(requests, [{"prompt_tokens": 20, "max_tokens": 4}] * 3)
    run_dir = tmp_path / "run"
    options = ("--record", "writes", "--requests", str(requests), "--concurrency", "3")
    recorded = kvtrace(*run_arguments(run_dir, *options))
    assert recorded.returncode == ExitCode.AGREES, recorded.stderr
    out, _, said = export(run_dir, "--perfetto", out=tmp_path / "t.pftrace")
    tracks = read_trace(out)
    assert_true_to(export_source(run_dir), tracks)
    assert all(track.process.endswith("(EMULATED)") for track in tracks)
    assert "note: this run was emulated" in said.err
    ours = {
        one.args["request_index"]
        for track in tracks
        if track.name == "requests"
        for one in track.slices
        if "request_index" in one.args
    }
    assert ours == {0, 1, 2, 3}
    out, _, _ = export(run_dir, "--parquet")
    assert json.loads((out / "_columns.json").read_text())["emulated"] is True
    stores = in_polars(out, "stores").filter(pl.col("owner") == "owned")
    assert stores["owner_request_index"].unique().sort().to_list() == [0, 1, 2, 3]
    assert (stores["written_slot"] == stores["expected_slot"]).all()
