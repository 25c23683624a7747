#!/usr/bin/env python3
"""Reconcile run directories, each in a process of its own, and print what that took.

    python scripts/measure_reconcile.py DIR... [--cores 2]

Work is what `kvtrace reconcile` does once the interpreter and its libraries are loaded; its CPU
time is of all cores together, and hangs less on what else the machine does. The files are read from
the page cache if the machine has them there. scripts/make_large_run.py writes large runs.
"""

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parents[1]
MIB_KIB = 1024


def cpu_model() -> str:
    """Return what /proc/cpuinfo calls the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "?")


def cpu_seconds() -> float:
    """Return the CPU time of this process so far, all threads together."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def reconcile_here(run_dir: Path) -> dict[str, float]:
    """Reconcile in this process and return what it took."""
    sys.path.insert(0, str(ROOT))
    from kvtrace_cli.commands.output_options import Outputs  # noqa: PLC0415 - not measured
    from kvtrace_cli.commands.reconcile import reconcile_run  # noqa: PLC0415
    from kvtrace_cli.dumps import recording  # noqa: F401, PLC0415

    began, cpu_began = time.monotonic(), cpu_seconds()
    with redirect_stdout(io.StringIO()):
        code = reconcile_run(run_dir, allow_incomplete=False, outputs=Outputs("measure"))
    return {
        "exit": int(code),
        "work_s": time.monotonic() - began,
        "cpu_s": cpu_seconds() - cpu_began,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB_KIB,
    }


def measured(run_dir: Path, cores: int) -> dict[str, float]:
    """Reconcile in a process that may use so many cores."""
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    done = subprocess.run(
        [sys.executable, __file__, str(run_dir), "--here"],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"POLARS_MAX_THREADS": str(len(chosen))},
        preexec_fn=lambda: os.sched_setaffinity(0, chosen),
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    """Measure each; 1 if one does not agree."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--here", action="store_true", help="in this process, as JSON")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(reconcile_here(args.runs[0])))
        return 0
    print(f"{args.cores} cores, {cpu_model()}")
    codes = set()
    for run_dir in args.runs:
        found = measured(run_dir, args.cores)
        dumps = json.loads((run_dir / "summary.json").read_text())["dumps"]
        print(
            f"{run_dir}: {dumps['events_written']:,} events, {dumps['launches_written']:,} "
            f"launches: exit {found['exit']}, {found['work_s']:.2f} s of work, "
            f"{found['cpu_s']:.2f} s of CPU, peak {found['peak_mib']:,.0f} MiB",
            flush=True,
        )
        codes.add(found["exit"])
    return int(codes != {0})


if __name__ == "__main__":
    sys.exit(main())
