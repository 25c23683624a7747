"""Runs that scripts/make_large_run.py makes up agree; memory does not grow with their events."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace_cli.analysis.facts import conclude
from kvtrace_cli.analysis.model import StoreCounts, Verdict
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir

SCRIPTS = Path(__file__).parents[2] / "scripts"
EVENT_BYTES = 64


def script(name, *arguments):
    done = subprocess.run(
        [sys.executable, SCRIPTS / name, *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def made(path, **options):
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    script("make_large_run.py", path, *words)
    return path


def found_in(run):
    return conclude(read_recording(open_run_dir(run, allow_incomplete=False))).result


@pytest.mark.parametrize("plain", [[], ["--plain"]], ids=["graphs", "plain"])
def test_a_made_up_run_agrees(plain, tmp_path):
    options = ["--events", 3000, "--blocks", 5, "--stores", 2, "--processes", 2, *plain]
    script("make_large_run.py", tmp_path / "run", *options)
    result = found_in(tmp_path / "run")
    assert result.verdict is Verdict.AGREES
    sections = (result.whole_life.graph_nodes, result.whole_life.plain_launches)
    assert sorted(blocks.matched_blocks for blocks in sections) == [0, 1200]
    assert result.stores == StoreCounts(2400, 2400)
    assert result.order_join.agrees
    assert [books.written for books in result.files] == [1800, 1800, 120, 120]


def test_made_up_ranks_agree_with_each_other(tmp_path):
    options = ["--events", 3000, "--blocks", 5, "--processes", 3, "--tensor-ranks"]
    script("make_large_run.py", tmp_path / "run", *options)
    result = found_in(tmp_path / "run")
    assert (result.verdict, result.ranks.differences) == (Verdict.AGREES, ())
    assert [
        (one.rank.name, one.matched_blocks, one.steps["forward"]) for one in result.ranks.accounts
    ] == [(f"TP{rank}", 1000, 5) for rank in range(3)]
    assert len(result.ranks.checks) == 3


def test_memory_does_not_grow_with_the_events(tmp_path):
    few, many = (made(tmp_path / str(n), events=n, blocks=2048) for n in (500_000, 3_000_000))
    peaks = [json.loads(script("measure_reconcile.py", run, "--here")) for run in (few, many)]
    assert [found["exit"] for found in peaks] == [0, 0]
    more_mib = 2_500_000 * EVENT_BYTES / 2**20
    assert peaks[1]["peak_mib"] - peaks[0]["peak_mib"] < more_mib / 4
