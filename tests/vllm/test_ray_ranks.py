"""Ranks that are actors of a real Ray cluster, which was there before `kvtrace run`.

The engine is the emulated one: what is looked at is how the recording reaches processes that Ray
starts, and that it is ended before Ray kills them. The environment of `make test-vllm` has Ray.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_engine import REPOSITORY, WITHIN_S

from kvtrace_cli.capture.plugin import ENGINE_SITE
from kvtrace_cli.capture.processes import ProcessTree
from kvtrace_cli.config import TimeLimits
from kvtrace_cli.dumps.run_dir import RunDir, read_journal

pytestmark = pytest.mark.vllm

MARK = "KVTRACE_TEST_CLUSTER"
# Prints what an actor's process was started with.
PROBE = """
import json, ray
ray.init(logging_level="error")
@ray.remote(num_cpus=0)
class Actor:
    def facts(self):
        import os, sys
        return {"environment": dict(os.environ), "path": sys.path}
print(json.dumps(ray.get(Actor.remote().facts.remote())))
"""


@dataclass(frozen=True)
class Cluster:
    """A running cluster, and the environment to reach it in."""

    python: Path
    environment: dict[str, str]


@pytest.fixture(scope="module")
def cluster(setup):
    """Start Ray with nothing of kvtrace's in its environment but the module's path."""
    # Ray's sockets have their paths in it, and those must be short.
    with tempfile.TemporaryDirectory(prefix="kvr") as directory:
        base = {"PATH": os.environ["PATH"], "HOME": directory, "PYTHONPATH": str(REPOSITORY)}
        ray = [str(setup.python.parent / "ray"), "start", "--head", "--port=0", "--num-cpus=2"]
        ray += ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={directory}/r"]
        started = subprocess.Popen(
            ray,
            env=base | {MARK: directory},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = started.communicate(timeout=WITHIN_S)
            assert started.returncode == 0, output
            address = Path(directory, "r/ray_current_cluster").read_text().strip()
            yield Cluster(setup.python, base | {"RAY_ADDRESS": address, "COLUMNS": "80"})
        finally:
            tree = ProcessTree(started.pid, f"{MARK}={directory}")
            tree.end_survivors(TimeLimits(terminate_s=2, kill_s=10))


@pytest.fixture(scope="module")
def ran(cluster, setup, tmp_path_factory):
    """Run two tensor ranks on it."""
    out = tmp_path_factory.mktemp("ray") / "run"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kvtrace_cli", "run", "--engine", "emulator", "--json"),
            *("--model", str(setup.model), "--weights", "dummy", "--out", str(out)),
            *("--python", str(cluster.python), "--ring-events", "4096"),
            *("--", "-tp", "2", "--distributed-executor-backend", "ray"),
        ],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    log = out / "server.log"
    assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")
    return done, RunDir(out)


def test_both_ranks_are_recorded_to_the_end_that_comes_before_the_kill(ran):
    done, run_dir = ran
    assert json.loads(done.stdout)["verdict"] == "agrees"
    assert "kvtrace: ranks 2/2 record" in done.stderr
    manifest = json.loads(run_dir.manifest.read_text())
    assert sorted(one["tensor"] for one in manifest["ranks"]) == [0, 1]
    ended = [line for line in read_journal(run_dir) if line["event"] == "ended"]
    assert [line["reason"] for line in ended] == ["asked", "asked"]
    started = [
        json.loads(path.read_text().splitlines()[0]) for path in run_dir.step_files().values()
    ]
    assert [line["stamped"] for line in started] == [True, True]
    assert [line["several_hosts"] for line in started] == [True, True]


def probe(cluster, environment):
    done = subprocess.run(
        [cluster.python, "-c", PROBE],
        env=cluster.environment | environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_workers_find_the_plug_in_because_the_job_starts_them_with_its_path(cluster, ran):
    """vLLM's own copies come when a worker runs: in time for CUDA, too late for its imports."""
    _, run_dir = ran
    ours = json.loads(run_dir.manifest.read_text())["environment"]
    worker = probe(cluster, ours)
    assert str(ENGINE_SITE) in worker["path"]
    assert str(REPOSITORY) in worker["path"]  # what the cluster has itself
    assert worker["environment"]["KVTRACE_CONFIG"] == ours["KVTRACE_CONFIG"]
    late = {name: text for name, text in ours.items() if name != "RAY_JOB_CONFIG_JSON_ENV_VAR"}
    worker = probe(cluster, late)
    assert str(ENGINE_SITE) not in worker["path"]
    assert "KVTRACE_CONFIG" not in worker["environment"]
    assert "KVTRACE_CONFIG" in late["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"].split(",")
