#!/usr/bin/env python3
"""Find at what rate of block entries the ring begins to drop, and what reaches the disk. A GPU's.

    make graph-cases
    python3 scripts/find_drop_onset.py --out onset.json

For each size of ring a program that launches a target kernel as it is told runs under the injector.
First launches for --seconds each at ever higher rates, up to the second one that drops or that
cannot be reached; then single launches of ever more blocks. A step ends when the injector has
written or counted as dropped every block that was launched; that they are as many is checked each
time. Exit 1 if blocks were lost without being counted.

On the emulator: --program build/emulator_tests/fast/block_rate --injector and --sanitizer from that
folder, --emulated.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from kvtrace_cli.capture.live import LiveCounters, read_counters
from kvtrace_cli.config import RecordingConfig
from kvtrace_cli.console import out
from kvtrace_cli.errors import KvtraceError
from kvtrace_cli.reports.cells import new_table
from scripts.recorded_program import KERNELS, recorded_environment

ROOT = Path(__file__).parents[1]
RATES = "100000,300000,1000000,2000000,4000000,8000000,16000000,32000000,64000000,128000000"
BURSTS = (0.5, 1.0, 2.0, 4.0, 8.0)
INTERVAL_NS = 1_000_000
POLL_S = 0.02
STEPS_ENOUGH = 2
# After drops the ring stays full until their places are given up as holes, which takes 50 ms.
SETTLE_S = 0.2


@dataclass(frozen=True)
class Step:
    """One step: what was asked, what ran, and what became of it.

    Args:
        kind: burst (one launch) or rate (many).
        asked_per_s: blocks a second; of a burst null.
        blocks: that were launched; of a burst in one launch.
        seconds: from the first launch until all had run.
        drained_s: until the injector had accounted for all.
        written, dropped: block events.
    """

    kind: str
    asked_per_s: int | None
    blocks: int
    seconds: float
    drained_s: float
    written: int
    dropped: int

    @property
    def per_s(self) -> float:
        """Blocks a second, as they ran."""
        return self.blocks / self.seconds

    @property
    def lost(self) -> int:
        """Blocks that are neither written nor counted as dropped."""
        return self.blocks - self.written - self.dropped


class FailedError(Exception):
    """The program failed."""


class Launching:
    """The program under the injector, told what to launch line by line."""

    def __init__(self, args: argparse.Namespace, directory: Path, ring_events: int) -> None:
        recording = RecordingConfig(
            kernels=KERNELS,
            ring_events=ring_events,
            steps=False,
            injector=args.injector,
            sanitizer_library=args.sanitizer,
        )
        environment = recorded_environment(directory, recording, emulated=args.emulated)
        self._raw = directory / "raw"
        self._patience_s = args.patience
        self._seen = LiveCounters()
        try:
            self._process = subprocess.Popen(
                [str(args.program.absolute())],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            raise FailedError(f"{args.program}: {error.strerror}; `make graph-cases`") from error

    def step(self, blocks: int, launches: int, interval_ns: int, asked: int | None) -> Step:
        """Have it launch, and wait until all of it is accounted for or nothing more comes."""
        assert self._process.stdin is not None  # noqa: S101  it is a pipe
        assert self._process.stdout is not None  # noqa: S101  it is a pipe
        before = self._seen
        begin = time.monotonic()
        try:
            self._process.stdin.write(f"{blocks} {launches} {interval_ns}\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise FailedError("the program ended") from error
        answer = self._process.stdout.readline()
        told: dict[str, Any] = json.loads(answer or "{}")
        if "blocks" not in told:
            raise FailedError(str(told.get("error") or "the program ended"))
        total = before.events + before.dropped + told["blocks"]
        self._seen = self._wait_for(total)
        return Step(
            kind="burst" if asked is None else "rate",
            asked_per_s=asked,
            blocks=told["blocks"],
            seconds=told["seconds"],
            drained_s=round(time.monotonic() - begin, 3),
            written=self._seen.events - before.events,
            dropped=self._seen.dropped - before.dropped,
        )

    def end(self) -> None:
        """Close its input, and wait for its end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_for(self, total: int) -> LiveCounters:
        deadline = time.monotonic() + self._patience_s
        while True:
            found = read_counters(self._raw)
            if found.events + found.dropped >= total or time.monotonic() >= deadline:
                return found
            time.sleep(POLL_S)


def steps_of(launching: Launching, args: argparse.Namespace, ring_events: int) -> Iterator[Step]:
    """Yield the rates, until two dropped or two were not reached, then the bursts."""
    launching.step(1, 1, 0, None)  # the first launch loads and patches
    with_drops = too_slow = 0
    for rate in args.rates:
        launches = max(1, int(args.seconds * 1e9 / INTERVAL_NS))
        blocks = max(1, rate * INTERVAL_NS // 10**9)
        step = launching.step(blocks, launches, INTERVAL_NS, rate)
        yield step
        with_drops += step.dropped > 0
        too_slow += step.per_s < rate / 2
        if STEPS_ENOUGH in (with_drops, too_slow):
            break
        time.sleep(SETTLE_S)
    for share in BURSTS:
        time.sleep(SETTLE_S)
        yield launching.step(int(ring_events * share), 1, 0, None)


def measure(args: argparse.Namespace, ring_events: int) -> list[Step]:
    """Measure one size of ring, in a process and a directory of its own."""
    with tempfile.TemporaryDirectory(dir=args.scratch) as directory:
        launching = Launching(args, Path(directory) / "recording", ring_events)
        try:
            return list(steps_of(launching, args, ring_events))
        finally:
            launching.end()


def onset(steps: Sequence[Step]) -> dict[str, Any]:
    """Return where the drops of one ring begin; null where there is no such step.

    Each rate twice, as it ran and as it was asked for. `held...`: the highest that ran without a
    drop. `drops_from...`: the lowest with any. A full ring slows the program down, so what ran with
    drops may be below what held; the limit is where the rates that were asked for say, from
    `held_per_s` to `drops_from_asked_per_s`. `largest_burst`: the largest launch without a drop.
    """
    rates = [step for step in steps if step.kind == "rate"]
    held = max(
        (step for step in rates if not step.dropped), key=lambda step: step.per_s, default=None
    )
    dropping = [step for step in rates if step.dropped]
    bursts = [step.blocks for step in steps if step.kind == "burst" and not step.dropped]
    return {
        "held_per_s": None if held is None else held.per_s,
        "held_asked_per_s": None if held is None else held.asked_per_s,
        "drops_from_per_s": min((step.per_s for step in dropping), default=None),
        "drops_from_asked_per_s": min((step.asked_per_s or 0 for step in dropping), default=None),
        "largest_burst": max(bursts, default=None),
    }


def tell(ring_events: int, steps: Sequence[Step], *, emulated: bool) -> None:
    """Print one ring's steps."""
    mark = " (EMULATED)" if emulated else ""
    table = new_table(f"A ring of {ring_events:,} events{mark}")
    for name in ("step", "blocks", "blocks/s", "written", "dropped", "disk MB/s"):
        table.add_column(name, justify="left" if name == "step" else "right")
    for step in steps:
        asked = "one launch" if step.asked_per_s is None else f"{step.asked_per_s:,}/s"
        table.add_row(
            asked,
            f"{step.blocks:,}",
            f"{step.per_s:,.0f}" if step.seconds else "",
            f"{step.written:,}",
            f"{step.dropped:,}",
            f"{64 * step.written / step.drained_s / 1e6:,.0f}" if step.drained_s else "",
        )
    out.print(table)


def numbers(text: str) -> list[int]:
    """Return the numbers of an option's list."""
    return [int(part) for part in text.split(",")]


def main() -> int:
    """Measure every size of ring; 1 if blocks went missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "block_rate")
    parser.add_argument("--injector", type=Path, help="default: the package's")
    parser.add_argument("--sanitizer", type=Path, help="default: as kvtrace finds it")
    parser.add_argument("--emulated", action="store_true", help="mark the files as emulated")
    parser.add_argument("--rings", type=numbers, default=[1 << 16, 1 << 20, 1 << 23])
    parser.add_argument("--rates", type=numbers, default=numbers(RATES), help="blocks a second")
    parser.add_argument("--seconds", type=float, default=1, help="of each rate")
    parser.add_argument(
        "--patience", type=float, default=30, help="seconds for what is not drained"
    )
    parser.add_argument("--scratch", type=Path, help="where recordings go, and are removed from")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    args = parser.parse_args()
    rings: list[dict[str, Any]] = []
    lost = 0
    failure = None
    for ring_events in args.rings:
        try:
            steps = measure(args, ring_events)
        except (FailedError, KvtraceError) as error:
            failure = f"ring of {ring_events:,}: {error}"
            break
        lost += sum(step.lost for step in steps)
        found = [asdict(step) for step in steps]
        rings.append({"ring_events": ring_events, **onset(steps), "steps": found})
        tell(ring_events, steps, emulated=args.emulated)
    document = {"schema_version": 1, "emulated": args.emulated, "rings": rings, "failure": failure}
    args.out.write_text(json.dumps(document) + "\n", encoding="utf-8")
    if failure is not None or lost:
        why = failure or f"{lost:,} blocks were neither written nor counted as dropped"
        print(f"find_drop_onset: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
