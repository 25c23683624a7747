"""Runs the jobs of our CI examples as GitHub's and GitLab's runners would: their scripts, in bash.

Of `uses` steps it knows those that the examples have. An expression it does not know is an error.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
_EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")
# What leaves the machine's set-up out of a step's.
_KEPT = ("HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR")


@dataclass(frozen=True)
class Step:
    """What became of one step; `code` is None if it was skipped."""

    name: str
    code: int | None
    stdout: str = ""
    stderr: str = ""
    summary: str = ""


@dataclass
class Runner:
    """A machine with a checked-out workspace, and the artifacts that its jobs share."""

    workspace: Path
    artifacts: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        self.workspace.mkdir(exist_ok=True)
        self.artifacts.mkdir(exist_ok=True)

    def job(self, workflow, name):
        """Run a job of a GitHub workflow; return its steps by name."""
        document = yaml.safe_load(workflow.read_text(encoding="utf-8"))
        env = {key: str(value) for key, value in document["env"].items()} | self.env
        return self._steps(document["jobs"][name]["steps"], env, {})

    def action(self, action, **inputs):
        """Run a composite action with these inputs; return its steps by name."""
        document = yaml.safe_load(action.read_text(encoding="utf-8"))
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        assert given.keys() <= document["inputs"].keys()
        for name, about in document["inputs"].items():
            assert name in given or not about.get("required"), name
            given.setdefault(name, about.get("default"))
        env = {"GITHUB_ACTION_PATH": str(action.parent)} | self.env
        return self._steps(document["runs"]["steps"], env, given)

    def gitlab_job(self, configuration, name):
        """Run the script of a GitLab job as one; return it as a step."""
        document = yaml.safe_load(configuration.read_text(encoding="utf-8"))
        env = {key: str(value) for key, value in document["variables"].items()} | self.env
        return self._run(name, "\n".join(document[name]["script"]), env)

    def _steps(self, steps, env, inputs):
        done = {}
        for number, step in enumerate(steps):
            name = step.get("name") or step["uses"]
            failed = any(one.code for one in done.values())
            if failed and step.get("if") != "${{ !cancelled() }}":
                done[name] = Step(name, None)
            elif "uses" in step:
                self._use(step)
                done[name] = Step(name, 0)
            else:
                own = {key: _resolved(value, inputs) for key, value in step.get("env", {}).items()}
                assert "${{" not in step["run"], "an expression in a script is an injection"
                done[name] = self._run(f"{number} {name}", step["run"], env | own)
        return done

    def _use(self, step):
        """Stand in for an action: the workspace is checked out, and Python is there."""
        action, given = step["uses"].split("@")[0], step.get("with", {})
        if action == "actions/upload-artifact":
            (self.artifacts / given["name"]).mkdir(exist_ok=True)
            shutil.copy(self.workspace / given["path"], self.artifacts / given["name"])
        elif action == "actions/download-artifact":
            shutil.copytree(self.artifacts / given["name"], self.workspace, dirs_exist_ok=True)
        else:
            assert action in {"actions/checkout", "actions/setup-python"}, action

    def _run(self, name, script, env):
        summary = self.artifacts / f"summary of {name}"
        summary.touch()
        kept = {key: os.environ[key] for key in _KEPT if key in os.environ}
        # This interpreter's kvtrace is the one to test; pip must find it and ask nobody for it.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ours = {"PATH": path, "PIP_NO_INDEX": "1", "GITHUB_STEP_SUMMARY": str(summary)}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.workspace,
            env=kept | ours | env,
            capture_output=True,
            text=True,
            check=False,
        )
        told = summary.read_text(encoding="utf-8")
        return Step(name, done.returncode, done.stdout, done.stderr, told)


def _resolved(value, inputs):
    def resolve(found):
        source, name = found[1].split(".")
        assert source == "inputs", found[1]
        return str(inputs[name])

    return _EXPRESSION.sub(resolve, value)
