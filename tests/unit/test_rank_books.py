"""What reconciling finds of a run's ranks: each one's account, and where one parts from another."""

from dataclasses import replace

import pytest
from builders import step
from rank_scenes import (
    FIRST_PID,
    KV_BLOCK,
    REQUEST,
    RankScene,
    data_ranks,
    pipeline_ranks,
    reconciled_ranks,
    steps_of,
    tensor_ranks,
)

from kvtrace_cli.analysis.model import Verdict, rank_verdict
from kvtrace_cli.analysis.rank_model import RankRule

TWO = {"tensor": 2, "pipeline": 1, "data": 1}


def parted(result):
    return [(one.rule, one.rank, one.text) for one in result.ranks.differences]


def verdicts(result):
    return {one.rank.name: rank_verdict(one).value for one in result.ranks.accounts}


def test_tensor_ranks_that_do_the_same_agree(tmp_path):
    result = reconciled_ranks(tmp_path, tensor_ranks(), parallel=TWO)
    assert (result.verdict, result.reasons) == (Verdict.AGREES, ())
    assert verdicts(result) == {"TP0": "agrees", "TP1": "agrees"}
    for account in result.ranks.accounts:
        # Two layers, in a step of 4 rows, one of 3, and two of 1.
        assert (account.launches, account.expected_blocks, account.matched_blocks) == (8, 18, 18)
        # K and V of two heads of each of 5 tokens in each layer.
        assert (account.stores, account.steps) == (40, {"forward": 3, "dummy": 1, "draft": 0})
    assert [rule.value for rule in result.ranks.checks] == [
        "rank-steps",
        "rank-kv-blocks",
        "rank-layers",
        "rank-rows",
    ]


def test_a_single_rank_has_an_account_and_nothing_to_be_held_against(tmp_path):
    result = reconciled_ranks(tmp_path, [RankScene()])
    (account,) = result.ranks.accounts
    assert (account.rank.name, account.matched_blocks) == ("", 18)
    assert (result.ranks.checks, result.ranks.names) == ((), {})
    assert not result.ranks.are_several


def test_a_rank_without_a_process_is_inconclusive_and_named(tmp_path):
    result = reconciled_ranks(tmp_path, tensor_ranks(1), parallel=TWO)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.reasons == ("TP1: it was asked for, and no process said to be it.",)
    assert verdicts(result) == {"TP0": "agrees", "TP1": "inconclusive"}


def test_a_rank_without_events_is_inconclusive_and_named(tmp_path):
    first, second = tensor_ranks()
    silent = replace(second, lines=[])
    result = reconciled_ranks(tmp_path, [first, silent], parallel=TWO)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.reasons == (
        "process 4712 (TP1): it recorded no launch of a target kernel and no block.",
    )


def test_without_told_ranks_processes_are_counted(tmp_path):
    scenes = [replace(one, started={"ranks": None}) for one in tensor_ranks()]
    result = reconciled_ranks(tmp_path / "both", scenes, parallel=TWO)
    assert result.verdict is Verdict.AGREES
    (note,) = [note for note in result.notes if "rank" in note]
    assert note == "No process told which rank it was, so they were not held against each other."
    result = reconciled_ranks(tmp_path / "one", scenes[:1], parallel=TWO)
    assert result.reasons == ("2 ranks were asked for; processes that recorded anything: 1.",)


def test_a_row_that_did_not_enter_on_one_rank_is_named(tmp_path):
    first, second = tensor_ranks()
    second.entered = lambda stamp, layer, row: (stamp, layer, row) != (2, 1, 2)
    result = reconciled_ranks(tmp_path, [first, second])
    assert result.verdict is Verdict.MISMATCH
    assert parted(result) == [
        (
            RankRule.ROWS,
            "TP1",
            "TP1 parts from TP0 in step 2, layer 1: row 2 entered on TP0 alone.",
        )
    ]
    assert "process 4712 (TP1): 1 of its 18 blocks have no event." in result.reasons
    assert "rank-rows: TP1 parts from TP0 in step 2, layer 1: row 2" in " ".join(result.reasons)
    assert verdicts(result) == {"TP0": "agrees", "TP1": "mismatch"}


def test_a_launch_of_other_rows_is_named(tmp_path):
    first, second = tensor_ranks()
    second.lines[2] = second.lines[2] | {"padded_rows": 2}
    result = reconciled_ranks(tmp_path, [first, second])
    assert parted(result) == [
        (
            RankRule.ROWS,
            "TP1",
            "TP1 parts from TP0 in step 3, layer 0: grid 2x1x1, 1x1x1 on TP0.",
        )
    ]
    assert result.verdict is Verdict.MISMATCH


def test_a_launch_that_one_rank_lacks_is_told_by_its_step(tmp_path):
    first, second = tensor_ranks()
    second.launched = lambda stamp, layer: (stamp, layer) != (3, 0)
    (difference,) = reconciled_ranks(tmp_path, [first, second]).ranks.differences
    assert difference.text == "TP1 parts from TP0 in step 3, with 1 launches, 2 on TP0."
    assert (difference.rule, difference.layer_index) == (RankRule.ROWS, None)


def test_steps_that_part_are_named_by_the_first_row(tmp_path):
    first, second = tensor_ranks()
    second.lines[2] = step(3, requests=[[REQUEST, 1, 4]])
    (difference,) = reconciled_ranks(tmp_path, [first, second]).ranks.differences
    assert (difference.rule, difference.step_stamp, difference.row) == (RankRule.STEPS, 3, 0)
    assert (difference.request_id, difference.position) == (REQUEST, 4)
    assert difference.text == (
        f"In step 3 row 0 of TP1 is token 4 of request {REQUEST}; of TP0 (its step 3) it is token "
        f"3 of request {REQUEST}."
    )


def test_positions_that_are_upper_bounds_are_each_ranks_own_affair(tmp_path):
    scenes = tensor_ranks(started={"inexact": ["speculative decoding"]})
    scenes[1].lines[2] = step(3, requests=[[REQUEST, 1, 4]])
    assert parted(reconciled_ranks(tmp_path / "bounds", scenes)) == []
    scenes[1].lines[2] = step(3, requests=[["other", 1, 3]])
    (difference,) = reconciled_ranks(tmp_path / "rows", scenes).ranks.differences
    assert (difference.rule, difference.request_id) == (RankRule.STEPS, "other")


def test_more_dummy_steps_on_one_rank_are_its_own_affair(tmp_path):
    first, second = tensor_ranks()
    later = [line | {"step_stamp": line["step_stamp"] + 1} for line in steps_of()]
    second.lines = [step(1, kind="dummy", rows=2), *later]
    result = reconciled_ranks(tmp_path, [first, second])
    assert (result.verdict, parted(result)) == (Verdict.AGREES, [])


def test_a_rank_that_ran_a_step_less_is_named(tmp_path):
    first, second = tensor_ranks()
    second.lines = second.lines[:-1]
    result = reconciled_ranks(tmp_path, [first, second])
    assert parted(result) == [
        (RankRule.STEPS, "TP1", "TP1 ran no forward step that is step 4 of TP0.")
    ]
    assert result.verdict is Verdict.MISMATCH


def test_a_rank_that_was_cut_off_may_end_earlier(tmp_path):
    first, second = tensor_ranks()
    second.lines = second.lines[:-1]
    second.closed = False
    result = reconciled_ranks(tmp_path, [first, second])
    assert (result.verdict, parted(result)) == (Verdict.INCONCLUSIVE, [])
    assert any("Process 4712 (TP1) did not close its files" in one for one in result.reasons)
    assert any(note.startswith("Rows of TP1 were not held against") for note in result.notes)


def test_other_kv_blocks_are_named(tmp_path):
    first, second = tensor_ranks()
    changed = second.lines[1] | {"admitted": [[REQUEST, 0, [[KV_BLOCK + 1]]]]}
    second.lines[1] = changed
    (difference,) = reconciled_ranks(tmp_path, [first, second]).ranks.differences
    assert (difference.rule, difference.rank) == (RankRule.KV_BLOCKS, "TP1")
    assert (difference.step_stamp, difference.request_id) == (2, REQUEST)
    assert "its scheduler says `admitted`" in difference.text


def test_a_rank_that_lost_events_is_not_said_to_part(tmp_path):
    first, second = tensor_ranks()
    second.dropped = 1
    second.entered = lambda stamp, layer, row: (stamp, layer, row) != (4, 1, 0)
    result = reconciled_ranks(tmp_path, [first, second])
    assert (result.verdict, parted(result)) == (Verdict.MISMATCH, [])
    assert verdicts(result) == {"TP0": "agrees", "TP1": "mismatch"}


def test_replicated_heads_and_other_addresses_make_no_difference(tmp_path):
    first, second = tensor_ranks()
    second.heads = 1
    assert reconciled_ranks(tmp_path, [first, second]).verdict is Verdict.AGREES


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((range(2), range(1, 3)), "PP1 and PP0 both hold layers 1."),
        ((range(2), range(3, 5)), "No pipeline rank holds layers 2."),
        ((range(1, 3), range(3, 5)), "No pipeline rank holds layers 0."),
    ],
)
def test_layers_that_are_held_twice_or_by_none_are_named(tmp_path, layers, text):
    result = reconciled_ranks(tmp_path, pipeline_ranks(*layers))
    assert [(rule, said) for rule, _, said in parted(result)] == [(RankRule.LAYERS, text)]
    assert result.verdict is Verdict.MISMATCH


def test_pipeline_ranks_that_share_the_layers_agree(tmp_path):
    result = reconciled_ranks(tmp_path, pipeline_ranks(range(2), range(2, 3)))
    assert (result.verdict, parted(result)) == (Verdict.AGREES, [])
    assert verdicts(result) == {"PP0": "agrees", "PP1": "agrees"}


def test_layers_of_a_model_that_does_not_attend_in_all_are_not_missed(tmp_path):
    for number, held in enumerate([(range(3, 8, 4), range(11, 16, 4)), (range(3, 4), range(7, 8))]):
        result = reconciled_ranks(tmp_path / str(number), pipeline_ranks(*held))
        assert result.verdict is Verdict.AGREES


def test_tensor_ranks_with_other_layers_are_named(tmp_path):
    first, second = tensor_ranks()
    second.layers = range(1, 3)
    (difference,) = reconciled_ranks(tmp_path, [first, second]).ranks.differences
    assert difference.text == ("TP1 holds KV tensors of layers 1..2, TP0 of layers 0..1.")


def test_a_step_that_a_pipeline_rank_left_out_is_named(tmp_path):
    first, second = pipeline_ranks(range(2), range(2, 4))
    second.launched = lambda stamp, _layer: stamp != 3
    result = reconciled_ranks(tmp_path, [first, second])
    assert parted(result) == [
        (RankRule.ROWS, "PP1", "PP1 launched no target kernel in step 3; PP0 did.")
    ]


def test_data_ranks_have_requests_of_their_own(tmp_path):
    busy, idle = steps_of("a"), [step(1, kind="dummy", rows=4), step(2, kind="dummy", rows=1)]
    result = reconciled_ranks(tmp_path / "own", data_ranks(busy, idle))
    assert (result.verdict, parted(result)) == (Verdict.AGREES, [])
    assert [rule.value for rule in result.ranks.checks] == ["rank-idle", "rank-requests"]
    result = reconciled_ranks(tmp_path / "shared", data_ranks(steps_of("a"), steps_of("a")))
    assert parted(result) == [
        (
            RankRule.REQUESTS,
            "DP1",
            "Request a ran on DP1 from step 2 on while it ran on DP0.",
        )
    ]


def test_a_request_may_come_to_another_data_rank_later(tmp_path):
    later = [line | {"host_monotonic_ns": 100 + line["step_stamp"]} for line in steps_of("a")]
    assert reconciled_ranks(tmp_path, data_ranks(steps_of("a"), later)).verdict is Verdict.AGREES


def test_the_engines_own_warm_up_requests_have_one_id_on_all_data_ranks(tmp_path):
    both = data_ranks(steps_of("_warmup_0_"), steps_of("_warmup_0_"))
    assert reconciled_ranks(tmp_path, both).verdict is Verdict.AGREES


def test_clocks_of_two_hosts_are_not_compared(tmp_path):
    both = data_ranks(steps_of("a"), steps_of("a"))
    for number, one in enumerate(both):
        one.started = {"host": f"node{number}", "host_clock": f"clock{number}"}
    result = reconciled_ranks(tmp_path, both)
    assert (result.verdict, parted(result)) == (Verdict.AGREES, [])
    assert any("on several hosts, whose clocks are not compared" in note for note in result.notes)


def test_a_step_without_a_request_must_be_called_dummy(tmp_path):
    idle = [step(1, kind="dummy", rows=4), step(2, rows=0)]
    result = reconciled_ranks(tmp_path, data_ranks(steps_of("a"), idle))
    assert parted(result) == [
        (RankRule.IDLE, "DP1", "Step 2 of DP1 has no request and is not labelled dummy.")
    ]


def test_an_engine_that_was_started_again_is_held_against_itself(tmp_path):
    """Process ids need not be in the order of starts."""
    scenes = [
        RankScene(
            process_id=FIRST_PID + 10 * rank + (start if rank else 1 - start),
            place=(0, 0, rank),
            lines=steps_of(f"start-{start}", decodes=1 + start),
            started={"host_monotonic_ns": 1000 * start + rank},
        )
        for start in range(2)
        for rank in range(2)
    ]
    result = reconciled_ranks(tmp_path, scenes)
    assert (result.verdict, parted(result)) == (Verdict.AGREES, [])
    assert [one.rank.name for one in result.ranks.accounts] == ["TP0", "TP0", "TP1", "TP1"]


def test_ranks_that_were_started_unequally_often_are_a_doubt(tmp_path):
    first, second = tensor_ranks()
    again = replace(second, process_id=FIRST_PID + 7)
    result = reconciled_ranks(tmp_path, [first, second, again])
    assert result.verdict is Verdict.INCONCLUSIVE
    (reason,) = result.reasons
    assert reason.startswith("Ranks were started unequally often (TP0 1, TP1 2), so which belong")


def test_an_engine_of_one_rank_may_be_started_as_often_as_one_likes(tmp_path):
    scenes = [RankScene(), replace(RankScene(), process_id=FIRST_PID + 1, lines=steps_of("b"))]
    result = reconciled_ranks(tmp_path, scenes)
    assert (result.verdict, result.ranks.are_several) == (Verdict.AGREES, False)
    assert len(result.ranks.accounts) == 2


@pytest.mark.parametrize(
    ("ranks", "who", "them"),
    [(3, "Process 4713", "it"), (4, "Processes 4713, 4714", "them")],
)
def test_a_process_that_recorded_and_told_no_rank_is_a_doubt(tmp_path, ranks, who, them):
    scenes = tensor_ranks(ranks)
    for stranger in scenes[2:]:
        stranger.started = {"ranks": None}
    assert reconciled_ranks(tmp_path, scenes).reasons == (
        f"{who} recorded launches and told no rank, so nothing was held against {them}.",
    )


def test_without_step_stamps_rows_are_not_compared_and_a_note_says_so(tmp_path):
    scenes = tensor_ranks(stamped=False)
    result = reconciled_ranks(tmp_path, scenes)
    assert RankRule.ROWS not in result.ranks.checks
    assert any(note.startswith("Rows of TP0, TP1 were not held") for note in result.notes)
