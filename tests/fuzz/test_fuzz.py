"""What the fuzzer once found stays read; a short run of it is part of every test run."""

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.fuzz_readers import CRASHES, SEEDS, USES, check

FUZZER = Path(__file__).with_name("fuzz_readers.py")
FOUND = sorted(CRASHES.iterdir()) if CRASHES.is_dir() else []


@pytest.mark.parametrize("seed", sorted(SEEDS.iterdir()), ids=lambda path: path.name)
def test_a_seed_is_whole(seed):
    assert check(seed.name, seed.read_bytes(), None if seed.suffix == ".gz" else USES) is None


@pytest.mark.parametrize("kept", FOUND, ids=lambda path: path.name)
def test_a_kept_input_is_read_or_refused(kept):
    depth, _, name = kept.name.split("-", 2)
    assert check(name, kept.read_bytes(), USES if depth == "whole" else None) is None


def test_a_short_run_finds_nothing():
    done = subprocess.run(
        [sys.executable, FUZZER, "--inputs", "3000", "--seed", "7", "--whole", "40"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
