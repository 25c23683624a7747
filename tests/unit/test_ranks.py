"""Which rank a process is, what it is called, and which ranks are absent."""

import pytest

from kvtrace_cli.analysis.rank_model import process_title
from kvtrace_cli.analysis.ranks import ranks_of
from kvtrace_cli.dumps.schema import ProcessSteps, Recording


def recording(*told, parallel=None, **started):
    steps = tuple(
        ProcessSteps(100 + number, {"event": "started", "ranks": ranks} | started, (), None)
        for number, ranks in enumerate(told)
    )
    manifest = {} if parallel is None else {"parallel": parallel}
    return Recording(
        incomplete=False,
        manifest=manifest,
        requests=(),
        journal=(),
        events=(),
        launches=(),
        steps=steps,
    )


def place(data=0, tensor=0, pipeline=0):
    return {"data": data, "tensor": tensor, "pipeline": pipeline}


def names(*told, **options):
    return list(ranks_of(recording(*told, **options)).names.values())


def test_a_name_has_the_dimensions_that_are_larger_than_one():
    assert names(place(), place(tensor=1)) == ["TP0", "TP1"]
    assert names(place(), place(pipeline=1)) == ["PP0", "PP1"]
    both = [place(tensor=t, pipeline=p) for p in range(2) for t in range(2)]
    assert names(*both) == ["TP0 PP0", "TP1 PP0", "TP0 PP1", "TP1 PP1"]
    assert names(place(tensor=1), place(data=1)) == ["DP0 TP1", "DP1 TP0"]


def test_a_single_rank_has_no_name():
    found = ranks_of(recording(place(), parallel=place(1, 1, 1)))
    assert (found.names, found.total, found.absent) == ({}, 1, ())
    assert process_title(100, found.names) == "process 100"


def test_sizes_that_were_asked_for_or_told_name_even_a_rank_that_is_alone():
    asked = ranks_of(recording(place(tensor=1), parallel=place(1, 2, 1)))
    assert asked.names == {100: "TP1"}
    assert [rank.name for rank in asked.absent] == ["TP0"]
    told = ranks_of(recording(place(), world_sizes={"tensor": 1, "pipeline": 2}))
    assert [rank.name for rank in told.absent] == ["PP1"]
    assert process_title(100, told.names) == "process 100 (PP0)"


def test_old_recordings_have_no_sizes_so_no_rank_is_absent():
    assert ranks_of(recording(place(tensor=3))).absent == ()


def test_replicas_of_a_dense_model_think_they_are_alone_and_the_manifest_knows_better():
    found = ranks_of(
        recording(place(), place(data=1), parallel=place(3, 1, 1), world_sizes={"tensor": 1})
    )
    assert list(found.names.values()) == ["DP0", "DP1"]
    assert [rank.name for rank in found.absent] == ["DP2"]


def test_ranks_are_in_order_and_numbered_over_all_engines():
    told = [place(1, 1), place(1, 0), place(0, 1), place(0, 0)]
    found = ranks_of(recording(*told))
    assert [(rank.process_id, rank.number) for rank in found.present] == [
        (103, 0),
        (102, 1),
        (101, 2),
        (100, 3),
    ]
    assert found.engines == ()  # none ran a step


def test_what_an_engine_does_not_tell_follows_from_its_own_count():
    found = ranks_of(recording({"world": 3}, parallel={"tensor": 2, "pipeline": 2, "data": 1}))
    (rank,) = found.present
    assert (rank.tensor, rank.pipeline, rank.name, rank.number) == (1, 1, "TP1 PP1", 3)
    (alone,) = ranks_of(recording({"world": 3})).present
    assert (alone.number, alone.name) == (3, "")


@pytest.mark.parametrize("parallel", [None, [], {"tensor": "2"}, {"tensor": True}, {"data": -1}])
def test_sizes_of_another_kind_count_for_nothing(parallel):
    found = ranks_of(recording(place(), parallel=parallel))
    assert (found.total, found.absent) == (1, ())


def test_a_damaged_size_does_not_fill_the_memory():
    found = ranks_of(recording(place(), parallel={"tensor": 2**62}))
    assert len(found.absent) == 1024
