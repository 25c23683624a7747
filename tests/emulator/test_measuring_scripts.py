"""The scripts that measure on a GPU, off it: on the emulator, or with a stand-in for a program."""

import json
import os
import subprocess
import sys

from emulated import ROOT, build
from emulated_runs import needs_libraries

from scripts.find_drop_onset import Step, onset

STAND_IN = ROOT / "tests/emulator/fake_callback_chain.py"


def run_script(name, *arguments, **environment):
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / name, *map(str, arguments)],
        env=os.environ | {"COLUMNS": "100"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def libraries():
    built = build("plain")
    return ("--injector", built.injector, "--sanitizer", built.emulator)


def test_every_block_of_every_step_is_written_or_counted_as_dropped(tmp_path):
    out = tmp_path / "onset.json"
    program = build("plain").directory / "block_rate"
    asked = ("--rings", "1024,4096", "--rates", "20000,50000", "--seconds", "0.05")
    more = ("--emulated", "--scratch", tmp_path, "--out", out)
    done = run_script("find_drop_onset.py", "--program", program, *libraries(), *asked, *more)
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert [ring["ring_events"] for ring in document["rings"]] == [1024, 4096]
    for ring in document["rings"]:
        for step in ring["steps"]:
            assert step["written"] + step["dropped"] == step["blocks"]
        bursts = [step["blocks"] for step in ring["steps"] if step["kind"] == "burst"]
        assert bursts == [int(ring["ring_events"] * share) for share in (0.5, 1, 2, 4, 8)]
        asked = {step["asked_per_s"] for step in ring["steps"] if step["kind"] == "rate"}
        assert {ring["held_asked_per_s"], ring["drops_from_asked_per_s"]} - {None} <= asked
        # What fits into the ring needs no drain.
        assert ring["largest_burst"] >= ring["ring_events"]
    assert "A ring of 4,096 events (EMULATED)" in done.stdout
    assert list(tmp_path.iterdir()) == [out]


def rate(asked, ran, dropped):
    return Step("rate", asked, ran // 2, 0.5, 1.0, ran // 2 - dropped, dropped)


def test_rates_are_told_as_asked_for_and_as_they_ran():
    """As an H200 ran the default ring: full, it slows the program below what held."""
    steps = [
        rate(16_000_000, 15_900_000, 0),
        rate(32_000_000, 31_800_000, 0),
        rate(64_000_000, 12_800_000, 185_600),
        rate(128_000_000, 12_200_000, 183_000),
        Step("burst", None, 1_048_576, 0.1, 0.4, 1_048_576, 0),
        Step("burst", None, 2_097_152, 0.1, 0.8, 2_083_514, 13_638),
    ]
    assert onset(steps) == {
        "held_per_s": 31_800_000,
        "held_asked_per_s": 32_000_000,
        "drops_from_per_s": 12_200_000,
        "drops_from_asked_per_s": 64_000_000,
        "largest_burst": 1_048_576,
    }


def test_what_no_step_shows_is_null():
    held = onset([rate(1_000_000, 990_000, 0)])
    assert (held["held_asked_per_s"], held["drops_from_asked_per_s"]) == (1_000_000, None)
    dropped = onset([rate(1_000_000, 400_000, 7)])
    assert (dropped["held_per_s"], dropped["held_asked_per_s"]) == (None, None)
    assert (dropped["drops_from_per_s"], dropped["drops_from_asked_per_s"]) == (400_000, 1_000_000)
    assert dropped["largest_burst"] is None


def test_a_program_that_is_not_there_is_said(tmp_path):
    out = tmp_path / "onset.json"
    asked = ("--program", tmp_path / "absent", *libraries(), "--out", out)
    done = run_script("find_drop_onset.py", *asked)
    assert done.returncode == 1
    assert "No such file or directory; `make graph-cases`" in done.stderr
    assert json.loads(out.read_text())["rings"] == []


def chain(tmp_path, *arguments, **environment):
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    program.chmod(0o755)
    out = tmp_path / "chain.json"
    asked = ("--program", program, "--ladder", tmp_path / "ladder.so", "--out", out)
    small = ("--nodes", "20", "--rounds", "3", "--starts", "1", "--scratch", tmp_path)
    block_rate = build("plain").directory / "block_rate"
    done = run_script(
        "measure_callback_chain.py",
        *(*asked, *small, *libraries(), *arguments),
        KVTRACE_TEST_BLOCK_RATE=str(block_rate),
        **environment,
    )
    return done, json.loads(out.read_text()) if out.exists() else {}


def test_a_step_is_compared_with_the_clean_one_of_its_round(tmp_path):
    done, document = chain(tmp_path, "--shapes", "1x64,2x32")
    assert done.returncode == 0, done.stderr
    rows = document["rows"]
    assert {row["shape"] for row in rows} == {"1x64", "2x32"}
    ladder = {row["name"]: row for row in rows if row["in_ladder"] and row["shape"] == "1x64"}
    assert ladder["clean"]["more_ns"] == []
    assert ladder["no-op"]["more_ns"] == [250.0] * 3
    assert (ladder["injector"]["more_ns"], ladder["injector"]["written"]) == ([600.0] * 3, 20)
    arms = [row for row in rows if not row["in_ladder"] and row["shape"] == "2x32"]
    assert [row["name"] for row in arms] == [
        *("clean", "callbacks", "clean", "no-op", "clean", "blocks", "clean", "writes"),
        *("subscribed", "+ modules", "+ launches", "+ graphs", "+ nodes"),
    ]
    blocks = arms[5]
    # Against the median of the process before it.
    assert (blocks["more_ns"], blocks["events"], blocks["dropped"]) == (
        [499.0, 500.0, 501.0],
        40,
        0,
    )
    assert arms[1]["events"] == arms[3]["events"] == 0
    assert "ladder: injector" in done.stdout
    assert document["notes"] == []


def test_a_callback_that_left_no_events_is_no_measurement(tmp_path):
    done, document = chain(tmp_path, "--shapes", "1x64", KVTRACE_TEST_WRITTEN="0")
    assert done.returncode == 1
    assert document["notes"] == ["1x64 injector: one replay wrote to 0 places, expected 20 or more"]


def test_a_shape_that_is_none_is_said(tmp_path):
    done, _ = chain(tmp_path, "--shapes", "64")
    assert done.returncode == 2
    assert "argument --shapes: found '64', expected such as 1x64,1x512+128" in done.stderr


def test_a_part_that_fails_leaves_the_others(tmp_path):
    done, document = chain(tmp_path, "--shapes", "1x64+32,1x64", KVTRACE_TEST_COLD_FAILS="1")
    assert done.returncode == 1
    assert {row["shape"] for row in document["rows"]} == {"1x64"}
    (note,) = document["notes"]
    assert note.startswith("chain 1x64+32: exit status 3")


@needs_libraries
def test_a_load_of_long_prompts_is_counted_to_the_last_event(tmp_path):
    out = tmp_path / "load"
    asked = ("--engine", "emulator", "--events", "60000", "--prompt-tokens", "500")
    done = run_script("sustained_load.py", *asked, "--concurrency", "4", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "load.json").read_text())
    assert found["prompts"] == 3
    assert (found["events"] >= 60_000, found["dropped"], found["exit_code"]) == (True, 0, 0)
    assert found["looks"][-1]["events"] == found["events"]
    assert "Sustained load (EMULATED)" in done.stdout


def test_a_load_without_room_on_the_disk_is_refused(tmp_path):
    done = run_script("sustained_load.py", "--events", "10" + "0" * 15, "--out", tmp_path / "load")
    assert done.returncode == 2
    assert "bytes are free, expected" in done.stderr
