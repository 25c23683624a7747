"""Runs of the emulated engine as a user starts them, with the libraries that are in the package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODEL = "Qwen3-14B"
_NATIVE = ROOT / "kvtrace_cli/native"
# So tables have one width, and kvtrace need not be installed.
_ENVIRONMENT = {"COLUMNS": "80", "PYTHONPATH": str(ROOT)}

needs_libraries = pytest.mark.skipif(
    not all((_NATIVE / f"libkvtrace_{name}.so").exists() for name in ("injector", "emulator")),
    reason="not built; `make injector emulator` does it",
)


def run_arguments(out, *options, model=MODEL, engine=()):
    """Return what `kvtrace` is given for a run into `out`; `engine` is for the engine itself."""
    ours = ["run", "--engine", "emulator", "--model", str(model), "--weights", "dummy"]
    return [*ours, "--out", str(out), *options, *(["--", *engine] if engine else [])]


def as_program(*arguments):
    """Return the command that is kvtrace as a program of its own."""
    return [sys.executable, "-m", "kvtrace_cli", *map(str, arguments)]


def environment(**more):
    """Return an environment for `as_program`."""
    return os.environ | _ENVIRONMENT | more


def kvtrace(*arguments, **more):
    """Run kvtrace as a program; `more` goes into its environment."""
    return subprocess.run(
        as_program(*arguments),
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def small_model(directory, *, layers, requests):
    """Write a model of few layers, so that a run is short, and a file of requests to send it."""
    shipped = json.loads((ROOT / "kvtrace_cli/data/qwen3-14b/config.json").read_text())
    (directory / "config.json").write_text(json.dumps(shipped | {"num_hidden_layers": layers}))
    lines = "".join(f"{json.dumps(one)}\n" for one in requests)
    (directory / "requests.jsonl").write_text(lines)
    return directory
