"""What is measured of a process whose clock is another host's: its steps tell, its times do not."""

import pytest
from builders import request, step
from rank_scenes import REQUEST, recorded_ranks, steps_of, tensor_ranks

from kvtrace_cli.analysis.facts import conclude
from kvtrace_cli.analysis.measured_steps import foreign_processes
from kvtrace_cli.analysis.reconcile import reconcile

FOREIGN = {"ranks": [{"process_id": 4712, "clock": "other host"}]}
OTHER = "cmpl-kvtrace-1-0-99999999"
# The builders' clock goes 1,000 ns a launch: the first of these ends before any is submitted.
WINDOWS = (
    request(0, host_monotonic_begin_ns=1, host_monotonic_end_ns=2),
    request(1, host_monotonic_begin_ns=3, host_monotonic_end_ns=4),
)


def launched(tmp_path, manifest, requests=WINDOWS):
    scenes = tensor_ranks()
    for scene in scenes:
        scene.lines = [*steps_of(REQUEST, 1), step(4, requests=[[OTHER, 1, 0]])]
    return recorded_ranks(tmp_path, scenes, manifest=manifest, requests=requests)


def measured(result, process_id):
    launches = result.launches.filter(process_id=process_id)
    return (
        launches.select("step_stamp", "is_measured", "request_index")
        .unique()
        .sort("step_stamp")
        .rows()
    )


def test_steps_tell_which_requests_were_under_way(tmp_path):
    result = reconcile(launched(tmp_path, FOREIGN))
    nothing = [(stamp, False, None) for stamp in (1, 2, 3, 4)]
    assert measured(result, 4711) == nothing
    assert measured(result, 4712) == [
        (1, False, None),
        (2, True, 0),
        (3, True, 0),
        (4, True, 1),
    ]


def test_requests_at_once_are_one_stretch_there_too(tmp_path):
    at_once = [one | {"host_monotonic_begin_ns": 1, "host_monotonic_end_ns": 9} for one in WINDOWS]
    result = reconcile(launched(tmp_path, FOREIGN, at_once))
    assert {row[1:] for row in measured(result, 4712)[1:]} == {(True, None)}


def test_a_clock_of_this_host_is_believed(tmp_path):
    manifest = {"ranks": [{"process_id": 4712, "clock": "this host"}]}
    result = reconcile(launched(tmp_path, manifest))
    assert {row[1] for row in measured(result, 4712)} == {False}


def test_what_was_not_measured_there_is_of_no_phase_that_a_clock_would_tell(tmp_path):
    facts = conclude(launched(tmp_path, FOREIGN)).facts
    phases = [[phase.name for phase in one.phases] for one in facts.structure.processes]
    assert phases == [["between requests"], ["measured", "between requests"]]


@pytest.mark.parametrize("ranks", [None, {}, [1], [{"clock": "other host"}], "other host"])
def test_a_manifest_of_another_kind_names_no_process(ranks):
    assert foreign_processes({"ranks": ranks}) == frozenset()
