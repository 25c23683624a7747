#!/usr/bin/env python3
"""Measure what the injector's node callback costs the host, without a GPU.

    python3 scripts/measure_node_callbacks.py [REPLAYS]

Prints one JSON line for each of a few ways to record: median ns per callback of a node that is no
target, and of one that is. A target's has the emulator's own share of binding a stamp in it, which
`stamps: false` leaves out. Figures are in docs/measurements.md.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "emulator")]

from emulated import build, prepare  # noqa: E402  found by the line above

WAYS = ({"stamps": True}, {"stamps": False})


def main() -> None:
    """Measure each way once."""
    replays = sys.argv[1] if len(sys.argv) > 1 else "3000"
    built = build("fast")
    for way in WAYS:
        with tempfile.TemporaryDirectory() as directory:
            _, environment = prepare(built, Path(directory) / "run", **way)
            done = subprocess.run(
                [built.directory / "node_callbacks", replays],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
        print(json.dumps(way | json.loads(done.stdout)))


if __name__ == "__main__":
    main()
