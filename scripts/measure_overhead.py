#!/usr/bin/env python3
"""Measure what recording costs: one server for each arm, all on one GPU, asked in turn.

    python3 scripts/measure_overhead.py --out DIR [--rounds 5] [--engine vllm|emulator]

Arms: clean (no kvtrace), blocks (block entries only), steps (with the engine plug-in), writes
(with stores). All servers run side by side and only one is asked at a time, so drift of card and
host hits all alike; each round asks them in another order. A round: a warm-up, five streamed
requests of 128 tokens alone (inter-token time at batch 1), then 16 at once (throughput). The
interval is of the mean of the rounds' differences from clean, by bootstrap; it knows nothing of how
one start of a server differs from the next, so repeat the whole. Every gap goes to
DIR/overhead.json.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kvtrace_cli.capture.client import EngineClient, RequestRecord
from kvtrace_cli.capture.engine import find_engine
from kvtrace_cli.capture.model import resolve_model
from kvtrace_cli.capture.server import free_port
from kvtrace_cli.config import EngineConfig, RequestSpec, Role, RunConfig, TimeLimits, Weights

ARMS = {
    "clean": None,
    "blocks": ("--no-steps",),
    "steps": (),
    "writes": ("--record", "writes"),
}
ALONE, CROWD, TOKENS = 5, 16, 128
RESAMPLES = 10_000
READY_S, STOP_S = 400.0, 90.0
# Four servers share the card: each takes what it needs and no more.
SHARING = ("--gpu-memory-utilization", "0.2", "--kv-cache-memory-bytes", str(2 * 1024**3))


@dataclass
class Arm:
    """One server and what it answered, round by round."""

    name: str
    process: "subprocess.Popen[bytes]"
    client: EngineClient
    rounds: list[dict[str, object]]


def spec(tokens: int, seed: int) -> RequestSpec:
    """Return a request of eight prompt tokens that no other seed shares."""
    prompt = tuple(10 + (seed * 8 + place) % 20_000 for place in range(8))
    return RequestSpec(Role.MEASURED, prompt, tokens, stream=True)


def start(name: str, options: Sequence[str] | None, args: argparse.Namespace) -> Arm:
    """Start one arm's server, recorded by `kvtrace exec` unless it is the clean one."""
    limits = TimeLimits()
    engine = find_engine(args.engine)
    arguments = SHARING if args.engine == "vllm" else ()
    config = RunConfig(
        args.model,
        Weights.DUMMY,
        engine=EngineConfig(
            engine=args.engine,
            max_num_seqs=CROWD,
            capture_sizes=(1, 2, 4, 8, 16),
            arguments=arguments,
        ),
    )
    model = resolve_model(config.model, config.weights)
    port = free_port()
    command = engine.command(config, model, port)
    if options is not None:
        kvtrace = [sys.executable, "-m", "kvtrace_cli", "exec", "--engine", args.engine]
        command = [*kvtrace, "--out", str(args.out / name), *options, "--", *command]
    with (args.out / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=engine.environment(os.environ, model)
        )
    return Arm(name, process, EngineClient(port, model.served_name, limits), [])


def wait_ready(arms: Sequence[Arm]) -> None:
    """Wait until all answer.

    Raises:
        SystemExit: one ended, or took too long.
    """
    begin = time.monotonic()
    for arm in arms:
        while not arm.client.is_healthy():
            if arm.process.poll() is not None or time.monotonic() - begin > READY_S:
                raise SystemExit(f"{arm.name} is not ready after {time.monotonic() - begin:.0f} s")
            time.sleep(0.5)
    print(f"ready after {time.monotonic() - begin:.0f} s", flush=True)


def ask(arm: Arm, number: int) -> None:
    """Do one round with one arm.

    Raises:
        SystemExit: an answer was wrong.
    """
    first = 1000 * number
    records = [arm.client.send(first, spec(16, first))]
    records += [arm.client.send(first + i, spec(TOKENS, first + i)) for i in range(1, ALONE + 1)]
    alone = records[1:]
    with ThreadPoolExecutor(CROWD) as pool:
        indices = range(first + 100, first + 100 + CROWD)
        crowd = list(pool.map(lambda index: arm.client.send(index, spec(TOKENS, index)), indices))
    for record in (*records, *crowd):
        if record.error is not None:
            raise SystemExit(f"{arm.name}: {record.error}")
    arm.rounds.append(
        {
            "gaps_ms": [gap for record in alone for gap in record.token_gaps_ms or ()],
            "ttft_ms": [_first_token_ms(record) for record in alone],
            "crowd_gaps_ms": [gap for record in crowd for gap in record.token_gaps_ms or ()],
            "tokens_per_s": _throughput(crowd),
        }
    )


def _first_token_ms(record: RequestRecord) -> float:
    times = record.token_host_monotonic_ns or (record.host_monotonic_end_ns,)
    return (times[0] - record.host_monotonic_begin_ns) / 1e6


def _throughput(records: Sequence[RequestRecord]) -> float:
    begin = min(record.host_monotonic_begin_ns for record in records)
    end = max(record.host_monotonic_end_ns for record in records)
    return sum(len(record.returned_token_ids or ()) for record in records) / (end - begin) * 1e9


def stop(arms: Sequence[Arm]) -> None:
    """End the servers in order; kvtrace passes the signal on and closes its run."""
    for arm in arms:
        if arm.process.poll() is None:
            arm.process.send_signal(signal.SIGINT)
    for arm in arms:
        try:
            status = arm.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            arm.process.kill()
            status = arm.process.wait()
        print(f"{arm.name}: exit {status}")


def table(rounds: dict[str, list[dict[str, object]]]) -> Iterator[str]:
    """Yield one line for each figure and arm."""
    for name, of in (
        ("median ITL, batch 1, ms", lambda one: statistics.median(one["gaps_ms"])),
        ("mean ITL, batch 1, ms", lambda one: statistics.fmean(one["gaps_ms"])),
        ("median TTFT, ms", lambda one: statistics.median(one["ttft_ms"])),
        (f"median ITL, batch {CROWD}, ms", lambda one: statistics.median(one["crowd_gaps_ms"])),
        (f"tokens/s, batch {CROWD}", lambda one: one["tokens_per_s"]),
    ):
        yield name
        clean = [of(one) for one in rounds["clean"]]
        for arm, answers in rounds.items():
            values = [of(one) for one in answers]
            line = f"  {arm:7} {statistics.median(values):9.3f}"
            if arm != "clean":
                percents = [100 * (a / b - 1) for a, b in zip(values, clean, strict=True)]
                low, high = _interval(percents)
                line += f"  {statistics.fmean(percents):+6.2f} % ({low:+.2f} .. {high:+.2f})"
            yield line + "   " + " ".join(f"{value:.2f}" for value in values)


def _interval(percents: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean."""
    chance = random.Random(1)  # noqa: S311  resampling, no secret
    means = sorted(
        statistics.fmean(chance.choices(percents, k=len(percents))) for _ in range(RESAMPLES)
    )
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]


def main() -> None:
    """Start, ask in turn, stop, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--model", default="Qwen3-14B")
    args = parser.parse_args()
    args.out = args.out.absolute()
    args.out.mkdir(parents=True)
    arms: list[Arm] = []
    try:
        for name, options in ARMS.items():
            arms.append(start(name, options, args))
        wait_ready(arms)
        for number in range(1, args.rounds + 1):
            turn = number % len(arms)
            for arm in arms[turn:] + arms[:turn]:
                ask(arm, number)
            print(f"round {number} done", flush=True)
    finally:
        stop(arms)
    rounds = {arm.name: arm.rounds for arm in arms}
    (args.out / "overhead.json").write_text(json.dumps(rounds))
    print("\n".join(table(rounds)))


if __name__ == "__main__":
    main()
