#!/usr/bin/env python3
"""Throw damaged files at everything that reads a run directory.

    python tests/fuzz/fuzz_readers.py --inputs 200000 [--seed 1]

Each input is one of tests/fuzz/seeds, damaged at random. A reader may accept it or refuse it with a
KvtraceError; anything else is a defect: the input is kept under tests/fuzz/crashes, where the test
suite reads it from then on, and the exit code is 1. Every `--whole`-th input is a whole run
directory with one damaged file, or one whose values make no sense; it is reconciled, audited, or
shown a token of.
"""

import argparse
import gzip
import io
import json
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import builders
import typer
from fuzz.odd import odd

from kvtrace_cli.analysis.attribution import attribute
from kvtrace_cli.analysis.facts import run_facts
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.analysis.stores import located_stores
from kvtrace_cli.commands.audit import audit
from kvtrace_cli.commands.show import show
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.reader import read_events, read_launches
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import (
    RunDir,
    open_run_dir,
    read_journal,
    read_manifest,
    read_requests,
)
from kvtrace_cli.dumps.steps import read_steps
from kvtrace_cli.errors import ExitCode, KvtraceError
from kvtrace_cli.reports.documents import report_document

HERE = Path(__file__).parent
SEEDS = HERE / "seeds"
CRASHES = HERE / "crashes"
ODD_SHARE = 0.6  # of the whole directories; most of the damaged rest is refused
IN_MEMORY = Path("/dev/shm")
REPLAYED_STEP = 3
HEADER_BYTES = abi.size_of(abi.HEADER_STRUCT)
NUMBERS = (0, 1, 0x7F, 0xFF, 0xFFFF, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
TEXTS = (b"null", b"[]", b'"x"', b"-1", b"1e999", b"{}", b"true", b"\xff\xfe", b"\x00", b"\n")


def damage(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one to four random faults."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if not damaged:
            break
        chance.choice((flip, cut, repeat, overwrite_number, overwrite_header, splice_text))(
            damaged, chance
        )
    return bytes(damaged)


def flip(data: bytearray, chance: random.Random) -> None:
    """Change one bit."""
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: random.Random) -> None:
    """Lose the end."""
    del data[chance.randrange(len(data)) :]


def repeat(data: bytearray, chance: random.Random) -> None:
    """Hold a piece twice."""
    begin = chance.randrange(len(data))
    data[begin:begin] = data[begin : begin + chance.randint(1, 200)]


def overwrite_number(data: bytearray, chance: random.Random) -> None:
    """Put a number that is on an edge anywhere."""
    size = chance.choice((1, 2, 4, 8))
    begin = chance.randrange(len(data))
    data[begin : begin + size] = (chance.choice(NUMBERS) % 2 ** (8 * size)).to_bytes(size, "little")


def overwrite_header(data: bytearray, chance: random.Random) -> None:
    """Put such a number into a field of the header."""
    field = chance.choice(abi.fields(abi.HEADER_STRUCT))
    number = chance.choice((*NUMBERS, chance.getrandbits(6))) % 2 ** (8 * field.size)
    data[field.offset : field.offset + field.size] = number.to_bytes(field.size, "little")


def splice_text(data: bytearray, chance: random.Random) -> None:
    """Put a piece of JSON, or of none, in place of some bytes."""
    begin = chance.randrange(len(data))
    data[begin : begin + chance.randint(0, 12)] = chance.choice(TEXTS)


def read_one(name: str, data: bytes, folder: Path) -> None:
    """Read one damaged file the way its seed's name says."""
    run_dir = RunDir(folder)
    readers: dict[str, tuple[Path, Callable[[], object]]] = {
        "7-0.events.kvt": (run_dir.raw / "7-0.events.kvt", lambda: read_events(target)),
        "7-0.events.kvt.gz": (run_dir.raw / "7-0.events.kvt.gz", lambda: read_events(target)),
        "7-1.events.kvt": (run_dir.raw / "7-1.events.kvt", lambda: read_events(target)),
        "7.launches.kvt": (run_dir.raw / "7.launches.kvt", lambda: read_launches(target)),
        "7.journal.jsonl": (run_dir.raw / "7.journal.jsonl", lambda: read_journal(run_dir)),
        "7.steps.jsonl": (run_dir.raw / "7.steps.jsonl", lambda: read_steps(run_dir)),
        "7.layout.json": (run_dir.raw / "7.layout.json", lambda: read_steps(run_dir)),
        "7.steps.jsonl.gz": (run_dir.raw / "7.steps.jsonl.gz", lambda: read_steps(run_dir)),
        "requests.jsonl": (run_dir.requests, lambda: read_requests(run_dir)),
        "manifest.json": (run_dir.manifest, lambda: read_manifest(run_dir)),
    }
    target, read = readers[name]
    target.write_bytes(data)
    try:
        read()
    except KvtraceError as error:
        refuse_only_with_words(error)


def attributed(folder: Path) -> None:
    """Read and reconcile, and say whose each block is."""
    recording = read_recording(open_run_dir(folder, allow_incomplete=False))
    result = reconcile(recording)
    tables = step_tables(recording)
    attribution = attribute(result, recording, tables)
    located_stores(result, recording)
    facts = run_facts(result, attribution, recording, tables)
    json.dumps(report_document(result, attribution, recording.manifest, facts))


# What a whole directory is put through: commands as a user calls them.
USES: dict[str, Callable[[Path], None]] = {
    "attributed": attributed,
    "audit": partial(audit, as_json=False, allow_incomplete=False),
    "audit --json": partial(audit, as_json=True, allow_incomplete=False),
    "show computed": partial(show, request="1", token=15),
    "show replayed": partial(show, request="", token=17, as_json=True),
    "show cached": partial(show, request="kvtrace-1", token=3),
}


def read_whole(name: str, data: bytes, folder: Path, uses: Iterable[str] = tuple(USES)) -> None:
    """Put a run directory of seeds in which one file is damaged to its uses."""
    run_dir = RunDir(folder)
    for seed in SEEDS.iterdir():
        if seed.suffix != ".gz":
            place(run_dir, seed.name).write_bytes(seed.read_bytes())
    place(run_dir, name).write_bytes(data)
    run_dir.complete_marker.touch()
    for use in uses:
        put_to_use(use, folder)


def put_to_use(use: str, folder: Path) -> None:
    """Do with a run directory what a command does, and keep what it prints from the terminal."""
    try:
        with redirect_stdout(io.StringIO()):
            USES[use](folder)
    except typer.Exit as ended:
        # An audit ends so, whatever it found.
        if ended.exit_code not in set(ExitCode) - {ExitCode.BUG}:
            raise AssertionError(f"exit code {ended.exit_code}") from ended
    except KvtraceError as error:
        refuse_only_with_words(error)


def place(run_dir: RunDir, name: str) -> Path:
    """Return where a file of a run directory belongs."""
    return (run_dir.raw if name.startswith("7") else run_dir.path) / name


def refuse_only_with_words(error: KvtraceError) -> None:
    """A refusal names the file and says what to do."""
    if ";" not in str(error) and "," not in str(error):
        raise AssertionError(f"no next step in: {error}")


def check(name: str, data: bytes, uses: Iterable[str] | None) -> str | None:
    """Return the traceback of a defect, or None.

    Args:
        name: of the seed.
        data: the seed, damaged.
        uses: what a whole directory with it is put through; None: only this file is read.
    """
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as at:
        folder = Path(at)
        RunDir(folder).raw.mkdir()
        try:
            if uses is None:
                read_one(name, data, folder)
            else:
                read_whole(name, data, folder, uses)
        except BaseException:  # noqa: BLE001
            # polars raises its panics as BaseException; those are the finds.
            return traceback.format_exc()
    return None


def main() -> int:
    """Fuzz; 1 if a defect was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1, help="of the random damage")
    parser.add_argument("--whole", type=int, default=200, help="every n-th is a whole directory")
    parser.add_argument("--make-seeds", type=Path, metavar="RUN", help="make the seeds anew")
    args = parser.parse_args()
    if args.make_seeds:
        make_seeds(args.make_seeds)
    chance = random.Random(args.seed)
    seeds = sorted(SEEDS.iterdir())
    begin = time.monotonic()
    for number in range(args.inputs):
        seed = chance.choice(seeds)
        whole = number % args.whole == 0 and seed.suffix != ".gz"
        data = seed.read_bytes()
        makes_no_sense = whole and chance.random() < ODD_SHARE
        data = odd(seed.name, data, chance) if makes_no_sense else damage(data, chance)
        uses = [chance.choice(list(USES))] if whole else None
        found = check(seed.name, data, uses)
        if found:
            CRASHES.mkdir(exist_ok=True)
            kept = CRASHES / f"{'whole' if whole else 'one'}-{number}-{seed.name}"
            kept.write_bytes(data)
            print(f"defect, kept as {kept}, {uses}:\n{found}")
            return 1
    print(f"{args.inputs} damaged inputs read, no defect, {time.monotonic() - begin:.0f} s")
    return 0


def make_seeds(run: Path) -> None:
    """Write small seeds from a recorded run: the first launches and all their events."""
    SEEDS.mkdir(exist_ok=True)
    source = RunDir(run)
    for path, name, records in (
        (source.event_files()[0], "7-0.events.kvt", 24),
        (source.launch_files()[0], "7.launches.kvt", 3),
    ):
        data = bytearray(gzip.decompress(path.read_bytes()))
        header = abi.ffi().from_buffer(f"{abi.HEADER_STRUCT} *", data, require_writable=True)
        header.record_count = records
        header.process_id = 7
        (SEEDS / name).write_bytes(data[: HEADER_BYTES + records * header.record_size])
    (SEEDS / "7-0.events.kvt.gz").write_bytes(
        gzip.compress((SEEDS / "7-0.events.kvt").read_bytes(), mtime=0)
    )
    (SEEDS / "7.journal.jsonl").write_bytes(source.journals()[0].read_bytes())
    add_steps_and_stores()
    (SEEDS / "requests.jsonl").write_bytes(source.requests.read_bytes())
    (SEEDS / "manifest.json").write_bytes(source.manifest.read_bytes())


def add_steps_and_stores() -> None:
    """Add a context whose launches belong to steps and whose blocks store to KV tensors.

    Two layers: a dummy step, a prefill of three rows padded to four, a replay of one row.
    """
    request_id, layout = "cmpl-kvtrace-1-0-1a2b3c4d", builders.layout()
    layout["groups"][0]["sliding_window"] = 16
    steps = [
        builders.started(missing=["draft"], inexact=["speculative decoding"]),
        builders.step(1, "dummy", rows=2),
        builders.step(
            2,
            requests=[(request_id, 3, 14)],
            padded_rows=4,
            graph_mode="NONE",
            admitted=[[request_id, 14, [[3, 5]]]],
            copied_blocks=[[2, 3]],
        ),
        {"event": "idle", "preempted": [request_id]},
        builders.step(
            3,
            requests=[(request_id, 1, 17)],
            graph_mode="FULL",
            resumed=[[request_id, 16, [[3]]]],
            grown=[[request_id, [[7]]]],
        ),
        {"event": "failed", "hook": "execute_model", "error": "KeyError: 'x'"},
    ]
    trace = builders.Trace(process_id=7, context_index=1)
    trace.changes = {"flags": builders.flags("CLOSED", "PATCHED", "WRITES")}
    for stamp, rows, slots in ((1, 2, ()), (2, 4, (62, 63, 80)), (3, 1, (113,))):
        for layer in range(2):
            grid = (rows, 1, 1)
            if stamp == REPLAYED_STEP:
                launch = trace.node(layer, 1, grid, step_stamp=stamp)
            else:
                launch = trace.plain(grid, step_stamp=stamp)
            for block in launch.blocks:
                trace.enter(launch, block)
                for part in "KV" if block[0] < len(slots) else "":
                    trace.store(launch, block, builders.kv_address(slots[block[0]], layer, part))
    (SEEDS / "7-1.events.kvt").write_bytes(trace.event_file())
    add_launches(SEEDS / "7.launches.kvt", trace)
    bound = builders.journal(context_index=1)[-1]
    ended = {"event": "ended", "context_index": 1, "stores_dropped": 0}
    with (SEEDS / "7.journal.jsonl").open("a") as journal:
        journal.writelines(json.dumps(line) + "\n" for line in (bound, ended))
    builders.write_lines(SEEDS / "7.steps.jsonl", steps)
    (SEEDS / "7.steps.jsonl.gz").write_bytes(
        gzip.compress((SEEDS / "7.steps.jsonl").read_bytes(), mtime=0)
    )
    (SEEDS / "7.layout.json").write_text(json.dumps(layout))


def add_launches(path: Path, trace: builders.Trace) -> None:
    """Append a context's launches to a launch file of its process."""
    data = bytearray(path.read_bytes())
    header = abi.ffi().from_buffer(f"{abi.HEADER_STRUCT} *", data, require_writable=True)
    header.record_count += len(trace.launches)
    path.write_bytes(bytes(data) + trace.launch_file()[HEADER_BYTES:])


if __name__ == "__main__":
    sys.exit(main())
