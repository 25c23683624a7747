#!/usr/bin/env python3
"""Measure what a block entry costs where the GPU is never idle, part by part. Needs a GPU.

    make callback-chain
    python3 scripts/measure_callback_chain.py --out chain.json

A graph of 1,000 kernels in a chain, each of about 4.66 us, is replayed: for each shape of kernel
(blocks x threads, and +MIB where another kernel reads that much memory before each, so that caches
are cold as in a server) first as it is, then in processes of their own under the injector
(callbacks, no-op, blocks, writes), with a clean one before each; then with every step of the
callback ladder in turn, within one process, so that nothing but the callback differs; and with
nothing patched, but a Sanitizer's subscriber that has more and more callbacks enabled. What is told
is ns a block entry more than the clean one beside it: of a kernel of several blocks, which start
side by side, ns a kernel. Exit 1 if a program failed or a callback did not run as often as it must.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from kvtrace_cli.capture.libraries import find_sanitizer_library
from kvtrace_cli.capture.live import read_counters
from kvtrace_cli.config import Patch, Record, RecordingConfig
from kvtrace_cli.console import out
from kvtrace_cli.errors import KvtraceError
from kvtrace_cli.reports.cells import new_table
from scripts.recorded_program import KERNELS, clean_environment, recorded_environment

BUILD = Path(__file__).parents[1] / "build" / "callback_chain"
BASE = RecordingConfig(kernels=KERNELS, ring_events=1 << 22, steps=False)
ARMS = {
    "callbacks": replace(BASE, record=Record.NONE),
    "no-op": replace(BASE, patch=Patch.NO_OP),
    "blocks": BASE,
    "writes": replace(BASE, record=Record.WRITES),
}
# Enabled where nothing is patched and nobody handles them.
SUBSCRIPTIONS = {
    "subscribed": "",
    "+ modules": "modules",
    "+ launches": "modules launches",
    "+ graphs": "modules launches graphs",
    "+ nodes": "modules launches graphs nodes",
}
# Above it the host, not the GPU, says how long a replay lasts.
BUSY_HOST = 0.9


@dataclass(frozen=True)
class Shape:
    """Of the kernel: blocks of its grid, threads of a block, MiB that are read before each."""

    blocks: int
    threads: int
    between_mib: int = 0

    @property
    def name(self) -> str:
        """As `--shapes` has it."""
        cold = f"+{self.between_mib}" if self.between_mib else ""
        return f"{self.blocks}x{self.threads}{cold}"


@dataclass(frozen=True)
class Row:
    """One thing that was measured, ns a kernel; lists have a number a round.

    Args:
        shape: such as 1x512, or 1x512+128.
        name: of the arm, or of the ladder's step.
        in_ladder: whether it was one of the ladder's process.
        node_ns: how long a kernel of the chain lasts.
        more_ns: than the clean one of the same round, or of the process before.
        submit_ns: what the host takes to submit a kernel.
        events, dropped: of an arm that records.
        written: places of the ring that one replay of a step wrote to.
    """

    shape: str
    name: str
    in_ladder: bool
    node_ns: list[float]
    more_ns: list[float]
    submit_ns: list[float]
    events: int | None = None
    dropped: int | None = None
    written: int | None = None


class FailedError(Exception):
    """A program failed, or said something that cannot be."""


def run_program(
    args: argparse.Namespace,
    mode: str,
    shape: Shape,
    iterations: int,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Run the chain's program once; return what it printed."""
    numbers = (args.nodes, args.replays, args.rounds, shape.blocks, shape.threads)
    more = (iterations, args.node_ns, shape.between_mib, int(args.memset_nodes))
    command = [str(args.program), mode, *map(str, (*numbers, *more))]
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=args.timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"{mode} {shape.name}: no end within {args.timeout:g} s") from error
    except OSError as error:
        raise FailedError(f"{args.program}: {error.strerror}; `make callback-chain`") from error
    text = next((line for line in done.stdout.splitlines() if line.startswith("{")), "{}")
    found: dict[str, Any] = json.loads(text)
    if done.returncode or "variants" not in found:
        why = found.get("error") or done.stderr.strip() or "it said nothing"
        raise FailedError(f"{mode} {shape.name}: exit status {done.returncode}, {why}")
    return found


def run_chain(
    args: argparse.Namespace, shape: Shape, iterations: int, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a chain took in a process of its own."""
    variants = run_program(args, "chain", shape, iterations, environment)["variants"]
    timed: dict[str, Any] = variants[0]
    return timed


def beside(
    shape: Shape, name: str, found: Mapping[str, Any], clean: Mapping[str, Any], **counts: int
) -> Row:
    """Return the row of a process that came after a clean one."""
    level = median(clean["node_ns"])
    more = [one - level for one in found["node_ns"]]
    return Row(shape.name, name, False, found["node_ns"], more, found["submit_ns"], **counts)


def measure_arms(args: argparse.Namespace, shape: Shape, iterations: int) -> Iterator[Row]:
    """Yield each arm, in a process of its own, with a clean one before it."""
    for start in range(args.starts):
        for arm, recording in ARMS.items():
            clean = run_chain(args, shape, iterations, clean_environment())
            yield Row(shape.name, "clean", False, clean["node_ns"], [], clean["submit_ns"])
            asked = replace(recording, injector=args.injector, sanitizer_library=args.sanitizer)
            with tempfile.TemporaryDirectory(dir=args.scratch) as directory:
                place = Path(directory) / f"{arm}-{start}"
                environment = recorded_environment(place, asked)
                found = run_chain(args, shape, iterations, environment)
                counters = read_counters(place / "raw")
            if counters.launches == 0:
                raise FailedError(f"{arm} {shape.name}: the injector recorded no launch")
            yield beside(shape, arm, found, clean, events=counters.events, dropped=counters.dropped)


def ladder_environment(args: argparse.Namespace) -> dict[str, str]:
    """Return the variables under which a program has the ladder's subscriber."""
    return clean_environment() | {
        "CUDA_INJECTION64_PATH": str(args.ladder.absolute()),
        "KVTRACE_LADDER_SANITIZER": str(find_sanitizer_library(args.sanitizer)),
    }


def measure_subscriptions(args: argparse.Namespace, shape: Shape, iterations: int) -> Iterator[Row]:
    """Yield each set of callbacks, in a process of its own, with a clean one before it."""
    for name, groups in SUBSCRIPTIONS.items():
        clean = run_chain(args, shape, iterations, clean_environment())
        environment = ladder_environment(args) | {"KVTRACE_LADDER_CALLBACKS": groups}
        yield beside(shape, name, run_chain(args, shape, iterations, environment), clean)


def measure_ladder(args: argparse.Namespace, shape: Shape, iterations: int) -> Iterator[Row]:
    """Yield each step of the ladder, from one process."""
    found = run_program(args, "ladder", shape, iterations, ladder_environment(args))["variants"]
    clean = found[0]["node_ns"]
    for one in found:
        more = (
            [] if one is found[0] else [a - b for a, b in zip(one["node_ns"], clean, strict=True)]
        )
        yield Row(
            shape.name,
            one["name"],
            True,
            one["node_ns"],
            more,
            one["submit_ns"],
            written=one.get("written"),
        )


def measure_shape(
    args: argparse.Namespace, shape: Shape, rows: list[Row], about: dict[str, Any]
) -> list[str]:
    """Add all rows of one shape, and what they are about; return what failed.

    A part that fails leaves the others to be measured.
    """
    failures: list[str] = []
    try:
        first = run_program(args, "chain", shape, 0, clean_environment())
    except FailedError as error:
        return [str(error)]
    about |= {name: first[name] for name in ("device", "cuda_of_driver") if name in first}
    for measure in (measure_ladder, measure_arms, measure_subscriptions):
        try:
            rows.extend(measure(args, shape, first["iterations"]))
        except (FailedError, KvtraceError) as error:  # noqa: PERF203  three turns
            failures.append(str(error))
    return failures


def troubles(rows: Sequence[Row], nodes: int) -> Iterator[str]:
    """Yield what is wrong with the rows."""
    for row in rows:
        label = f"{row.shape} {row.name}"
        if row.written is not None and row.written < nodes:
            yield f"{label}: one replay wrote to {row.written} places, expected {nodes} or more"
        if row.dropped:
            yield f"{label}: {row.dropped:,} events were dropped, which costs otherwise"
        if median(row.submit_ns) > BUSY_HOST * median(row.node_ns):
            yield f"{label}: the host was as slow as the GPU, so this is not what a callback costs"


def tell(rows: Sequence[Row], notes: Sequence[str]) -> None:
    """Print the rows as a table: arms are put together over their starts."""
    table = new_table("ns a kernel")
    table.add_column("shape")
    table.add_column("measured")
    for name in ("median", "more than clean", "rounds from .. to"):
        table.add_column(name, justify="right")
    together: dict[tuple[str, bool, str], list[Row]] = {}
    for row in rows:
        together.setdefault((row.shape, row.in_ladder, row.name), []).append(row)
    for (shape, in_ladder, name), found in together.items():
        more = [one for row in found for one in row.more_ns]
        table.add_row(
            shape,
            f"ladder: {name}" if in_ladder else name,
            f"{median(one for row in found for one in row.node_ns):,.0f}",
            f"{median(more):+,.0f}" if more else "",
            f"{min(more):+,.0f} .. {max(more):+,.0f}" if more else "",
        )
    out.print(table)
    for note in notes:
        out.print(f" - {note}", markup=False)


def shapes_of(text: str) -> list[Shape]:
    """Return the shapes that `--shapes` names."""
    try:
        return [Shape(*map(int, re.split("[x+]", part))) for part in text.split(",")]
    except (TypeError, ValueError) as error:
        wrong = f"found {text!r}, expected such as 1x64,1x512+128"
        raise argparse.ArgumentTypeError(wrong) from error


def main() -> int:
    """Measure every shape; 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--program", type=Path, default=BUILD / "callback_chain")
    parser.add_argument("--ladder", type=Path, default=BUILD / "libkvtrace_ladder.so")
    parser.add_argument("--injector", type=Path, help="default: the package's")
    parser.add_argument("--sanitizer", type=Path, help="default: as kvtrace finds it")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--scratch", type=Path, help="where recordings go until they are counted")
    parser.add_argument(
        "--shapes", type=shapes_of, default="1x64,1x512,16x512", help="blocks x threads[+MiB]"
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--replays", type=int, default=10, help="of a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--starts", type=int, default=2, help="processes of each arm")
    parser.add_argument("--node-ns", type=int, default=4660, help="what a kernel shall last")
    parser.add_argument("--memset-nodes", action="store_true", help="one before each kernel")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each process")
    args = parser.parse_args()
    rows: list[Row] = []
    about: dict[str, Any] = {}
    failures: list[str] = []
    for shape in args.shapes:
        failures += measure_shape(args, shape, rows, about)
    notes = [*troubles(rows, args.nodes), *failures]
    names = ("nodes", "replays", "rounds", "starts", "memset_nodes")
    asked = {name: getattr(args, name) for name in names}
    document = {"schema_version": 1, **about, **asked, "rows": [asdict(row) for row in rows]}
    args.out.write_text(json.dumps(document | {"notes": notes}) + "\n", encoding="utf-8")
    if rows:
        tell(rows, notes)
    else:
        print("measure_callback_chain:", *failures, sep="\n", file=sys.stderr)
    is_wrong = failures or any(row.written is not None and row.written < args.nodes for row in rows)
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
