"""Run the test programs under the injector, and judge what it recorded by what really ran."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from kvtrace_cli.analysis.model import Reconciliation
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.capture.injection import LATE_PATCHING_VARIABLE, write_injector_config
from kvtrace_cli.config import PatchAt, RecordingConfig
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import RunDir

ROOT = Path(__file__).parents[2]
TARGETS = ("probe_target", "probe_target_b", "probe_target_graph_only")
MISALIGNED_ADDRESS = 716
SUPPRESSIONS = Path(__file__).with_name("tsan_suppressions.txt")
# Leaks are by design: the driver calls back while the process exits.
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=66",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": f"die_after_fork=0:exitcode=66:suppressions={SUPPRESSIONS}",
}


@dataclass(frozen=True)
class Build:
    """The programs and libraries of one flavour."""

    directory: Path

    @property
    def cases(self) -> Path:
        return self.directory / "emulator_cases"

    @property
    def binding_table(self) -> Path:
        return self.directory / "binding_table"

    @property
    def lifetime(self) -> Path:
        return self.directory / "kvtrace_lifetime_emulated"

    @property
    def injector(self) -> Path:
        return self.directory / "libkvtrace_injector.so"

    @property
    def emulator(self) -> Path:
        return self.directory / "libkvtrace_emulator.so"


@cache
def build(flavour: str) -> Build:
    """Build what is not built yet; skip where there is no compiler or header for it."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    found = subprocess.run(
        [sys.executable, ROOT / "scripts/cuda_toolchain.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip(found.stderr.strip())
    directory = ROOT / "build" / "emulator_tests" / flavour
    directory.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        [
            *("make", "--no-print-directory", "-j2", "-C", ROOT / "tests/emulator"),
            *(f"FLAVOUR={flavour}", f"BUILD={directory}", *found.stdout.split()),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return Build(directory)


@dataclass(frozen=True)
class Done:
    """How a program under the injector ended, and what it left behind."""

    status: int
    output: str
    errors: str
    run_dir: RunDir

    @property
    def truth(self) -> dict:
        """The first JSON line that the program printed."""
        lines = [line for line in self.output.splitlines() if line.startswith("{")]
        return json.loads(lines[0])

    def files(self) -> list[str]:
        return sorted(path.name for path in self.run_dir.raw.iterdir())

    def journal(self) -> list[dict]:
        return [
            json.loads(line)
            for path in self.run_dir.journals()
            for line in path.read_text().splitlines()
        ]

    def reconciled(self) -> Reconciliation:
        return reconcile(read_recording(self.run_dir))


def prepare(
    built: Build, directory: Path, *, loaded_by: str = "injection", **recording: object
) -> tuple[RunDir, dict[str, str]]:
    """Make a run directory; return it and the environment that records into it."""
    run_dir = RunDir(directory)
    run_dir.raw.mkdir(parents=True)
    run_dir.manifest.write_text(json.dumps({"schema_version": 1, "engine": "emulator"}))
    run_dir.complete_marker.touch()
    write_injector_config(
        run_dir.injector_config,
        RecordingConfig(**{"kernels": TARGETS, "ring_events": 1 << 16} | recording),
        raw_dir=run_dir.raw,
        sanitizer_library=built.emulator,
        emulated=True,
    )
    ours = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = ours | SANITIZER_OPTIONS | {"KVTRACE_CONFIG": str(run_dir.injector_config)}
    if loaded_by in ("injection", "both"):
        environment["CUDA_INJECTION64_PATH"] = str(built.injector)
    if loaded_by in ("preload", "both"):
        environment["LD_PRELOAD"] = str(built.injector)
    if recording.get("patch_at") is PatchAt.FIRST_LAUNCH_END:
        environment[LATE_PATCHING_VARIABLE] = "1"
    return run_dir, environment


def run_case(
    built: Build,
    directory: Path,
    case: str,
    *,
    loaded_by: str = "injection",
    environment: dict[str, str] | None = None,
    without: Collection[str] = (),
    timeout_s: float = 120,
    **recording: object,
) -> Done:
    """Run one case of emulator_cases in a process of its own."""
    run_dir, ours = prepare(built, directory, loaded_by=loaded_by, **recording)
    done = subprocess.run(
        [built.cases, case],
        env={
            name: text for name, text in (ours | (environment or {})).items() if name not in without
        },
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr, run_dir)


def run_untraced(built: Build, case: str) -> tuple[int, str]:
    """Run one case without the injector: exit status and output to compare with."""
    done = subprocess.run(
        [built.cases, case], env={}, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout
