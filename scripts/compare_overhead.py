#!/usr/bin/env python3
"""Compare what recording costs, from runs of `scripts/record_vllm_runs.sh OUT overhead`.

    python3 scripts/compare_overhead.py OUT

OUT holds one run directory for each arm and round, named <arm>-<round>. The first five measured
requests ran alone (inter-token time at batch 1), the rest at once (throughput). Each figure is
compared with the clean run of its own round; the interval is of the mean of those differences, by
bootstrap.
"""

import argparse
import json
import random
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

ALONE = 5
RESAMPLES = 10_000


def figures(run: Path) -> dict[str, float]:
    """Return median ITL (ms), median TTFT (ms) at batch 1, and tokens/s of the crowd."""
    lines = map(json.loads, (run / "requests.jsonl").read_text().splitlines())
    measured = sorted(
        (line for line in lines if line["role"] == "measured"),
        key=lambda line: line["request_index"],
    )
    alone, crowd = measured[:ALONE], measured[ALONE:]
    gaps = [late - early for line in alone for early, late in pairwise(_times(line))]
    first = [_times(line)[0] - line["host_monotonic_begin_ns"] for line in alone]
    begin = min(line["host_monotonic_begin_ns"] for line in crowd)
    end = max(line["host_monotonic_end_ns"] for line in crowd)
    tokens = sum(len(line["returned_token_ids"]) for line in crowd)
    return {
        "ITL ms": statistics.median(gaps) / 1e6,
        "mean ITL ms": statistics.fmean(gaps) / 1e6,
        "TTFT ms": statistics.median(first) / 1e6,
        "tokens/s": tokens / (end - begin) * 1e9,
    }


def interval(differences: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean."""
    chance = random.Random(1)  # noqa: S311  resampling, no secret
    means = sorted(
        statistics.fmean(chance.choices(differences, k=len(differences))) for _ in range(RESAMPLES)
    )
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]


def _times(line: dict[str, Any]) -> list[int]:
    return line["token_host_monotonic_ns"]


def main() -> None:
    """Print one table for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    runs: dict[str, dict[int, dict[str, float]]] = {}
    for run in sorted(parser.parse_args().out.glob("*-[0-9]*")):
        if (run / "COMPLETE").exists():
            arm, number = run.name.rsplit("-", 1)
            runs.setdefault(arm, {})[int(number)] = figures(run)
    clean = runs["clean"]
    for name in next(iter(clean.values())):
        print(f"{name}")
        for arm, rounds in runs.items():
            values = [rounds[number][name] for number in sorted(rounds)]
            line = f"  {arm:8} median {statistics.median(values):9.3f}  " + " ".join(
                f"{value:.3f}" for value in values
            )
            both = sorted(set(rounds) & set(clean))
            if arm != "clean" and both:
                percents = [100 * (rounds[n][name] / clean[n][name] - 1) for n in both]
                low, high = interval(percents)
                line += f"  {statistics.fmean(percents):+.2f} % ({low:+.2f} .. {high:+.2f})"
            print(line)


if __name__ == "__main__":
    main()
