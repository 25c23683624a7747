"""Emulated runs with one change each, recorded, reconciled and compared as a user does."""

import json

import pytest
from emulated_runs import needs_libraries, run_arguments

from kvtrace_cli.app import main
from kvtrace_cli.errors import ExitCode

pytestmark = needs_libraries


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Record a run once for all tests: a name and options -> its directory."""
    folder = tmp_path_factory.mktemp("runs")

    def run(name, *options):
        out = folder / name
        if not out.exists():
            arguments = run_arguments(out, "--record", "writes", *options)
            assert main(arguments) == ExitCode.AGREES
        return out

    return run


def differences(capsys, before, after, *options):
    capsys.readouterr()
    code = main(["diff", str(before), str(after), "--json", *options])
    document = json.loads(capsys.readouterr().out)
    assert document["emulated"]
    return code, [one for one in document["differences"] if one["decides"]]


def test_two_runs_of_one_set_up_are_the_same(record, capsys):
    found = differences(capsys, record("base"), record("again"))
    assert found == (ExitCode.AGREES, [])


def test_other_capture_sizes_make_padding_appear(record, capsys):
    code, found = differences(capsys, record("base"), record("sizes", "--capture-sizes", "8"))
    assert code == ExitCode.MISMATCH
    assert [one["text"] for one in found] == [
        "measured request 1, nodes 1 to 40 of the graph: grid 1, then grid 8.",
        "padding rows that entered in measured requests: 0, then 1,960.",
    ]


def test_one_token_more_is_one_replay_more(record, capsys):
    runs = record("base"), record("nine", "--max-tokens", "9")
    code, found = differences(capsys, *runs)
    assert (code, [one["rule"] for one in found]) == (ExitCode.INCONCLUSIVE, ["requests"])
    code, found = differences(capsys, *runs, "--allow", "requests")
    assert code == ExitCode.MISMATCH
    assert [one["text"] for one in found] == [
        "measured request 1: 7 replays of a 40-node graph, then 8 replays of a 40-node graph."
    ]


def test_requests_at_once_are_the_same_however_they_were_batched(record, capsys):
    options = ("--repeat", "3", "--concurrency", "3")
    found = differences(capsys, record("three", *options), record("three-again", *options))
    assert found == (ExitCode.AGREES, [])


def test_steps_that_one_side_lacks_are_not_guessed(record, capsys):
    runs = record("base"), record("without", "--no-steps")
    code, found = differences(capsys, *runs)
    assert (code, [one["rule"] for one in found]) == (ExitCode.INCONCLUSIVE, ["recording"])
    assert differences(capsys, *runs, "--allow", "recording") == (ExitCode.AGREES, [])
