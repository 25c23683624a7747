"""Stores recorded on a real H200: who wrote which slot, and bugs seeded into vLLM 0.26.

Provenance: tests/data/README.md. The faulty engines ran four layers of Qwen3-14B's geometry.
"""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from kvtrace_cli.app import main
from kvtrace_cli.errors import ExitCode

DATA = Path(__file__).parents[1] / "data"
LAYERS = 4
SLOTS_OF_A_BLOCK = 16
KV_BLOCKS = 32_768


@pytest.fixture
def run(tmp_path):
    def copy(name: str) -> Path:
        return Path(shutil.copytree(DATA / name, tmp_path / Path(name).name))

    return copy


def documented(command: str, run_dir: Path, capsys, *options: str) -> tuple[int, dict]:
    code = main([command, str(run_dir), "--json", *options])
    return code, json.loads(capsys.readouterr().out)


def findings_of(fault: str, run, capsys) -> tuple[str, pl.DataFrame]:
    """Return the one rule that an audit reports, and its findings."""
    code, document = documented("audit", run(f"h200-faults/{fault}"), capsys)
    assert code == ExitCode.MISMATCH
    findings = pl.DataFrame(document["findings"], infer_schema_length=None)
    assert findings["layer_index"].unique().sort().to_list() == list(range(LAYERS))
    assert findings["address"].null_count() == 0
    (rule,) = findings["rule"].unique()
    return rule, findings


def test_each_of_15_positions_is_written_once_in_each_of_40_layers(run, capsys):
    code, document = documented("reconcile", run("h200-writes"), capsys)
    assert code == ExitCode.AGREES
    (request,) = document["attribution"]["requests"][1:]
    assert (request["positions"], request["layers"], request["lacks"]) == (15, 40, [])
    assert (request["entered"], request["k_written"], request["v_written"]) == (600, 600, 600)
    assert document["stores"]["unexpected"] == 0


def test_an_audit_of_a_sound_run_is_clean(run, capsys):
    code, document = documented("audit", run("h200-writes"), capsys)
    assert (code, document["verdict"], document["findings"]) == (ExitCode.AGREES, "clean", [])
    assert document["judged"]["expected_writes"] == 3760


def test_the_life_of_a_token(run, capsys):
    run_dir = run("h200-writes")
    assert main(["show", str(run_dir), "--request", "1", "--token", "8"]) == ExitCode.AGREES
    text = capsys.readouterr().out
    assert "24 (KV block 1, offset 8" in text
    assert sum(line.rstrip().endswith(" ok") for line in text.splitlines()) == 40


def test_the_same_engine_without_a_fault_is_clean(run, capsys):
    code, document = documented("audit", run("h200-faults/none"), capsys)
    assert (code, document["verdict"], document["findings"]) == (ExitCode.AGREES, "clean", [])
    assert document["judged"]["expected_writes"] == 4024


def test_dummy_rows_that_write_slot_0(run, capsys):
    rule, findings = findings_of("dummy-slot-zero", run, capsys)
    assert rule == "dummy-row-wrote"
    assert findings["written_slot"].unique().to_list() == [0]
    assert findings["in_null_block"].all()
    assert findings["step_kind"].unique().to_list() == ["dummy"]


def test_padding_rows_that_keep_the_slots_of_the_pass_before(run, capsys):
    rule, findings = findings_of("stale-padding-slots", run, capsys)
    assert rule == "padding-row-wrote"
    held = findings.filter(pl.col("held_by").str.contains("kvtrace-1"))
    assert not held.is_empty()
    assert held["held_position"].null_count() == 0


def test_padding_rows_that_write_the_last_slot(run, capsys):
    rule, findings = findings_of("padding-last-slot", run, capsys)
    assert rule == "padding-row-wrote"
    assert findings["written_slot"].unique().to_list() == [KV_BLOCKS * SLOTS_OF_A_BLOCK - 1]


def test_a_block_that_two_running_requests_write(run, capsys):
    rule, findings = findings_of("freed-block-reused", run, capsys)
    assert rule == "foreign-block"
    assert findings["kv_block_id"].n_unique() == 1
    writers = "".join(findings["request_id"].unique())
    assert "kvtrace-1" in writers
    assert "kvtrace-2" in writers
    # Each wrote the slot that the scheduler assigned to it: only whose block it is was wrong.
    assert (findings["expected_slot"] == findings["written_slot"]).all()


def test_slots_computed_with_another_block_size(run, capsys):
    rule, findings = findings_of("block-size-mixup", run, capsys)
    assert rule == "wrong-slot"
    assert findings["request_id"].str.contains("kvtrace-").all()
    position = findings["position"]
    doubled = 2 * SLOTS_OF_A_BLOCK
    assert (findings["written_slot"] % doubled == position % doubled).all()
    assert (findings["expected_slot"] % SLOTS_OF_A_BLOCK == position % SLOTS_OF_A_BLOCK).all()
