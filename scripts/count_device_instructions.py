#!/usr/bin/env python3
"""Say how many instructions each device callback runs, from the machine code it is compiled to.

    python3 scripts/count_device_instructions.py [--sm 90] [--nvdisasm PROGRAM] [--json]

For the injector's callbacks and each step of the callback ladder: how many instructions a thread
runs that is not its block's first one (the shortest way from entry to return), how many the first
one runs (the shortest way that stores a whole event and needs no second look for space; where no
event is stored, the longest way), and how many of either save or restore registers in local memory,
which every thread pays. Needs nvcc and nvdisasm (package nvidia-cuda-nvdisasm); no GPU.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console
from rich.table import Table

from scripts.cuda_toolchain import find_header, find_nvcc

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    ROOT / "injector/device/block_event_patch.cu",
    ROOT / "tests/gpu/callback_chain/ladder_patch.cu",
)
CALLBACKS = ("kvtrace_block_enter", "kvtrace_store", "kvtrace_ladder_")
_LINE = re.compile(r"/\*([0-9a-f]{4})\*/\s+(?:@(!?\w+)\s+)?([A-Z][\w.]*)(.*?);")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")


@dataclass(frozen=True)
class Instruction:
    """One instruction; `target` is where a branch leads, as an index."""

    name: str
    is_conditional: bool
    target: int | None


@dataclass(frozen=True)
class Count:
    """What a callback runs: instructions in all, on the two ways, and of local memory on each."""

    callback: str
    instructions: int
    other_threads: int
    other_threads_local: int
    first_thread: int
    first_thread_local: int


def compiled(source: Path, sm: str, nvdisasm: str) -> str:
    """Return the machine code of a tools patch as text."""
    nvcc, include = find_nvcc(), find_header("sanitizer.h")
    if nvcc is None or include is None:
        raise SystemExit("no nvcc or no sanitizer.h; see scripts/cuda_toolchain.py --install")
    with tempfile.TemporaryDirectory() as directory:
        cubin = Path(directory) / "patch.cubin"
        command = [str(nvcc), "--cubin", "--compile-as-tools-patch", "-maxrregcount=24"]
        command += ["-std=c++17"]
        command += [f"-I{ROOT / 'injector/include'}", f"-I{include}", f"-arch=sm_{sm}"]
        subprocess.run([*command, "-o", str(cubin), str(source)], check=True)
        return subprocess.run(
            [nvdisasm, "-c", str(cubin)], check=True, capture_output=True, text=True
        ).stdout


def functions(text: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Yield each callback's name and instructions."""
    for part in text.split("\n//--------------------- ")[1:]:
        name = part.split()[0].removeprefix(".text.")
        if name.startswith(CALLBACKS):
            yield name, instructions(part.splitlines())


def instructions(lines: Sequence[str]) -> list[Instruction]:
    """Return the instructions of one function up to the padding after it."""
    labels: dict[str, int] = {}
    found: list[tuple[str, bool, str | None]] = []
    for line in lines:
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif code := _LINE.search(line):
            _, predicate, name, rest = code.groups()
            target = _TARGET.search(rest) if name.startswith("BRA") else None
            found.append((name, predicate is not None, target[1] if target else None))
    return [
        Instruction(name, is_conditional, labels[target] if target else None)
        for name, is_conditional, target in found
    ]


def next_of(code: Sequence[Instruction], place: int) -> list[int]:
    """Return where a thread may go from an instruction; nowhere from a return."""
    one = code[place]
    if one.name.startswith(("RET", "EXIT")) and not one.is_conditional:
        return []
    following = [place + 1] if place + 1 < len(code) else []
    if one.target is None:
        return following
    return [one.target, *following] if one.is_conditional else [one.target]


def way(code: Sequence[Instruction], begin: int, ends: set[int], *, longest: bool) -> list[int]:
    """Return the shortest or longest way from one instruction to one of some, without a loop."""
    best: list[int] = []

    def walk(path: list[int], seen: frozenset[int]) -> None:
        nonlocal best
        while True:
            place = path[-1]
            if place in ends:
                if not best or (len(path) > len(best)) == longest:
                    best = path
                return
            # Only forward: a loop is a way back, and none is on a way that counts.
            forward = [one for one in next_of(code, place) if one > place]
            if not forward or (best and not longest and len(path) >= len(best)):
                return
            for one in forward[1:]:
                walk([*path, one], seen)
            path = [*path, forward[0]]

    walk([begin], frozenset())
    return best


def count(callback: str, code: Sequence[Instruction]) -> Count:
    """Count the instructions on both ways."""
    returns = {place for place, one in enumerate(code) if one.name.startswith("RET")}
    stores = [
        place for place, one in enumerate(code) if one.name.startswith("ST") and "128" in one.name
    ]
    others = way(code, 0, returns, longest=False)
    if stores:
        last = max(stores)
        first = way(code, 0, {last}, longest=False)
        first += way(code, last, returns, longest=False)[1:]
    else:
        first = way(code, 0, returns, longest=True)

    def local(places: Sequence[int]) -> int:
        return sum(code[place].name.startswith(("STL", "LDL")) for place in places)

    whole = max(returns) + 1
    return Count(callback, whole, len(others), local(others), len(first), local(first))


def main() -> int:
    """Compile, count, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sm", default="90", help="architecture, such as 90")
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm"), help="default: from PATH")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    args = parser.parse_args()
    if args.nvdisasm is None:
        parser.error("--nvdisasm: none in PATH; install the package nvidia-cuda-nvdisasm")
    counts = [
        count(name, code)
        for source in SOURCES
        for name, code in functions(compiled(source, args.sm, args.nvdisasm))
    ]
    if args.json:
        print(json.dumps([asdict(one) for one in counts], indent=1))
        return 0
    table = Table(title=f"Instructions of the device callbacks, sm_{args.sm}")
    for name in ("callback", "in all", "other threads", "local", "first thread", "local"):
        table.add_column(name, justify="left" if name == "callback" else "right", no_wrap=True)
    for one in counts:
        name, *numbers = asdict(one).values()
        table.add_row(str(name).removeprefix("kvtrace_"), *map(str, numbers))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
