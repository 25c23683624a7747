#!/usr/bin/env python3
"""Record many block events of concurrent emulated requests, then time `kvtrace reconcile`.

    python3 scripts/measure_emulated_load.py --events 10000000 --out DIR

Prints how many events were written and dropped, how long the load took, and time and peak
resident memory of the reconciling process. Exit 1 if an event was lost, the counts disagree, or
there were fewer events than asked for.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kvtrace_cli.capture.client import EngineClient
from kvtrace_cli.capture.injection import compose_environment, write_injector_config
from kvtrace_cli.capture.libraries import find_emulator_library, find_injector
from kvtrace_cli.capture.live import read_counters, wait_quiet
from kvtrace_cli.capture.server import Server, free_port
from kvtrace_cli.config import RecordingConfig, RequestSpec, Role, TimeLimits
from kvtrace_cli.dumps.run_dir import RunDir

MODEL = Path(__file__).parents[1] / "kvtrace_cli" / "data" / "qwen3-14b"
LAYERS = 40
CONCURRENT = 20
CAPTURE_SIZES = (1, 2, 4, 8, 16, 32)
PROMPT_TOKENS = 1000
KIB = 1024


def start_engine(run_dir: RunDir, port: int, max_model_len: int, ring_events: int) -> Server:
    """Start the emulated engine under the injector."""
    recording = RecordingConfig(ring_events=ring_events)
    config_path = run_dir.injector_config.absolute()
    library = find_emulator_library(None)
    write_injector_config(
        config_path,
        recording,
        raw_dir=run_dir.raw.absolute(),
        sanitizer_library=library,
        emulated=True,
    )
    injector = find_injector(None).path
    environment = compose_environment(
        os.environ, recording, injector=injector, config_path=config_path
    )
    command = [sys.executable, "-m", "kvtrace_cli.emulator", "serve", str(MODEL)]
    command += ["--served-model-name", "m", "--port", str(port)]
    command += ["--max-num-seqs", str(CONCURRENT), "--max-num-batched-tokens", "2048"]
    command += ["--capture-sizes", ",".join(map(str, CAPTURE_SIZES))]
    command += ["--max-model-len", str(max_model_len)]
    return Server.start(
        command, environment, run_dir=run_dir.path.absolute(), log_path=run_dir.server_log
    )


def send_load(run_dir: RunDir, port: int, max_tokens: int) -> int:
    """Send the concurrent requests; write requests.jsonl; return how many failed."""
    prompt = tuple(range(10, 10 + PROMPT_TOKENS))
    spec = RequestSpec(Role.MEASURED, prompt, max_tokens)
    limits = TimeLimits(request_s=600)

    def send(index: int) -> tuple[str, str | None]:
        record = EngineClient(port, "m", limits).send(index, spec)
        return record.to_json(), record.error

    with ThreadPoolExecutor(CONCURRENT) as pool:
        answers = list(pool.map(send, range(CONCURRENT)))
    run_dir.requests.write_text("".join(f"{line}\n" for line, _ in answers))
    return sum(error is not None for _, error in answers)


def time_reconcile(out: Path) -> int:
    """Reconcile in a process of its own; print its time, its peak memory and its last lines."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "kvtrace_cli", "reconcile", str(out)]
    with (out / "reconcile.txt").open("w") as text:
        process = subprocess.Popen(command, stdout=text, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    print(
        f"reconcile: exit {code}, {time.monotonic() - begin:.2f} s, "
        f"peak resident memory {usage.ru_maxrss / KIB:,.0f} MiB"
    )
    print((out / "reconcile.txt").read_text().rstrip().rpartition("\n\n")[2])
    return code


def main() -> int:
    """Load, reconcile, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--events", type=int, default=10_000_000, help="at least this many")
    parser.add_argument("--ring-events", type=int, default=RecordingConfig.ring_events)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    run_dir = RunDir(args.out)
    run_dir.raw.mkdir(parents=True)
    run_dir.manifest.write_text(json.dumps({"schema_version": 1, "engine": "emulator"}))
    run_dir.complete_marker.touch()

    in_prompts = CONCURRENT * PROMPT_TOKENS * LAYERS
    a_step = CAPTURE_SIZES[-1] * LAYERS
    # Near the ends fewer requests run, in smaller graphs.
    steps = (args.events - in_prompts) // a_step
    max_tokens = max(8, steps + steps // 10 + 64)
    port, limits = free_port(), TimeLimits()
    server = start_engine(run_dir, port, PROMPT_TOKENS + max_tokens, args.ring_events)
    client = EngineClient(port, "m", limits)
    server.wait_ready(client.is_healthy, limits, lambda: None)
    begin = time.monotonic()
    failed = send_load(run_dir, port, max_tokens)
    load_s = time.monotonic() - begin
    wait_quiet(run_dir.raw, limits, lambda _: None)
    server.stop(limits, ready=True)
    counters = read_counters(run_dir.raw)
    print(
        f"{CONCURRENT} requests of {PROMPT_TOKENS} + {max_tokens} tokens, {failed} failed: "
        f"{counters.events:,} events, {counters.launches:,} launches, {counters.dropped} dropped, "
        f"{load_s:.1f} s ({counters.events / load_s:,.0f} events/s)",
        flush=True,
    )
    status = time_reconcile(args.out)
    is_short = counters.events < args.events
    return 1 if failed or is_short or counters.dropped or status else 0


if __name__ == "__main__":
    sys.exit(main())
