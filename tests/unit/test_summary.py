"""Reading a summary: strict, of every version, and nothing else is taken for one."""

import copy
import json
from dataclasses import replace

import pytest
from diff_scenes import compared, document, prompt_and_replays

from kvtrace_cli.analysis.diff_model import DiffVerdict
from kvtrace_cli.analysis.run_facts import Summary, fault_in
from kvtrace_cli.dumps.summary import (
    SCHEMA_VERSION,
    are_comparable,
    read_document,
    summary_of,
)
from kvtrace_cli.dumps.typed import KindError, from_document
from kvtrace_cli.errors import KvtraceError

# Settings that version 2 lacks.
LATER = ("pipeline_parallel", "data_parallel")


@pytest.fixture
def whole(tmp_path):
    return document(tmp_path / "base", prompt_and_replays())


def read(tmp_path, text):
    path = tmp_path / "summary.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return summary_of(path, read_document(path), Summary)


def version_1(whole):
    new = ("kind", "settings", "structure", "times", "graphs_total")
    return {name: value for name, value in whole.items() if name not in new} | {"schema_version": 1}


def test_a_summary_is_read_as_it_was_written(tmp_path, whole):
    summary = read(tmp_path, whole)
    assert (summary.schema_version, summary.verdict, summary.engine) == (3, "agrees", "vllm")
    (process,) = summary.structure.processes
    assert [(graph.nodes, graph.replays) for graph in process.graphs] == [(4, 7)]
    assert [run.replays for run in process.courses[0].runs] == [0, 7]
    assert summary.settings.listed["capture_sizes"] == [1, 2, 4, 8]
    assert fault_in(summary) is None


def test_fields_that_are_not_known_are_ignored(tmp_path, whole):
    whole["structure"]["colour"] = whole["colour"] = "red"
    assert read(tmp_path, whole) is not None


def version_2(whole):
    """Return the document as kvtrace wrote it before it knew ranks."""
    settings = {name: one for name, one in whole["settings"].items() if name not in LATER}
    processes = [
        {name: value for name, value in one.items() if name != "ranks"}
        for one in whole["structure"]["processes"]
    ]
    found = {name: value for name, value in whole.items() if not name.startswith("rank")}
    return found | {
        "schema_version": 2,
        "settings": settings,
        "structure": whole["structure"] | {"processes": processes},
    }


def test_a_summary_of_version_2_is_read_and_compared_in_full(tmp_path, whole):
    older = read(tmp_path, version_2(whole))
    assert older.settings.tensor_parallel == read(tmp_path, whole).settings.tensor_parallel
    assert (older.settings.data_parallel, older.structure.processes[0].ranks) == (None, ())
    assert are_comparable(older.schema_version, SCHEMA_VERSION)
    assert not are_comparable(1, SCHEMA_VERSION)
    assert compared(older, read(tmp_path, whole)).verdict is DiffVerdict.SAME


def test_a_summary_of_version_1_is_read_without_what_it_lacks(tmp_path, whole):
    summary = read(tmp_path, version_1(whole))
    assert (summary.settings, summary.structure, summary.times) == (None, None, None)
    assert [(graph.nodes, graph.replays) for graph in summary.measured_graphs] == [(4, 7)]


UNREADABLE = {
    "no JSON": ("{", "no JSON in line 1"),
    "a list": ("[]", "a JSON list, expected a summary"),
    "no version": ("{}", "no schema_version, expected a summary"),
    "a manifest": ('{"schema_version": 1, "subcommand": "run"}', "another kind of document"),
    "another kind": ('{"schema_version": 2, "kind": "shopping list"}', "shopping list, expected"),
    "a newer version": (
        '{"schema_version": 4, "kind": "kvtrace-summary"}',
        "schema version 4, this kvtrace reads 1 to 3; install the kvtrace that wrote it",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_is_no_summary_is_refused_with_what_was_found_and_expected(tmp_path, case):
    text, message = UNREADABLE[case]
    with pytest.raises(KvtraceError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)
    assert "summary.json" in str(caught.value)


DAMAGES = {
    "no structure": (("structure",), None, "the summary has no structure"),
    "a text for a number": (
        ("dumps", "events_dropped"),
        "3",
        "the summary.dumps.events_dropped is '3', expected a whole number",
    ),
    "a truth value for a number": (("structure", "requests_total"), True, "is True, expected a"),
    "a negative number": (("structure", "requests_total"), -1, "is -1, expected 0 or more"),
    "a number for a list": (("structure", "kernels"), 7, "is 7, expected a list"),
    "a number for a text": (("verdict",), 7, "is 7, expected a text"),
    "a text for a truth value": (("incomplete",), "no", "expected true or false"),
    "a list for an object": (("settings",), [1], "is [1], expected an object"),
    "a text for a time": (
        ("times", "figures", 0, "samples", 0),
        "fast",
        "the summary.times.figures[0].samples[0] is 'fast', expected a number",
    ),
    "no number": (("times", "figures", 0, "samples", 0), float("nan"), "is nan, expected a number"),
    "too few dimensions": (
        ("structure", "processes", 0, "graphs", 0, "node_runs", 0, "grid"),
        [1],
        "has 1 items, expected 3",
    ),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_summary_is_refused_and_the_place_named(tmp_path, whole, case):
    place, value, message = DAMAGES[case]
    part = whole
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    with pytest.raises(KvtraceError) as caught:
        read(tmp_path, whole)
    assert message in str(caught.value)
    assert "the file is damaged" in str(caught.value)


def test_every_field_is_missed(tmp_path, whole):
    """No field of the structure can be left out without being noticed."""
    for name in whole["structure"]:
        damaged = copy.deepcopy(whole)
        del damaged["structure"][name]
        with pytest.raises(KvtraceError, match=f"the summary.structure has no {name}"):
            read(tmp_path, damaged)


def test_what_no_run_has_is_a_fault(tmp_path, whole):
    summary = read(tmp_path, whole)
    structure = summary.structure
    (process,) = structure.processes
    (graph,) = process.graphs
    (course,) = process.courses

    def fault(**changes):
        processes = (replace(process, **changes),)
        return fault_in(replace(summary, structure=replace(structure, processes=processes)))

    assert fault(graphs=()) == "a graph is named that is not listed"
    assert fault(graphs=(replace(graph, node_runs=()),)) == "a graph of 4 nodes lists 0"
    assert (
        fault(graphs=(replace(graph, repeats=10**12),)) == "a graph of 4 nodes lists 4000000000000"
    )
    huge = replace(graph, nodes=10**9)
    assert fault(graphs=(huge,)) == "a graph has 1000000000 nodes"
    broken = replace(course, runs=(replace(course.runs[0], plain=None),))
    assert "neither replays nor plain launches" in fault(courses=(broken,))
    figures = (replace(summary.times.figures[0], samples=(1.0,) * 200),)
    many = replace(summary, times=replace(summary.times, figures=figures))
    assert fault_in(many) == "a figure has more than 128 samples"


def test_a_deep_document_is_refused(tmp_path):
    with pytest.raises(KvtraceError):
        read(tmp_path, "[" * 100_000)


def test_a_union_with_none_takes_none_only(whole):
    assert from_document(Summary, whole | {"engine": None}, "it").engine is None
    with pytest.raises(KindError, match=r"it\.engine is 3, expected a text"):
        from_document(Summary, whole | {"engine": 3}, "it")
