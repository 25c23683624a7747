"""Measure what the engine plug-in adds to a step of vLLM: hooks, line and stamp.

Usage: measure_engine_plugin.py [--steps N]. Without the engine: the runners are those of
tests/fake_runners.py, and their own time is subtracted. The injector is the built one. Processor
time is counted, so that a busy machine does not matter, and compared with 8.5 ms, the time between
two tokens of Qwen3-14B on an H200.
"""

import argparse
import ctypes
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fake_runners import (  # noqa: E402  found by the line above
    V1Runner,
    V2Runner,
    as_module,
    fresh_class,
    scheduler_output,
)

from kvtrace_cli.engine_site.kvtrace_engine_plugin import v1_hooks, v2_hooks  # noqa: E402
from kvtrace_cli.engine_site.kvtrace_engine_plugin.session import Session  # noqa: E402

INJECTOR = ROOT / "kvtrace_cli/native/libkvtrace_injector.so"
STEP_US = 8500.0
ROUNDS = 40


def main() -> None:
    """Print microseconds a step, the best of some rounds, for each runner and batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    ctypes.CDLL(str(INJECTOR))
    for name, base, hooks in (("v1", V1Runner, v1_hooks), ("v2", V2Runner, v2_hooks)):
        for requests in (1, 16, 256):
            with tempfile.TemporaryDirectory() as directory:
                bare, hooked = fresh_class(base), fresh_class(base)
                hooks.install(Session(directory, str(INJECTOR), name), as_module(hooked))
                added = best_us(hooked, requests, steps) - best_us(bare, requests, steps)
            print(
                f"{name}, {requests:3} requests: {added:6.2f} us a step, {added / STEP_US:.3%} of "
                f"{STEP_US / 1000} ms"
            )


def best_us(runner_class: type, requests: int, steps: int) -> float:
    """Return the microseconds of a decode step and its sampling, the least of some rounds."""
    runner = runner_class([0])
    runner.launch = lambda _what: None
    runner.initialize_kv_cache()
    names = [f"cmpl-kvtrace-{number:03}-0-0123abcd" for number in range(requests)]
    runner.execute_model(
        scheduler_output([(one, 16) for one in names], new=[(one, [7], 0) for one in names])
    )
    decode = scheduler_output(
        [(one, 1) for one in names], cached=[(one, None, 16) for one in names]
    )
    return min(time_us(runner, decode, steps) for _ in range(ROUNDS))


def time_us(runner: object, decode: object, steps: int) -> float:
    """Return the mean microseconds of one round."""
    begin = time.thread_time()
    for _ in range(steps):
        runner.execute_model(decode)
        runner.sample_tokens(None)
    return (time.thread_time() - begin) / steps * 1e6


if __name__ == "__main__":
    main()
