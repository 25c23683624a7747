"""The JSON documents: what is in them, and what must not be."""

import json
from dataclasses import replace

import builders
import pytest
from builders import flags, reconciled, seven_replays

from kvtrace_cli.reports.documents import SCHEMA_VERSION, report_document, summary_document

MANIFEST = {
    "engine": "vllm",
    "config": {"model": "Qwen3-14B"},
    "gpus": [{"index": 0, "name": "NVIDIA H200"}],
    "versions": {"vllm": "0.26.0"},
}


@pytest.fixture
def result(tmp_path):
    return reconciled(tmp_path, seven_replays())


def test_the_summary_says_what_was_concluded(result):
    document = summary_document(result, MANIFEST)
    assert document["schema_version"] == SCHEMA_VERSION
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
    document = summary_document(result, MANIFEST)
    assert (document["engine"], document["model"]) == ("vllm", "Qwen3-14B")
    assert (document["gpus"], document["versions"]) == (["NVIDIA H200"], {"vllm": "0.26.0"})


def test_an_empty_manifest_leaves_them_null(result):
    document = summary_document(result, {})
    assert (document["engine"], document["model"], document["gpus"]) == (None, None, [])


def test_two_runs_that_behaved_alike_have_the_same_summary(tmp_path, result):
    """Other process, other addresses, other times: the same summary."""
    other = replace(seven_replays(), process_id=12)
    other.launches = [launch.with_values(graph_exec=0xF000) for launch in other.launches]
    for event in other.events:
        event["gpu_globaltimer_ns"] += 1_000_000
    again = reconciled(tmp_path / "other", other)
    assert summary_document(again, MANIFEST) == summary_document(result, MANIFEST)


def test_the_report_adds_what_is_true_of_one_run_only(result):
    document = report_document(result, MANIFEST)
    assert document["files"][0]["name"] == "4711-0.events.kvt"
    assert document["context_kernels"][0]["process_id"] == 4711
    assert document.items() >= summary_document(result, MANIFEST).items()
    assert json.loads(json.dumps(document))["unjudged_processes"] == []


def test_an_emulated_run_is_marked(tmp_path):
    trace = replace(seven_replays(), changes={"flags": flags("CLOSED", "PATCHED", "EMULATED")})
    assert summary_document(reconciled(tmp_path, trace), MANIFEST)["emulated"] is True


def test_without_files_or_request_there_are_nulls_not_zeros(tmp_path):
    document = summary_document(reconciled(tmp_path, requests=[]), MANIFEST)
    assert document["verdict"] == "inconclusive"
    assert document["measured_request"] is None
    assert document["dumps"]["books_balance"] is None
    assert document["order_join"]["agrees"] is None


def test_books_that_cannot_be_balanced_are_null(tmp_path):
    trace = seven_replays()
    trace.launches_dropped = 1
    assert summary_document(reconciled(tmp_path, trace), {})["dumps"]["books_balance"] is None
