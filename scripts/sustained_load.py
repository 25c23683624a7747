#!/usr/bin/env python3
"""Record a long load of long prompts with `kvtrace run`, and say what rate it held without a drop.

    python3 scripts/sustained_load.py --events 200000000 --out DIR -- --python VLLM_PYTHON
    python3 scripts/sustained_load.py --engine emulator --events 1000000 --out DIR

Every token of a prompt enters the cache kernel once a layer, so prompts make events fastest: as
many prompts are sent as it takes for --events, --concurrency at a time, each with one output token.
While it runs the headers and sizes of the recorded files are looked at twice a second; then comes
what `kvtrace run` itself does at its end, reconciling. DIR/load.json has the figures and every
look; what follows -- goes to `kvtrace run`. Exit 1 if the run did not agree, an event was dropped,
or there were fewer than asked for. Room on the disk for 64 bytes an event is checked first.
"""

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from kvtrace_cli.capture.live import read_counters
from kvtrace_cli.console import out
from kvtrace_cli.dumps import abi
from kvtrace_cli.reports.cells import new_table

LOOK_S = 0.5
KIB = 1024
# Beside the events: launch records, prompts, logs, and what others write meanwhile.
DISK_SLACK = 1.25


@dataclass(frozen=True)
class Look:
    """What had been recorded, and how much disk it took, so long after the start."""

    at_s: float
    events: int
    dropped: int
    disk_bytes: int


def write_requests(path: Path, args: argparse.Namespace) -> int:
    """Write as many long prompts as it takes; return how many. No two are alike."""
    a_prompt: int = args.prompt_tokens * args.layers
    count: int = -(-args.events // a_prompt)
    lines = (
        json.dumps({"prompt_tokens": args.prompt_tokens, "seed": seed, "max_tokens": 1})
        for seed in range(1, count + 1)
    )
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return count


def command_of(args: argparse.Namespace, requests: Path, run: Path) -> list[str]:
    """Return the `kvtrace run` that makes the load."""
    command = [sys.executable, "-m", "kvtrace_cli", "run", "--model", args.model]
    command += ["--engine", args.engine, "--weights", "dummy", "--out", str(run), "--no-steps"]
    command += ["--requests", str(requests), "--concurrency", str(args.concurrency)]
    command += ["--max-num-batched-tokens", str(args.batched_tokens)]
    command += ["--ring-events", str(args.ring_events), "--json"]
    return [*command, *args.more]


def look(raw: Path, begin: float) -> Look:
    """Read what the injector has written so far."""
    counters = read_counters(raw)
    sizes = (path.stat().st_size for path in raw.glob("*.kvt"))
    return Look(round(time.monotonic() - begin, 3), counters.events, counters.dropped, sum(sizes))


def run_load(command: Sequence[str], directory: Path, run: Path, timeout: float) -> dict[str, Any]:
    """Run it to its end, looking at it; return its exit code, the looks, and its memory."""
    begin = time.monotonic()
    looks: list[Look] = []
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with (directory / "run.json").open("w") as text, (directory / "run.log").open("w") as log:
        process = subprocess.Popen(command, stdout=text, stderr=log, env=environment)
        status = 0
        pid = 0
        while pid == 0:
            # An interrupt reaches the whole group: what it is told of ends in order.
            with contextlib.suppress(KeyboardInterrupt):
                if time.monotonic() - begin > timeout:
                    process.terminate()
                    timeout = math.inf
                time.sleep(LOOK_S)
                if (run / "raw").is_dir():
                    looks.append(look(run / "raw", begin))
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if (run / "raw").is_dir():
            looks.append(look(run / "raw", begin))
        process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "exit_code": process.returncode,
        "seconds": round(time.monotonic() - begin, 2),
        "launcher_peak_mib": round(usage.ru_maxrss / KIB),
        "looks": looks,
    }


def rates(looks: Sequence[Look]) -> dict[str, Any]:
    """Return what was held from the first tenth of the events to the last, and the fastest second.

    Start-up has events of its own, and the last look at them is long before the run's end.
    """
    last = looks[-1]
    under_load = [one for one in looks if last.events * 0.1 <= one.events <= last.events * 0.98]
    if len(under_load) < 2:  # noqa: PLR2004  a rate lies between two
        return {"events_per_s": None, "bytes_per_s": None, "fastest_events_per_s": None}
    first, end = under_load[0], under_load[-1]
    span = end.at_s - first.at_s
    steps = zip(under_load, under_load[2:], strict=False)
    fastest = max(((b.events - a.events) / (b.at_s - a.at_s) for a, b in steps), default=None)
    return {
        "events_per_s": (end.events - first.events) / span,
        "bytes_per_s": (end.disk_bytes - first.disk_bytes) / span,
        "fastest_events_per_s": fastest,
    }


def summary(args: argparse.Namespace, prompts: int, done: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a finished load."""
    looks: list[Look] = done["looks"]
    last = looks[-1]
    all_there = next(one.at_s for one in looks if one.events == last.events)
    return {
        "schema_version": 1,
        "engine": args.engine,
        "prompts": prompts,
        "prompt_tokens": args.prompt_tokens,
        "concurrency": args.concurrency,
        "ring_events": args.ring_events,
        "exit_code": done["exit_code"],
        "seconds": done["seconds"],
        "launcher_peak_mib": done["launcher_peak_mib"],
        "events": last.events,
        "dropped": last.dropped,
        "disk_bytes": last.disk_bytes,
        **rates(looks),
        "seconds_after_last_event": max(0.0, round(done["seconds"] - all_there, 2)),
    }


def tell(found: dict[str, Any]) -> None:
    """Print the figures."""
    table = new_table("Sustained load" + (" (EMULATED)" if found["engine"] == "emulator" else ""))
    table.add_column("figure")
    table.add_column("", justify="right")
    for name, value in found.items():
        if name != "schema_version":
            is_number = isinstance(value, (int, float))
            table.add_row(name.replace("_", " "), f"{value:,.0f}" if is_number else str(value))
    out.print(table)


def main() -> int:
    """Make the load; 1 if anything was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="Qwen3-14B")
    parser.add_argument("--engine", default="vllm", choices=("vllm", "emulator"))
    parser.add_argument("--layers", type=int, default=40, help="of the model")
    parser.add_argument("--events", type=int, default=200_000_000, help="at least this many")
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--batched-tokens", type=int, default=8192, help="tokens of a step")
    parser.add_argument("--ring-events", type=int, default=1 << 20)
    parser.add_argument("--timeout", type=float, default=1500, help="seconds; then it is stopped")
    parser.add_argument("--out", type=Path, required=True, help="a directory that is not there yet")
    parser.add_argument("more", nargs="*", metavar="-- OPTIONS OF kvtrace run")
    args = parser.parse_args()
    if min(args.events, args.prompt_tokens - 1, args.layers, args.concurrency) < 1:
        parser.error("--events, --layers, --concurrency: expected 1 or more; --prompt-tokens: 2")
    args.out.mkdir(parents=True)
    wanted = int(args.events * abi.size_of(abi.EVENTS_STRUCT) * DISK_SLACK)
    free = shutil.disk_usage(args.out).free
    if free < wanted:
        parser.error(f"--out: {free:,} bytes are free, expected {wanted:,}; choose another place")
    requests, run = args.out / "requests.jsonl", args.out / "run"
    prompts = write_requests(requests, args)
    done = run_load(command_of(args, requests, run), args.out, run, args.timeout)
    if not done["looks"]:
        print(f"exit code {done['exit_code']} before anything ran: {args.out}/run.log")
        return 1
    found = summary(args, prompts, done)
    looks = [asdict(one) for one in done["looks"]]
    (args.out / "load.json").write_text(json.dumps(found | {"looks": looks}), encoding="utf-8")
    tell(found)
    is_short = found["events"] < args.events
    return 1 if found["exit_code"] or found["dropped"] or is_short else 0


if __name__ == "__main__":
    sys.exit(main())
