#!/usr/bin/env python3
"""Print the `kvtrace run` options of what this machine can run.

    python3 scripts/choose_engine.py [PYTHON_WITH_VLLM]

That is vLLM in the given interpreter, else in this one or the first python3 on PATH; or the
emulator, with one sentence why on stderr.
"""

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kvtrace_cli.capture.preflight import Preflight, run_preflight
from kvtrace_cli.config import EngineConfig, RecordingConfig


def candidates(arguments: list[str]) -> list[Path]:
    """Return the interpreters that may have vLLM."""
    if arguments:
        return [Path(arguments[0])]
    found = shutil.which("python3")
    return [Path(sys.executable), *([Path(found)] if found else [])]


def look(python: Path) -> Preflight:
    """Check whether a run with this interpreter's vLLM would work."""
    return run_preflight(EngineConfig(python=python), RecordingConfig())


def main() -> int:
    """Print the options."""
    looks = [(python, look(python).failed) for python in candidates(sys.argv[1:])]
    for python, failed in looks:
        if not failed:
            print(f"--engine vllm --python {python}")
            return 0
    reasons = "; ".join(f"{check.name}: {check.found}" for check in looks[0][1])
    print(
        f"vLLM cannot be traced here ({reasons}), so this runs the emulated engine, which needs "
        "no GPU.",
        file=sys.stderr,
    )
    print("--engine emulator")
    return 0


if __name__ == "__main__":
    sys.exit(main())
