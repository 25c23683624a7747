#!/usr/bin/env python3
"""Print the engine that this machine can run: vllm, or emulator and one sentence why on stderr."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kvtrace_cli.capture.preflight import run_preflight
from kvtrace_cli.config import EngineConfig, RecordingConfig


def main() -> int:
    """Print the name."""
    failed = run_preflight(EngineConfig(), RecordingConfig()).failed
    if failed:
        reasons = "; ".join(f"{check.name}: {check.found}" for check in failed)
        print(
            f"vLLM cannot be traced here ({reasons}), so this runs the emulated engine, which "
            "needs no GPU.",
            file=sys.stderr,
        )
    print("emulator" if failed else "vllm")
    return 0


if __name__ == "__main__":
    sys.exit(main())
