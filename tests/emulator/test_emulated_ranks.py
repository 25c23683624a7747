"""Emulated engines of several ranks: who writes what, and which rank fails."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from emulated_runs import environment, kvtrace, needs_libraries, run_arguments, small_model

from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import RunDir, open_run_dir
from kvtrace_cli.emulator.__main__ import _parser
from kvtrace_cli.emulator.assembly import assemble
from kvtrace_cli.emulator.model_shape import read_shape
from kvtrace_cli.errors import ConfigError

LAYERS = 3
REQUESTS = (
    {"prompt_tokens": 4, "max_tokens": 6},
    {"prompt_tokens": 3, "max_tokens": 3},
    {"prompt_tokens": 4, "max_tokens": 4},
)

pytestmark = needs_libraries


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model with few layers, so that a run is short."""
    return small_model(tmp_path_factory.mktemp("model"), layers=LAYERS, requests=REQUESTS)


def run(model, out, *engine, options=()):
    ours = ("--json", "--ring-events", "4096", "--launch-records", "1024")
    return kvtrace(*run_arguments(out, *ours, *options, model=model, engine=engine))


def manifest(out):
    return json.loads((out / "manifest.json").read_text())


def steps(out, process_id):
    path = RunDir(out).step_files()[process_id]
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_clock(lines):
    """Return what steps did, without when and by whom."""
    return [
        {name: value for name, value in line.items() if name != "host_monotonic_ns"}
        for line in lines
        if line["event"] != "started"
    ]


@dataclass(frozen=True)
class Ran:
    """A run in order, and what each rank's process recorded, by rank."""

    done: subprocess.CompletedProcess
    out: Path
    ranks: dict[tuple[int, int, int], int]

    @classmethod
    def of(cls, model, out, *engine, options=()):
        done = run(model, out, *engine, options=options)
        assert done.returncode == 0, done.stderr
        ranks = {
            (one["data"], one["pipeline"], one["tensor"]): one["process_id"]
            for one in manifest(out)["ranks"]
        }
        return cls(done, out, ranks)

    def blocks(self):
        """Return the thread blocks of each rank's launches, with their steps."""
        recording = read_recording(open_run_dir(self.out, allow_incomplete=False))
        launches = {dump.header.process_id: dump.records for dump in recording.launches}
        return {
            rank: launches[process_id].select("step_stamp", blocks=pl.col("grid_dim_x"))
            for rank, process_id in self.ranks.items()
        }

    def layers(self):
        paths = RunDir(self.out).layout_files()
        return {
            rank: [
                tensor["layer_index"]
                for tensor in json.loads(paths[process_id].read_text())["tensors"]
            ]
            for rank, process_id in self.ranks.items()
        }


@pytest.fixture(scope="module")
def tensor_and_pipeline(model, tmp_path_factory):
    """Two pipeline stages of two tensor ranks."""
    out = tmp_path_factory.mktemp("ranks") / "run"
    return Ran.of(model, out, "-tp", "2", "--pipeline-parallel-size=2")


def test_each_rank_is_a_process_with_files_and_a_name_of_its_own(tensor_and_pipeline):
    ran = tensor_and_pipeline
    assert set(ran.ranks) == {(0, stage, tensor) for stage in (0, 1) for tensor in (0, 1)}
    assert len(set(ran.ranks.values())) == 4
    events = {int(path.name.partition("-")[0]) for path in RunDir(ran.out).event_files()}
    assert events == set(ran.ranks.values())
    for (_, stage, tensor), process_id in ran.ranks.items():
        started = steps(ran.out, process_id)[0]
        world = 2 * stage + tensor
        assert started["ranks"] == {
            "tensor": tensor,
            "pipeline": stage,
            "data": 0,
            "world": world,
        }
        assert started["world_sizes"] == {"tensor": 2, "pipeline": 2, "data": 1}
        assert started["host"] == os.uname().nodename
        assert started["stamped"]


def test_the_manifest_says_what_was_asked_and_who_was_who(tensor_and_pipeline):
    found = manifest(tensor_and_pipeline.out)
    assert found["parallel"] == {"tensor": 2, "pipeline": 2, "data": 1}
    assert {one["clock"] for one in found["ranks"]} == {"this host"}
    assert {one["host"] for one in found["ranks"]} == {found["host"]}
    assert found["run_id"]


def test_ranks_of_one_engine_run_the_same_steps_and_write_the_same_rows(tensor_and_pipeline):
    ran = tensor_and_pipeline
    first, *others = (without_clock(steps(ran.out, pid)) for pid in ran.ranks.values())
    assert sum(line["kind"] == "forward" for line in first if line["event"] == "step") == 1 + 8
    assert all(other == first for other in others)
    blocks = ran.blocks()
    for stage in (0, 1):
        assert blocks[0, stage, 0].height > 0
        assert blocks[0, stage, 0].equals(blocks[0, stage, 1])


def test_pipeline_stages_hold_the_layers_between_them(tensor_and_pipeline):
    layers = tensor_and_pipeline.layers()
    assert layers[0, 0, 0] == layers[0, 0, 1] == [0, 1]
    assert layers[0, 1, 0] == layers[0, 1, 1] == [2]


def test_progress_counts_ranks_without_a_terminal(tensor_and_pipeline):
    lines = tensor_and_pipeline.done.stderr.splitlines()
    assert "kvtrace: ranks 4/4 record" in lines
    assert any(line.startswith("kvtrace: ranks 4/4 recorded ") for line in lines)


def test_data_ranks_have_requests_of_their_own_and_idle_ones_run_along(model, tmp_path):
    """Three requests for two replicas; at the end only one of them has any."""
    options = ("--requests", str(model / "requests.jsonl"), "--concurrency", "3")
    ran = Ran.of(model, tmp_path / "run", "-dp", "2", "--pass-ms", "1", options=options)
    assert set(ran.ranks) == {(0, 0, 0), (1, 0, 0)}
    lines = {
        data: [line for line in steps(ran.out, pid) if line["event"] == "step"]
        for (data, _, _), pid in ran.ranks.items()
    }
    owners = [
        {one[0] for line in of_rank for one in line.get("requests", ())}
        for of_rank in lines.values()
    ]
    assert not owners[0] & owners[1]
    assert len(owners[0] | owners[1]) == 4
    # Passes are taken together: as many here as there, each padded to the same graph.
    shapes = [
        [(line["padded_rows"], line["graph_mode"]) for line in of_rank]
        for of_rank in lines.values()
    ]
    assert shapes[0] == shapes[1]
    assert {mode for _, mode in shapes[0]} == {"FULL", "PIECEWISE", "NONE"}
    # The warm-up request was alone, so one of the two ran rows of nobody meanwhile.
    with_requests = [[line["kind"] == "forward" for line in of_rank] for of_rank in lines.values()]
    assert (True, False) in zip(*with_requests, strict=True)
    for rank, process_id in ran.ranks.items():
        log = (ran.out / "server.log").read_text()
        told = log.partition(f"(EngineCore_DP{rank[0]} pid={process_id}) INFO target blocks that ")
        assert int(told[2].partition("ran: ")[2].split()[0]) == ran.blocks()[rank]["blocks"].sum()


def test_a_rank_that_never_attached_fails_the_run_and_is_named(model, tmp_path):
    engine = ("-tp", "2", "--fault", "not-attached", "--fault-rank", "1")
    done = run(model, tmp_path / "run", *engine)
    assert done.returncode == 3
    (told,) = [line for line in done.stderr.splitlines() if "never did" in line]
    assert "1 of 2 ranks (tensor 2 parallel) attached; never did: rank TP1: process" in told
    # Known before any request was sent.
    assert not (tmp_path / "run/requests.jsonl").exists()
    assert (tmp_path / "run/INCOMPLETE").exists()
    silent = manifest(tmp_path / "run")["ranks"][1]["process_id"]
    assert not list((tmp_path / "run/raw").glob(f"{silent}*.kvt"))


def test_a_rank_that_dies_fails_the_run_and_is_named(model, tmp_path):
    done = run(model, tmp_path / "run", "-tp", "2", "--fault", "rank-dies", "--fault-rank", "1")
    assert done.returncode == 3
    assert "Worker_TP1 (process " in done.stderr
    assert "died, killed by SIGKILL" in done.stderr
    assert manifest(tmp_path / "run")["outcome"]["engine_last_signal"] == "SIGINT"


def test_a_command_is_held_to_the_ranks_that_its_processes_tell_of(model, tmp_path):
    """`exec` knows no sizes, but each process says what it is one of."""
    serve = tmp_path / "serve.py"
    serve.write_text(SERVE)
    failed = kvtrace(
        *("exec", "--engine", "emulator", "--out", tmp_path / "run"),
        *("--", sys.executable, serve, model, "-pp=2", "--fault=not-attached", "--fault-rank=1"),
    )
    assert failed.returncode == 3
    assert "1 of 2 ranks (pipeline 2 parallel) attached" in failed.stderr
    assert "never did: rank PP1: process" in failed.stderr
    assert manifest(tmp_path / "run")["parallel"] is None
    assert (tmp_path / "run/INCOMPLETE").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-tp", "2", "--fault-rank", "2"), "--fault-rank: found 2, expected less than 2"),
        (("--distributed-executor-backend", "ray"), "ray: this interpreter has no Ray"),
        (("-pp", "4"), "--pipeline-parallel-size: found 4, expected at most 3, the layers"),
    ],
)
def test_what_no_engine_can_be_made_of_is_refused_in_one_sentence(
    model, arguments, message, monkeypatch
):
    monkeypatch.setitem(sys.modules, "ray", None)
    arguments = _parser().parse_args(["serve", str(model), "--port", "1", *arguments])
    with pytest.raises(ConfigError, match=message):
        assemble(arguments, read_shape(model))


def test_an_engine_with_a_worker_that_cannot_start_ends_at_once(model):
    """And so do the workers and replicas that could."""
    command = [sys.executable, "-m", "kvtrace_cli.emulator", "serve", str(model), "--port", "1"]
    done = subprocess.run(
        [*command, "-tp", "2", "-dp", "2", "--library", str(model / "requests.jsonl")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("ERROR Engine core initialization failed: EngineCore_DP0 (process ")
    assert "EngineCore failed to start: Worker_DP0_TP0 (process " in done.stdout


# Starts the engine, and ends it when it is ready.
SERVE = """
import signal, socket, subprocess, sys, time, urllib.request
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = str(probe.getsockname()[1])
serve = [sys.executable, "-m", "kvtrace_cli.emulator", "serve", *sys.argv[1:], "--port", port]
engine = subprocess.Popen(serve)
while engine.poll() is None:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
        engine.send_signal(signal.SIGINT)
        break
    except OSError:
        time.sleep(0.05)
sys.exit(engine.wait())
"""
