"""Which ranks record, as the launcher sees it in files that are still being written."""

import json

import pytest
from builders import flags, header_bytes, started

from kvtrace_cli.capture.parallel import ParallelSizes
from kvtrace_cli.capture.progress import describe_ranks
from kvtrace_cli.capture.ranks import RankProcess, explain_absent, look_at_ranks
from kvtrace_cli.dumps.run_dir import RunDir

TWO = ParallelSizes(tensor=2)


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "raw").mkdir()
    return RunDir(tmp_path)


def tell(run_dir, process_id, tensor=0, pipeline=0, data=0, **changes):
    """Let a process's plug-in say its rank."""
    world = changes.pop("world", tensor)
    ranks = {"tensor": tensor, "pipeline": pipeline, "data": data, "world": world}
    line = json.dumps(started(ranks=ranks, **changes))
    (run_dir.raw / f"{process_id}.steps.jsonl").write_text(f"{line}\n")


def record(run_dir, process_id, *names, kind="events"):
    """Let a process's injector open a file."""
    header = header_bytes(kind, 0, process_id=process_id, flags=flags(*names))
    name = f"{process_id}-0.events" if kind == "events" else f"{process_id}.launches"
    (run_dir.raw / f"{name}.kvt").write_bytes(header)


def look(run_dir, asked=TWO, **options):
    return look_at_ranks(run_dir, asked, **({"host_clock": "here"} | options))


def test_ranks_come_one_by_one(run_dir):
    assert describe_ranks(look(run_dir)) == "ranks 0/2"
    tell(run_dir, 7, tensor=1, host="n1", host_clock="here")
    record(run_dir, 7)
    seen = look(run_dir)
    assert describe_ranks(seen) == "ranks 1/2"
    assert seen.processes == (RankProcess(7, 1, 0, 0, 1, "n1", "this host"),)
    assert seen.missing == ("TP0",)
    tell(run_dir, 8)
    record(run_dir, 8)
    assert describe_ranks(look(run_dir)) == "ranks 2/2"
    assert explain_absent(look(run_dir)) is None


def test_a_process_that_ran_the_model_and_recorded_nothing_is_named(run_dir):
    tell(run_dir, 7)
    record(run_dir, 7)
    tell(run_dir, 8, tensor=1)
    told = explain_absent(look(run_dir))
    assert "1 of 2 ranks (tensor 2 parallel) attached" in told
    assert "rank TP1: process 8 recorded nothing" in told
    assert "TP0" not in told


def test_a_rank_that_nobody_is_is_named(run_dir):
    sizes = ParallelSizes(tensor=2, pipeline=1, data=2)
    for process_id, data in ((7, 0), (8, 1)):
        tell(run_dir, process_id, data=data)
        record(run_dir, process_id)
    told = explain_absent(look(run_dir, sizes))
    assert "2 of 4 ranks (tensor 2, data 2 parallel)" in told
    assert "rank DP0 TP1, DP1 TP1: no process said to be it" in told


def test_a_run_of_one_rank_is_judged_by_what_it_recorded(run_dir):
    tell(run_dir, 7)
    seen = look(run_dir, ParallelSizes())
    assert explain_absent(seen) is None
    assert describe_ranks(seen) is None


def test_processes_without_a_name_may_be_the_ranks_that_are_missing(run_dir):
    """Those that patched a kernel; a helper of the engine's with a context of its own is none."""
    record(run_dir, 7, "PATCHED")
    record(run_dir, 9)
    told = explain_absent(look(run_dir))
    assert "1 of 2 ranks" in told
    assert "the engine plug-in told of none" in told
    record(run_dir, 8, "PATCHED")
    assert explain_absent(look(run_dir)) is None
    assert [one.process_id for one in look(run_dir).processes] == [7, 8, 9]


def test_sizes_are_those_that_processes_tell_where_nobody_was_asked(run_dir):
    tell(run_dir, 7, world_sizes={"tensor": 2})
    record(run_dir, 7)
    assert look(run_dir, None).missing == ("TP1",)
    assert "rank TP1: no process" in explain_absent(look(run_dir, None))


def test_ranks_that_may_be_on_other_hosts_are_not_missed_here(run_dir):
    tell(run_dir, 7, world_sizes={"tensor": 2}, several_hosts=True)
    record(run_dir, 7)
    assert explain_absent(look(run_dir, None)) is None
    # The launcher of an engine with Ray has all of them in its directory.
    assert explain_absent(look(run_dir, TWO)) is not None
    assert explain_absent(look(run_dir, TWO, is_partial=True)) is None


def test_a_process_that_came_after_another_of_its_rank_is_held_to_the_same(run_dir):
    tell(run_dir, 7, world_sizes={"tensor": 1, "data": 1})
    record(run_dir, 7)
    tell(run_dir, 8, tensor=1)
    record(run_dir, 8)
    tell(run_dir, 9)
    told = explain_absent(look(run_dir))
    assert "rank TP0: process 9 recorded nothing" in told


def test_another_clock_is_another_host(run_dir):
    tell(run_dir, 7, host_clock="there")
    tell(run_dir, 8, tensor=1)  # an older plug-in, that tells none
    assert [one.clock for one in look(run_dir).processes] == ["other host", "this host"]
    assert [one.clock for one in look(run_dir, host_clock="").processes] == ["this host"] * 2


def test_what_is_being_written_or_damaged_is_left_out(run_dir):
    (run_dir.raw / "7.steps.jsonl").write_text('{"event": "star')
    (run_dir.raw / "8.steps.jsonl").write_text('{"event": "step"}\n')
    (run_dir.raw / "9.steps.jsonl").write_text('{"event": "started", "ranks": {"tensor": "x"}}\n')
    (run_dir.raw / "10-0.events.kvt").write_bytes(bytes(64))
    seen = look(run_dir)
    assert [one.process_id for one in seen.processes] == [9]
    assert seen.processes[0].tensor is None
