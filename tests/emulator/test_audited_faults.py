"""Classes of bugs that vLLM had, in the emulated engine: an audit finds each and nothing else."""

import json

import pytest
from emulated_runs import kvtrace, needs_libraries, run_arguments

from kvtrace_cli.errors import ExitCode

# Prompts longer than a step, so that they are cut, and steps that need padding.
LOAD = (
    *("--repeat", "6", "--concurrency", "3", "--prompt-tokens", "21", "--max-tokens", "6"),
    *("--max-num-batched-tokens", "16", "--capture-sizes", "2,4,8"),
)

pytestmark = needs_libraries


def audited(path, *options, fault="none", record="writes"):
    """Record a run with a fault and return the audit's exit code and document."""
    asked = ("--record", record, *LOAD, *options)
    ran = kvtrace(*run_arguments(path, *asked, engine=("--fault", fault)))
    assert ran.returncode == ExitCode.AGREES, ran.stderr
    done = kvtrace("audit", str(path), "--json")
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("options", [(), ("--prefix-caching",)])
def test_without_a_fault_every_write_is_in_its_slot(tmp_path, options):
    code, document = audited(tmp_path / "run", *options)
    assert (code, document["verdict"], document["findings"]) == (ExitCode.AGREES, "clean", [])
    owners = {one["owner"]: one for one in document["judged"]["owners"]}
    assert owners["owned"]["writes"] == document["judged"]["expected_writes"]
    assert owners["owned"]["rows"] * 40 * 2 == owners["owned"]["writes"]
    assert owners["padding"]["rows"] > 0
    assert [owners[name]["writes"] for name in ("padding", "dummy", "unknown")] == [0, 0, 0]


def test_stores_of_all_threads_are_the_same_writes(tmp_path):
    code, document = audited(tmp_path / "run", "--repeat", "2", record="all-writes")
    assert (code, document["findings"]) == (ExitCode.AGREES, [])
    owned = document["judged"]["owners"][0]
    assert owned["writes"] == document["judged"]["expected_writes"]
    assert owned["stores"] > owned["writes"]


RULES = {
    "dummy-slot-zero": "dummy-row-wrote",
    "stale-padding-slots": "padding-row-wrote",
    "padding-last-slot": "padding-row-wrote",
    "freed-block-reused": "foreign-block",
    "block-size-mixup": "wrong-slot",
    "skipped-layer": "missing-write",
    "shifted-layer": "wrong-slot",
}


@pytest.mark.parametrize("fault", RULES)
def test_a_seeded_fault_is_found_with_its_evidence(tmp_path, fault):
    code, document = audited(tmp_path / "run", fault=fault)
    assert (code, document["verdict"]) == (ExitCode.MISMATCH, "findings")
    assert [count["rule"] for count in document["rules"]] == [RULES[fault]]
    findings = document["findings"]
    assert len(findings) == document["rules"][0]["findings"]
    for finding in findings:
        assert None not in (finding["step_stamp"], finding["layer_index"], finding["row"])
        assert (finding["request_id"] is None) == (fault in _OWNERLESS)
    _EVIDENCE[fault](findings)


_OWNERLESS = ("dummy-slot-zero", "stale-padding-slots", "padding-last-slot")


def _null_block(findings):
    assert {one["written_slot"] for one in findings} == {0}
    assert all(one["in_null_block"] for one in findings)


def _a_victim(findings):
    assert any(one["held_by"] for one in findings)


def _the_last_slot(findings):
    assert len({one["written_slot"] for one in findings}) == 1
    assert {one["offset"] for one in findings} == {15}


def _two_requests(findings):
    assert all(one["held_by"] not in (None, one["request_id"]) for one in findings)
    assert all(one["written_slot"] == one["expected_slot"] for one in findings)


def _other_slots(findings):
    assert all(one["written_slot"] != one["expected_slot"] for one in findings)


def _one_layer_of_one_step(findings):
    assert {(one["step_stamp"], one["layer_index"]) for one in findings} == {
        (findings[0]["step_stamp"], 7)
    }
    assert {one["part"] for one in findings} == {"K and V"}


def _one_further_in_one_layer(findings):
    assert {one["layer_index"] for one in findings} == {7}
    assert all(one["written_slot"] == one["expected_slot"] + 1 for one in findings)


_EVIDENCE = {
    "dummy-slot-zero": _null_block,
    "stale-padding-slots": _a_victim,
    "padding-last-slot": _the_last_slot,
    "freed-block-reused": _two_requests,
    "block-size-mixup": _other_slots,
    "skipped-layer": _one_layer_of_one_step,
    "shifted-layer": _one_further_in_one_layer,
}
