"""The CI examples of docs/ci and the action: valid, and run as they are written, without a GPU."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from emulated_runs import needs_libraries, run_arguments
from junitparser import JUnitXml
from workflow_runner import ROOT, Runner

from kvtrace_cli.app import main

CI = ROOT / "docs/ci"
WORKFLOW, GITLAB, ACTION = CI / "github-workflow.yml", CI / "gitlab-ci.yml", ROOT / "action.yml"
BASELINE = CI / "kvtrace-baseline.json"
# The run that the committed baseline was saved from, and one whose steps were not recorded.
RECORDED = ROOT / "tests/data/h200-writes"
OTHER = ROOT / "tests/data/h200-fa3"
SCHEMAS = {WORKFLOW: "github-workflows", ACTION: "github-actions", GITLAB: "gitlab-ci"}


@pytest.fixture
def runner(tmp_path):
    return Runner(tmp_path / "workspace", tmp_path / "artifacts", env={"ENGINE": "emulator"})


def counts(path):
    document = JUnitXml.fromfile(str(path))
    return document.tests, document.failures, document.errors


def codes(steps):
    return {name: step.code for name, step in steps.items() if "/" not in name}


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_an_example_is_valid(path):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    done = subprocess.run(
        [*command, f"vendor.{SCHEMAS[path]}", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def scripts(path):
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    jobs = [document.get("runs"), *document.get("jobs", {}).values(), *document.values()]
    for job in jobs:
        if isinstance(job, dict):
            yield from (step["run"] for step in job.get("steps", ()) if "run" in step)
            yield "\n".join(job.get("script", ()))


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_the_scripts_are_clean(path):
    found = [script for script in scripts(path) if script]
    assert found
    for script in found:
        command = ["shellcheck", "--shell", "bash", "-"]
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        done = subprocess.run(
            command, input=script, capture_output=True, text=True, check=False, env={"PATH": path}
        )
        assert done.returncode == 0, done.stdout


def test_the_baseline_in_the_repository_is_small_and_the_recorded_run_still_is_the_same(runner):
    assert BASELINE.stat().st_size < 20_000
    steps = runner.action(ACTION, baseline=BASELINE, run=RECORDED, package="kvtrace")
    assert codes(steps) == {"Install kvtrace": 0, "Compare": 0}
    compared = steps["Compare"]
    assert re.search(r"^same: \d+ rules looked at", compared.stdout, flags=re.MULTILINE)
    assert re.search(r"^::notice title=kvtrace diff ", compared.stdout, flags=re.MULTILINE)
    assert compared.summary.startswith("## ✅ kvtrace diff ")
    tests, failures, errors = counts(runner.workspace / "kvtrace-diff.xml")
    assert tests > 20
    assert failures == errors == 0


def test_the_action_passes_its_inputs_on(runner):
    steps = runner.action(
        ACTION,
        baseline=BASELINE,
        run=RECORDED,
        package="kvtrace",
        allow="requests model-shape",
        max_regression="7.5",
        junit="my tests.xml",
    )
    assert codes(steps)["Compare"] == 0
    assert (runner.workspace / "my tests.xml").exists()
    for wrong in ({"allow": "nonsense"}, {"max_regression": "-1"}):
        steps = runner.action(ACTION, baseline=BASELINE, run=RECORDED, package="kvtrace", **wrong)
        assert codes(steps)["Compare"] == 2, wrong
        assert "::error title=kvtrace diff ended with an error" in steps["Compare"].stdout


def test_the_action_fails_if_the_runs_cannot_be_compared(runner):
    steps = runner.action(ACTION, baseline=BASELINE, run=OTHER, package="kvtrace")
    assert codes(steps)["Compare"] == 4
    assert steps["Compare"].summary.startswith("## ⚠️ kvtrace diff ")
    assert "\n::error title=kvtrace diff " in steps["Compare"].stdout
    assert counts(runner.workspace / "kvtrace-diff.xml")[2] > 0


def test_the_action_fails_if_a_file_is_not_there(runner):
    steps = runner.action(ACTION, baseline="none.json", run=RECORDED, package="kvtrace")
    assert codes(steps)["Compare"] == 2
    assert counts(runner.workspace / "kvtrace-diff.xml") == (1, 0, 1)
    assert "none.json" in steps["Compare"].summary


def test_comparing_needs_two_summary_files_and_nothing_else(runner):
    shutil.copy(BASELINE, runner.workspace / "kvtrace-baseline.json")
    handed_on = runner.artifacts / "kvtrace-run"
    handed_on.mkdir()
    shutil.copy(BASELINE, handed_on / "kvtrace-run.json")
    compared = runner.job(WORKFLOW, "compare")
    assert codes(compared) == {"Install kvtrace": 0, "Compare": 0}
    assert "::notice title=kvtrace diff " in compared["Compare"].stdout
    assert counts(runner.artifacts / "kvtrace-diff/kvtrace-diff.xml")[1:] == (0, 0)


def emulated_baseline(path, *arguments):
    run = path.with_suffix("")
    assert main(run_arguments(run, *arguments)) == 0
    assert main(["baseline", "save", str(run), "-o", str(path)]) == 0


@needs_libraries
def test_the_workflow_runs_as_written(runner, tmp_path):
    """Its GPU job too: with the emulator for vLLM, which is all that differs."""
    recorded = runner.job(WORKFLOW, "record")
    assert codes(recorded) == dict.fromkeys(("Install kvtrace", "Record", "Reconcile", "Shrink"), 0)
    assert recorded["Reconcile"].summary.startswith("## ✅ kvtrace reconcile kvtrace-run: agrees")
    other = Runner(tmp_path / "other machine", runner.artifacts)
    emulated_baseline(other.workspace / "kvtrace-baseline.json")
    compared = other.job(WORKFLOW, "compare")
    assert codes(compared) == {"Install kvtrace": 0, "Compare": 0}
    assert compared["Compare"].summary.startswith("## ✅ kvtrace diff ")
    assert counts(runner.artifacts / "kvtrace-diff/kvtrace-diff.xml")[1:] == (0, 0)


@needs_libraries
def test_the_workflow_fails_where_the_cache_is_written_otherwise(runner):
    """Other graphs were captured: rows are padded to 8."""
    assert codes(runner.job(WORKFLOW, "record"))["Shrink"] == 0
    emulated_baseline(runner.workspace / "kvtrace-baseline.json", "--", "--capture-sizes", "8")
    compared = runner.job(WORKFLOW, "compare")
    assert codes(compared)["Compare"] == 1
    assert compared["Compare"].summary.startswith("## ❌ kvtrace diff ")
    assert "\n::error title=kvtrace diff " in compared["Compare"].stdout
    # Kept although the step before has failed.
    assert counts(runner.artifacts / "kvtrace-diff/kvtrace-diff.xml")[1] > 0


def test_a_recording_that_fails_is_told_and_never_compared(runner):
    runner.env["ENGINE"] = "nonsense"
    recorded = runner.job(WORKFLOW, "record")
    found = codes(recorded)
    assert found == {"Install kvtrace": 0, "Record": 2, "Reconcile": 2, "Shrink": None}
    assert "::error title=kvtrace reconcile ended with an error" in recorded["Reconcile"].stdout
    assert not (runner.artifacts / "kvtrace-run").exists()


@needs_libraries
def test_the_gitlab_jobs_run_as_written(runner):
    done = runner.gitlab_job(GITLAB, "record")
    assert done.code == 0, done.stderr
    assert counts(runner.workspace / "kvtrace-reconcile.xml")[1:] == (0, 0)
    run = runner.workspace / "kvtrace-run.json"
    shutil.copy(run, runner.workspace / "kvtrace-baseline.json")
    assert runner.gitlab_job(GITLAB, "compare").code == 0
    assert counts(runner.workspace / "kvtrace-diff.xml")[1:] == (0, 0)
    shutil.copy(BASELINE, runner.workspace / "kvtrace-baseline.json")
    assert runner.gitlab_job(GITLAB, "compare").code == 4
    assert counts(runner.workspace / "kvtrace-diff.xml")[2] > 0


def test_the_step_in_the_guide_gives_inputs_that_the_action_has():
    guide = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    (step,) = yaml.safe_load(re.search(r"```yaml\n(.*?)```", guide, flags=re.DOTALL)[1])
    inputs = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["inputs"]
    required = {name for name, about in inputs.items() if about.get("required")}
    assert required <= step["with"].keys() <= inputs.keys()


def test_gitlab_keeps_the_files_that_the_jobs_write():
    document = yaml.safe_load(GITLAB.read_text(encoding="utf-8"))
    for name in document["stages"]:
        script = " ".join(document[name]["script"])
        artifacts = document[name]["artifacts"]
        assert artifacts["when"] == "always"
        for path in (*artifacts.get("paths", ()), artifacts["reports"]["junit"]):
            assert path in script
