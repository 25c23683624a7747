"""The JSON documents: what is in them, and what must not be."""

import json
from dataclasses import dataclass, replace

import builders
import pytest
from builders import Trace, flags, kv_address, layout, recorded, seven_replays, started, step

from kvtrace_cli.analysis.attribution import attribute
from kvtrace_cli.analysis.facts import run_facts
from kvtrace_cli.analysis.model import Attribution, Reconciliation
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.run_facts import RunFacts
from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.dumps.summary import SCHEMA_VERSION, SUMMARY_KIND
from kvtrace_cli.reports.documents import document_text, report_document, summary_document

MANIFEST = {
    "engine": "vllm",
    "config": {"model": "Qwen3-14B"},
    "gpus": [{"index": 0, "name": "NVIDIA H200"}],
    "versions": {"vllm": "0.26.0"},
}


@dataclass(frozen=True)
class Run:
    """A run as its documents are made of it."""

    result: Reconciliation
    attribution: Attribution
    facts: RunFacts

    def summary(self, manifest=MANIFEST):
        return summary_document(self.result, self.attribution, manifest, self.facts)

    def report(self, manifest=MANIFEST):
        return report_document(self.result, self.attribution, manifest, self.facts)


def summarised(path, *traces, **options):
    """Write a run, read it back and do everything that its summary needs."""
    recording = recorded(path, *traces, **options)
    result = reconcile(recording)
    tables = step_tables(recording)
    attribution = attribute(result, recording, tables)
    return Run(result, attribution, run_facts(result, attribution, recording, tables))


@pytest.fixture
def result(tmp_path):
    return summarised(tmp_path, seven_replays())


def test_the_summary_says_what_was_concluded(result):
    document = result.summary()
    assert (document["kind"], document["schema_version"]) == (SUMMARY_KIND, SCHEMA_VERSION)
    assert (document["verdict"], document["reasons"]) == ("agrees", [])
    assert document["measured_request"]["graph_nodes"] == {
        "launches": 280,
        "expected_blocks": 280,
        "matched_blocks": 280,
        "missing_blocks": 0,
        "unexpected_blocks": 0,
        "launches_before_patching": 0,
        "blocks_before_patching": 0,
    }
    (graph,) = document["measured_graphs"]
    assert (graph["nodes"], graph["replays"], graph["sequences_consecutive"]) == (40, 7, True)
    assert graph["replay_gap"] == {"count": 6, "min_ms": 0.2, "median_ms": 0.2, "max_ms": 0.2}
    assert document["dumps"] == {
        "events_written": 280,
        "events_dropped": 0,
        "launches_written": 280,
        "launches_dropped": 0,
        "sequence_gaps": 0,
        "books_balance": True,
    }
    assert document["kernels"] == [{"name": builders.TARGET, "matched_blocks": 280}]
    assert document["order_join"]["agrees"] is True


def test_engine_model_and_gpus_come_from_the_manifest(result):
    document = result.summary()
    assert (document["engine"], document["model"]) == ("vllm", "Qwen3-14B")
    assert (document["gpus"], document["versions"]) == (["NVIDIA H200"], {"vllm": "0.26.0"})


def test_an_empty_manifest_leaves_them_null(result):
    document = result.summary({})
    assert (document["engine"], document["model"], document["gpus"]) == (None, None, [])


def test_two_runs_that_behaved_alike_have_the_same_summary(tmp_path, result):
    """Other process, other addresses, other times: the same summary."""
    other = replace(seven_replays(), process_id=12)
    other.launches = [launch.with_values(graph_exec=0xF000) for launch in other.launches]
    for event in other.events:
        event["gpu_globaltimer_ns"] += 1_000_000
    again = summarised(tmp_path / "other", other)
    assert again.summary() == result.summary()


def test_the_report_adds_what_is_true_of_one_run_only(result):
    document = result.report()
    assert document["files"][0]["name"] == "4711-0.events.kvt"
    assert document["context_kernels"][0]["process_id"] == 4711
    assert document.items() >= result.summary().items()
    assert json.loads(json.dumps(document))["unjudged_processes"] == []


def test_an_emulated_run_is_marked(tmp_path):
    trace = replace(seven_replays(), changes={"flags": flags("CLOSED", "PATCHED", "EMULATED")})
    assert summarised(tmp_path, trace).summary()["emulated"] is True


def test_without_files_or_request_there_are_nulls_not_zeros(tmp_path):
    document = summarised(tmp_path, requests=[]).summary()
    assert document["verdict"] == "inconclusive"
    assert document["measured_request"] is None
    assert document["dumps"]["books_balance"] is None
    assert document["order_join"]["agrees"] is None


def test_books_that_cannot_be_balanced_are_null(tmp_path):
    trace = seven_replays()
    trace.launches_dropped = 1
    assert summarised(tmp_path, trace).summary({})["dumps"]["books_balance"] is None


def in_steps(tmp_path, suffix="1a2b3c4d"):
    """One token of ours, one of the engine's and one of somebody else in a step of one layer."""
    trace = Trace(changes={"flags": flags("CLOSED", "PATCHED", "WRITES")})
    launch = trace.plain((4, 1, 1), step_stamp=1)
    trace.enter_all(launch)
    for x in range(3):
        for part in "KV"[: 2 - (x == 2)]:
            trace.store(launch, (x, 0, 0), kv_address(16 * x, 0, part))
    names = [f"cmpl-kvtrace-0-0-{suffix}", "_warmup_0_", f"cmpl-{suffix}"]
    steps = [started(), step(1, requests=[(name, 1, 0) for name in names], padded_rows=4)]
    asked = builders.request(prompt_token_ids=[1], returned_token_ids=[2])
    return summarised(tmp_path, trace, steps=steps, layout=layout(1), requests=[asked])


def test_the_summary_has_rows_and_our_requests(tmp_path):
    document = in_steps(tmp_path).summary()
    assert document["measured_requests"] == 1
    assert document["stores"] == {"recorded": 5, "matched": 5, "unexpected": 0}
    found = document["attribution"]
    rows = {"owned": 3, "engine_own": 1, "padding": 1, "dummy": 0, "draft": 0, "unknown": 0}
    assert found["rows"] == found["measured_rows"] == rows
    assert found["stores"] == rows | {"owned": 5, "engine_own": 2, "padding": 0}
    assert found["requests"] == [
        {
            "request_index": 0,
            "prompt_tokens": 1,
            "returned_tokens": 1,
            "cached_positions": 0,
            "positions": 1,
            "layers": 1,
            "expected": 1,
            "entered": 1,
            "k_written": 1,
            "v_written": 1,
            "lacks": [],
            "complete": True,
        }
    ]
    one = {"requests": 1, "positions": 1, "expected": 1, "entered": 1}
    assert found["engine_own_requests"] == one | {"complete": 1}
    assert found["other_requests"] == one | {"complete": 0}


def test_ids_that_the_engine_drew_are_in_the_report_only(tmp_path):
    one, other = (in_steps(tmp_path / suffix, suffix) for suffix in ("1a2b3c4d", "deadbeef"))
    assert one.summary() == other.summary()
    requests = other.report()["requests"]
    assert [request["request_id"] for request in requests] == [
        "cmpl-kvtrace-0-0-deadbeef",
        "cmpl-deadbeef",
        "_warmup_0_",
    ]
    assert requests[1]["lacks"] == ["1 V"]


def test_without_steps_or_stores_there_are_nulls(result):
    document = result.report()
    assert (document["attribution"], document["stores"]) == (None, None)
    assert document["requests"] == []
    assert document["notes"] == ["No engine steps were recorded, so no row is given to a request."]


def test_a_summary_stays_small_however_many_requests_there_are(tmp_path):
    trace = Trace()
    for launch_id in range(1, 301):
        trace.enter_all(trace.node(0, launch_id))
    begins = [builders.HOST_STEP_NS * number for number in range(1, 301)]
    requests = [
        builders.request(index, host_monotonic_begin_ns=begin, host_monotonic_end_ns=begin + 1)
        for index, begin in enumerate(begins)
    ]
    document = summarised(tmp_path, trace, requests=requests).summary()
    assert document["structure"]["requests_total"] == 300
    assert len(document["structure"]["requests"]) == 64
    assert len(document_text(document)) < 60_000


def test_the_text_of_a_document_is_json_with_short_lines_for_short_things(result):
    document = result.summary()
    text = document_text(document)
    assert json.loads(text) == json.loads(json.dumps(document))
    lines = text.splitlines()
    assert any('"engine": "vllm"' in line for line in lines)
    assert any(line.strip().startswith('"samples": [0.') for line in lines)
    assert document_text({"a": [], "b": {}}) == '{"a": [], "b": {}}'
