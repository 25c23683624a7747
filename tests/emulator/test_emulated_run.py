"""`kvtrace run --engine emulator` as a program: the whole path without a GPU."""

import json
import signal
import subprocess
import sys
import time

import polars as pl
import pytest
from emulated_runs import ROOT, as_program, environment, kvtrace, needs_libraries, run_arguments

from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.analysis.stores import located_stores
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir

pytestmark = needs_libraries


def run(out, *options, engine=()):
    return kvtrace(*run_arguments(out, *options, engine=engine), COLUMNS="140")


def test_one_request_is_280_of_280_and_says_that_it_is_emulated(tmp_path):
    done = run(tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "agrees: 280 of 280 graph-node blocks entered" in done.stdout
    assert "(emulated)" in done.stdout
    assert "(EMULATED)" in done.stdout
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["engine"] == "emulator"
    assert manifest["gpus"] == []
    assert manifest["outcome"]["engine_exit_status"] == 0


def test_which_attention_ran_is_a_difference_that_is_listed(tmp_path):
    """From the engine's log into the manifest, the summary and the comparison."""
    for name, arguments in (("a", ()), ("b", ("--flash-attention", "2"))):
        done = run(tmp_path / name, *arguments)
        assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "b/manifest.json").read_text())
    assert manifest["attention"] == {
        "backends": ["FLASH_ATTN"],
        "flash_attention_versions": [2],
    }
    summary = json.loads((tmp_path / "b/summary.json").read_text())
    assert summary["settings"]["listed"]["attention"] == "FLASH_ATTN, FlashAttention 2"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kvtrace_cli", "diff", "--json"),
            *(str(tmp_path / "a"), str(tmp_path / "b")),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    listed = {one["rule"]: one for one in json.loads(done.stdout)["differences"]}
    found = listed["setting-attention"]
    assert (found["before"], found["after"]) == ("FLASH_ATTN", "FLASH_ATTN, FlashAttention 2")
    assert found["decides"] is False


def test_the_recording_is_what_really_ran(tmp_path):
    run(tmp_path / "run", "--json")
    log = (tmp_path / "run/server.log").read_text()
    ran = int(log.partition("target blocks that really ran: ")[2].split()[0])
    # Warm-up of the sizes 1, 2, 4, 8; two prefills of 8 rows; 7 replays.
    assert ran == 40 * (15 + 8 + 8) + 280
    files = list((tmp_path / "run/raw").glob("*.events.kvt"))
    assert [path.stat().st_size for path in files] == [64 + 64 * ran]


def test_every_position_is_written_once_in_every_layer_where_its_block_is(tmp_path):
    done = run(tmp_path / "run", "--record", "writes")
    assert done.returncode == 0, done.stderr
    recording = read_recording(open_run_dir(tmp_path / "run", allow_incomplete=False))
    tables = step_tables(recording)
    stores = located_stores(reconcile(recording), recording)
    row = ["process_id", "step_stamp", "row"]
    written = tables.rows.join(tables.slots, on=row).join(stores, on=row, how="full", coalesce=True)
    # Eight positions of the warm-up request; eight and seven of the measured one.
    assert stores.height == written.height == (8 + 15) * 40 * 2
    assert written.filter(pl.col("written_slot") == pl.col("expected_slot")).height == stores.height
    measured = written.filter(pl.col("request_id").str.starts_with("cmpl-kvtrace-1-0-"))
    counts = measured.group_by("position", "part").agg(
        pl.len().alias("stores"), pl.col("layer_index").n_unique().alias("layers")
    )
    assert sorted(counts.rows()) == [
        (position, part, 40, 40) for position in range(15) for part in ("K", "V")
    ]


def test_a_run_without_steps_writes_none(tmp_path):
    done = run(tmp_path / "run", "--no-trace")
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "run").rglob("*.steps.jsonl"))


def test_json_says_emulated(tmp_path):
    done = run(tmp_path / "run", "--json")
    document = json.loads(done.stdout)
    assert document["emulated"] is True
    assert document["verdict"] == "agrees"


@pytest.mark.parametrize(
    ("arguments", "executions"),
    [
        (["--max-tokens", "1"], 0),
        (["--max-tokens", "3", "--repeat", "2", "--stream"], 2 * 2 * 40),
        (["--prompt-tokens", "200", "--max-tokens", "2"], 40),
        (["--preload", "--no-injection"], 280),
        (["--no-stamps"], 280),
    ],
)
def test_other_requests_and_ways_to_record(arguments, executions, tmp_path):
    done = run(tmp_path / "run", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["measured_request"]["graph_nodes"]["matched_blocks"] == executions


def test_without_tracing_it_needs_no_injector(tmp_path):
    done = run(tmp_path / "run", "--no-trace", "--injector", "/no/injector.so")
    assert done.returncode == 0, done.stderr
    assert "not traced: 2 requests answered" in done.stdout


def test_binding_the_target_only_shows_the_crash_and_names_what_was_unbound(tmp_path):
    done = run(tmp_path / "run", "--bind", "target-only")
    assert done.returncode == 3
    assert "measured request 1 failed: HTTP 500" in done.stderr
    assert "misaligned address" in done.stderr
    assert "(0 tokens)" in done.stderr
    assert "functions of a patched module had no callback data" in done.stderr
    assert "rms_norm_kernel" in done.stderr
    assert "rotary_embedding_kernel" in done.stderr
    requests = (tmp_path / "run/requests.jsonl").read_text().splitlines()
    assert json.loads(requests[1])["returned_token_ids"] is None
    assert (tmp_path / "run/INCOMPLETE").exists()

    result = reconcile(read_recording(open_run_dir(tmp_path / "run", allow_incomplete=True)))
    assert any("3 functions of a patched module" in note for note in result.notes)


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("device-fault", 3, "HTTP 500: "),
        ("exit-zero", 3, "HTTP 500: "),
        ("truncated-body", 3, "HTTP 200, then the connection failed"),
        ("crash", 3, "killed by SIGKILL"),
        ("hang", 3, "no answer within 2 s"),
        ("slow-start", 0, "run directory"),
        ("worker-process", 0, "run directory"),
    ],
)
def test_faults_on_demand(fault, code, message, tmp_path):
    limit = ["--request-timeout", "2"] if fault == "hang" else []
    done = run(tmp_path / "run", *limit, engine=["--fault", fault])
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr.partition("server.log")[0]


def test_a_worker_process_is_the_one_that_is_recorded(tmp_path):
    done = run(tmp_path / "run", "--json", engine=["--fault", "worker-process"])
    assert json.loads(done.stdout)["verdict"] == "agrees"
    (events,) = (tmp_path / "run/raw").glob("*.events.kvt")
    journal = next((tmp_path / "run/raw").glob("*.journal.jsonl"))
    attached = json.loads(journal.read_text().splitlines()[0])
    assert events.name == f"{attached['process_id']}-0.events.kvt"
    (steps,) = (tmp_path / "run/raw").glob("*.steps.jsonl")
    lines = [json.loads(line) for line in steps.read_text().splitlines()]
    assert steps.name == f"{attached['process_id']}.steps.jsonl"
    assert lines[0]["stamped"]
    ids = [one[0][:-9] for line in lines for one in line.get("admitted", ())]
    assert ids == ["cmpl-kvtrace-0-0", "cmpl-kvtrace-1-0"]


@pytest.mark.parametrize("phase", ["starting the engine", "measured request 1"])
def test_an_interrupt_ends_the_engine_and_the_run(phase, tmp_path):
    fault = "slow-start" if phase == "starting the engine" else "hang"
    errors = tmp_path / "errors"
    with errors.open("w") as file:
        process = subprocess.Popen(
            as_program(*run_arguments(tmp_path / "run", engine=["--fault", fault])),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    deadline = time.monotonic() + 20
    while phase not in errors.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130, errors.read_text()
    assert (tmp_path / "run/INCOMPLETE").exists()


def test_an_emulated_engine_asks_for_no_weights(tmp_path):
    done = run(tmp_path / "run", "--weights", "auto")
    assert done.returncode == 0, done.stderr


def test_a_model_without_a_config_is_refused_before_anything_is_started(tmp_path):
    done = run(tmp_path / "run", "--model", "org/other", "--weights", "auto")
    assert done.returncode == 2
    assert "give a directory that holds the model's config.json" in done.stderr
    assert not (tmp_path / "run").exists()


def test_make_run_says_why_it_is_emulated(tmp_path):
    """On a machine with a GPU and vLLM there is nothing to say."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/choose_engine.py"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    if done.stdout.startswith("--engine vllm --python "):
        assert done.stderr == ""
    else:
        assert done.stdout == "--engine emulator\n"
        assert len(done.stderr.splitlines()) == 1
        assert "emulated engine, which needs no GPU" in done.stderr
