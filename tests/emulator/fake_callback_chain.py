"""Stands in for build/callback_chain: prints what it prints, and launches under an injector.

Where KVTRACE_CONFIG is set, the program that KVTRACE_TEST_BLOCK_RATE names runs, and is recorded.
KVTRACE_TEST_WRITTEN is how many places of the ring each step of the ladder wrote to;
with KVTRACE_TEST_COLD_FAILS a chain with cold caches fails.
"""

import json
import os
import subprocess
import sys

NODE_NS = {"clean": 4000.0, "no-op": 4250.0, "injector": 4600.0}
ARM_NS = 4500.0


def variant(name: str, node_ns: float, rounds: int, written: int | None = None) -> dict:
    # No two rounds are alike, and all variants of a round are off by as much.
    times = [node_ns + number for number in range(rounds)]
    found = {"name": name, "node_ns": times, "submit_ns": [900.0] * rounds}
    return found if written is None else found | {"written": written}


def main() -> None:
    mode, *numbers = sys.argv[1:]
    nodes, replays, rounds, blocks, threads, iterations, *rest = map(int, numbers)
    node_ns, between_mib, _memsets = rest
    if between_mib and os.environ.get("KVTRACE_TEST_COLD_FAILS"):
        sys.exit(3)
    if iterations == 0:
        iterations = node_ns // 2
    if "KVTRACE_CONFIG" in os.environ:
        program, asked = os.environ["KVTRACE_TEST_BLOCK_RATE"], f"{blocks} {nodes} 0\n"
        subprocess.run([program], input=asked, text=True, check=True, stdout=subprocess.DEVNULL)
    level = ARM_NS if "KVTRACE_CONFIG" in os.environ else NODE_NS["clean"]
    variants = [variant("clean", level, rounds)]
    if mode == "ladder":
        written = int(os.environ.get("KVTRACE_TEST_WRITTEN", nodes))
        variants.append(variant("no-op", NODE_NS["no-op"], rounds))
        variants.append(variant("injector", NODE_NS["injector"], rounds, written))
    head = {"device": "stand-in", "cuda_of_driver": 13000, "nodes": nodes, "replays": replays}
    head |= {
        "blocks": blocks,
        "threads": threads,
        "iterations": iterations,
        "between_mib": between_mib,
    }
    print(json.dumps(head | {"variants": variants}))  # noqa: T201  what a program prints


if __name__ == "__main__":
    main()
