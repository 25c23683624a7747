"""Emulated engines of several ranks, reconciled and audited: an odd rank is named."""

import json

import pytest
from emulated_runs import kvtrace, needs_libraries, run_arguments, small_model

from kvtrace_cli.app import main
from kvtrace_cli.errors import ExitCode

LAYERS = 4
REQUESTS = ({"prompt_tokens": 4, "max_tokens": 5}, {"prompt_tokens": 3, "max_tokens": 2})

pytestmark = needs_libraries


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record an engine of a model with few layers; return its run directory and reconciliation."""
    model = small_model(tmp_path_factory.mktemp("model"), layers=LAYERS, requests=REQUESTS)
    options = (
        *("--json", "--record", "writes", "--ring-events", "4096", "--launch-records", "1024"),
        *("--requests", str(model / "requests.jsonl"), "--concurrency", "2"),
    )

    def call(*engine):
        out = tmp_path_factory.mktemp("ranks") / "run"
        done = kvtrace(*run_arguments(out, *options, model=model, engine=engine))
        assert done.returncode == ExitCode.AGREES, done.stderr
        return out, json.loads(done.stdout)

    return call


def test_a_rank_with_shifted_slots_is_found_among_four(recorded, capsys):
    engine = ("-tp", "2", "-pp", "2", "--fault", "shifted-slots", "--fault-rank", "3")
    out, document = recorded(*engine)
    ranks = document["ranks"]
    assert [one["name"] for one in ranks] == ["TP0 PP0", "TP1 PP0", "TP0 PP1", "TP1 PP1"]
    # Whatever a rank writes, it enters the same blocks.
    assert {one["verdict"] for one in ranks} == {"agrees"}
    assert len({(one["matched_blocks"], one["stores"]) for one in ranks}) == 1
    assert ranks[0]["matched_blocks"] == ranks[0]["expected_blocks"] > 0
    assert document["rank_checks"] == ["rank-steps", "rank-kv-blocks", "rank-layers", "rank-rows"]
    assert main(["audit", str(out), "--json"]) == ExitCode.MISMATCH
    audited = json.loads(capsys.readouterr().out)
    parted = [one for one in audited["findings"] if one["rule"] == "rank-slots"]
    assert {(one["rank"], one["other_rank"]) for one in parted} == {("TP1 PP1", "TP0 PP1")}
    assert all(one["written_slot"] == one["expected_slot"] + 1 for one in parted)
    assert {one["layer_index"] for one in parted} == {2, 3}


def test_data_ranks_with_unequal_load_are_accounted_for_and_clean(recorded, capsys):
    out, document = recorded("-dp", "2")
    ranks = document["ranks"]
    assert [(one["name"], one["verdict"]) for one in ranks] == [
        ("DP0", "agrees"),
        ("DP1", "agrees"),
    ]
    assert document["rank_checks"] == ["rank-idle", "rank-requests"]
    assert all(one["steps"]["dummy"] for one in ranks)
    assert ranks[0]["steps"]["forward"] != ranks[1]["steps"]["forward"]
    assert main(["audit", str(out), "--json"]) == ExitCode.AGREES
    assert json.loads(capsys.readouterr().out)["judged"]["compared_ranks"] == 0
