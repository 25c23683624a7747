"""Tensor ranks held against each other: same token, same layer, same slot, whatever the plan."""

import pytest
from builders import step
from rank_scenes import (
    KV_BLOCK,
    REQUEST,
    RankScene,
    pipeline_ranks,
    recorded_ranks,
    slot_of,
    steps_of,
    tensor_ranks,
)

from kvtrace_cli.analysis import audit_ranks, audit_writes
from kvtrace_cli.analysis.audit import audit
from kvtrace_cli.analysis.audit_model import AuditVerdict, Rule
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.analysis.steps import step_tables


def audited(path, scenes, **options):
    recording = recorded_ranks(path, scenes, **options)
    return audit(recording, reconcile(recording), step_tables(recording))


def shift(at=(3, 1, 0)):
    return lambda stamp, layer, row, _part, slot: slot + ((stamp, layer, row) == at)


def found(result):
    """Return (rank, other rank, step, layer, row, part, slot of the others, own slot)."""
    return [
        (
            one.rank,
            one.other_rank,
            one.step_stamp,
            one.layer_index,
            one.row,
            one.part,
            one.expected_slot,
            one.written_slot,
        )
        for one in result.each()
        if one.rule is Rule.RANK_SLOTS
    ]


def test_ranks_that_write_alike_are_clean(tmp_path):
    result = audited(tmp_path, tensor_ranks(3))
    assert (result.verdict, result.judged.compared_ranks) == (AuditVerdict.CLEAN, 3)


def test_a_shifted_slot_is_found_beside_the_plan(tmp_path):
    first, second = tensor_ranks()
    second.written_slot = shift()
    result = audited(tmp_path, [first, second])
    slot = slot_of(3)
    assert found(result) == [("TP1", "TP0", 3, 1, 0, part, slot, slot + 1) for part in "KV"]
    assert [count.rule for count in result.rules] == [Rule.WRONG_SLOT, Rule.RANK_SLOTS]


def test_the_first_rank_is_the_one_that_parts_if_the_plan_says_so(tmp_path):
    first, second = tensor_ranks()
    first.written_slot = shift()
    result = audited(tmp_path, [first, second])
    assert {one[:2] for one in found(result)} == {("TP0", "TP1")}


def test_a_rank_with_a_plan_of_its_own_parts_though_it_keeps_it(tmp_path):
    """Its scheduler gave another KV block: every write is in its slot, and in no other rank's."""
    first, second = tensor_ranks()
    second.lines[1] = second.lines[1] | {"admitted": [[REQUEST, 0, [[KV_BLOCK + 1]]]]}
    second.written_slot = lambda _stamp, _layer, _row, _part, slot: slot + 16
    result = audited(tmp_path, [first, second])
    assert [count.rule for count in result.rules] == [Rule.RANK_SLOTS]
    # Five tokens in two layers, K and V.
    assert len(found(result)) == 20
    assert {one[0] for one in found(result)} == {"TP1"}


def test_most_ranks_decide_where_positions_are_not_certain(tmp_path):
    scenes = tensor_ranks(3)
    for scene in scenes:
        scene.started = {"inexact": ["speculative decoding with asynchronous scheduling"]}
    scenes[0].written_slot = shift()
    result = audited(tmp_path, scenes)
    assert {one[:2] for one in found(result)} == {("TP0", "TP1")}


def test_what_one_rank_did_not_write_at_all_is_told(tmp_path):
    first, second = tensor_ranks()
    second.written_slot = lambda stamp, layer, row, part, slot: (
        None if (stamp, layer, row, part) == (2, 0, 2, "V") else slot
    )
    result = audited(tmp_path, [first, second])
    assert found(result) == [("TP1", "TP0", 2, 0, 2, "V", slot_of(2), None)]
    (finding,) = result.samples(Rule.RANK_SLOTS, 1)
    assert finding.text == (
        f"TP1: token 2 of request {REQUEST} did not write V; on TP0 it did, to slot {slot_of(2)}"
    )


def test_other_heads_and_addresses_make_no_difference(tmp_path):
    first, second = tensor_ranks()
    second.heads = 1
    assert audited(tmp_path, [first, second]).verdict is AuditVerdict.CLEAN


def test_pipeline_ranks_are_not_held_against_each_other(tmp_path):
    result = audited(tmp_path, pipeline_ranks(range(2), range(2, 4)))
    assert (result.verdict, result.judged.compared_ranks) == (AuditVerdict.CLEAN, 0)


def test_steps_are_paired_by_their_order_and_not_by_their_stamps(tmp_path):
    first, second = tensor_ranks()
    later = [line | {"step_stamp": line["step_stamp"] + 1} for line in steps_of()]
    second.lines = [step(1, kind="dummy", rows=2), *later]
    second.written_slot = shift((4, 1, 0))
    assert {one[2] for one in found(audited(tmp_path, [first, second]))} == {4}


def test_under_context_parallelism_ranks_write_different_tokens(tmp_path):
    scenes = tensor_ranks(started={"inexact": ["decode context parallelism"]})
    scenes[1].written_slot = shift()
    result = audited(tmp_path, scenes)
    assert (found(result), result.judged.compared_ranks) == ([], 0)
    assert any("under context parallelism they write different" in note for note in result.notes)


def test_a_step_of_which_events_were_lost_is_not_compared(tmp_path):
    first, second = tensor_ranks()
    second.dropped = 1
    second.written_slot = lambda stamp, layer, row, part, slot: (
        None if (stamp, layer, row, part) == (4, 1, 0, "V") else slot
    )
    result = audited(tmp_path, [first, second])
    assert (found(result), result.verdict) == ([], AuditVerdict.CANNOT_JUDGE)


def test_ranks_are_compared_slice_by_slice(tmp_path, monkeypatch):
    first, second = tensor_ranks()
    second.written_slot = shift()
    whole = found(audited(tmp_path / "whole", [first, second]))
    monkeypatch.setattr(audit_writes, "_SLICE_WEIGHT", 1)
    assert found(audited(tmp_path / "slices", [first, second])) == whole


def test_of_many_steps_that_part_the_first_are_told_and_the_rest_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_ranks, "_MOST_STEPS", 1)
    first, second = tensor_ranks()
    second.written_slot = lambda _stamp, _layer, _row, _part, slot: slot + 1
    result = audited(tmp_path, [first, second])
    assert {one[2] for one in found(result)} == {2}
    assert (
        "Tensor ranks part in 2 more steps, which were not looked at write by write."
        in result.notes
    )


@pytest.mark.parametrize("lost", [(), ("ranks",)])
def test_a_single_process_is_compared_with_nothing(tmp_path, lost):
    scene = RankScene(started=dict.fromkeys(lost))
    assert audited(tmp_path, [scene]).judged.compared_ranks == 0
