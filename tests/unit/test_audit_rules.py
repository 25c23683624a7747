"""Each rule on the smallest recording that breaks it, and what must not be a finding."""

from dataclasses import replace

import pytest
from audit_scenes import Scene

from kvtrace_cli.analysis.audit_model import AuditVerdict, Rule


def found(audit):
    """Return the rules that were broken, each with its number of findings."""
    return {count.rule: count.findings for count in audit.rules}


def only(audit):
    (finding,) = audit.each()
    return finding


def one_request(**options):
    """Six prompt tokens and one decode step: slots 4 to 10."""
    scene = Scene(**options)
    scene.prompt("a", 6, [1, 2])
    decode = scene.step(requests=[("a", 1, 6)], padded_rows=4, graph_mode="FULL")
    return scene, decode


def test_a_run_without_a_fault_is_clean_and_says_of_how_many():
    scene, _ = one_request()
    audit = scene.audit()
    assert (audit.verdict, audit.doubts, list(audit.each())) == (AuditVerdict.CLEAN, (), [])
    judged = audit.judged
    assert (judged.expected_writes, judged.layers, judged.requests) == (7 * 2 * 2, 2, 1)
    owned = judged.owners[0]
    assert (owned.owner, owned.rows, owned.writes, owned.stores) == ("owned", 7, 28, 28)


def test_a_wrong_slot_has_all_its_evidence():
    scene, decode = one_request()
    scene.move(13, decode, 0, 1, "K")
    finding = only(scene.audit())
    assert finding.rule is Rule.WRONG_SLOT
    assert (finding.process_id, finding.ranks, finding.step_stamp) == (4711, {"tensor": 0}, 2)
    assert (finding.layer_index, finding.row, finding.part) == (1, 0, "K")
    assert (finding.request_id, finding.position) == ("a", 6)
    assert (finding.expected_slot, finding.written_slot) == (10, 13)
    assert (finding.kv_block_id, finding.offset) == (3, 1)
    assert (finding.address, finding.sequence) == (0x200000 + 13 * 64, 26)
    assert finding.text == "token 6 of request a wrote K to slot 13, which no request holds"


def test_a_wrong_slot_names_whose_slot_it_hit():
    scene = Scene()
    scene.prompt("a", 6, [1, 2])
    step = scene.prompt("b", 3, [3])
    scene.move(9, step, 1)
    audit = scene.audit()
    assert found(audit) == {Rule.WRONG_SLOT: 4}
    assert {(each.held_by, each.held_position) for each in audit.each()} == {("a", 5)}
    assert "which is token 5 of request a" in next(audit.each()).text


def test_a_wrong_slot_in_the_rows_own_block_says_so():
    scene, decode = one_request()
    scene.move(11, decode, 0)
    assert {each.held_by for each in scene.audit().each()} == {"a"}
    assert "which is its own token 7" in next(scene.audit().each()).text


def test_stores_of_one_write_are_one_finding():
    scene, decode = one_request()
    scene.move(13, decode, 0, 0, "V")
    for head in range(1, 5):
        scene.add(decode, 0, 0, "V", 13, head=head)
    finding = only(scene.audit())
    assert (finding.stores, finding.sequence) == (5, 25)


@pytest.mark.parametrize("parts", [("K",), ("V",), ("K", "V")])
def test_a_missing_write_names_layer_and_parts(parts):
    scene, decode = one_request()
    for part in parts:
        scene.drop(decode, 0, 1, part)
    finding = only(scene.audit())
    assert (finding.rule, finding.layer_index) == (Rule.MISSING_WRITE, 1)
    assert finding.part == " and ".join(parts)
    assert (finding.expected_slot, finding.written_slot, finding.sequence) == (10, None, None)
    assert (finding.kv_block_id, finding.offset, finding.stores) == (2, 2, 0)
    assert finding.text == f"token 6 of request a did not write {finding.part} to slot 10"


def test_a_whole_step_without_writes_is_missing_in_every_layer():
    scene, decode = one_request()
    scene.drop(decode, 0)
    assert found(scene.audit()) == {Rule.MISSING_WRITE: 2}


def test_latent_attention_writes_one_part():
    scene, decode = one_request(mla=True)
    assert scene.audit().verdict is AuditVerdict.CLEAN
    scene.drop(decode, 0, 0)
    assert only(scene.audit()).part == "KV"


def test_a_padding_row_that_wrote():
    scene, decode = one_request()
    scene.add_all(decode, 2, 5)
    audit = scene.audit()
    assert found(audit) == {Rule.PADDING_ROW_WROTE: 4}
    finding = next(audit.each())
    assert (finding.row, finding.request_id, finding.held_by) == (2, None, "a")
    assert finding.text == "padding row 2 wrote K to slot 5, which is token 1 of request a"


def test_a_padding_row_outside_every_tensor_or_in_the_null_block_is_a_padding_row_first():
    scene, decode = one_request()
    scene.add_all(decode, 2, 0)
    scene.add(decode, 3, 0, "K", 5)
    scene.outside(decode, 3)
    audit = scene.audit()
    assert found(audit) == {Rule.PADDING_ROW_WROTE: 5}
    assert "wrote a value to no KV tensor, address 0x10" in list(audit.each())[-1].text


def test_a_dummy_row_that_wrote():
    scene = Scene()
    dummy = scene.step("dummy", rows=4)
    scene.prompt("a", 6, [1, 2])
    assert scene.audit().verdict is AuditVerdict.CLEAN
    scene.add_all(dummy, 3, 0)
    audit = scene.audit()
    assert found(audit) == {Rule.DUMMY_ROW_WROTE: 4}
    text = "row 3 of a dummy step wrote K to slot 0, which is in the null block"
    assert next(audit.each()).text == text


def with_draft(layer=2):
    """A third layer is the speculator's: only draft steps write it."""
    scene = Scene(layers=3)
    scene.prompt("a", 6, [1, 2])
    draft = scene.step("draft", rows=1)
    for row in range(6):
        scene.drop(1, row, 2)
    scene.add(draft, 0, layer, "K", 10)
    return scene, draft


def test_a_draft_step_may_write_its_own_layers_for_its_requests():
    scene, _ = with_draft()
    audit = scene.audit()
    assert (audit.verdict, audit.doubts) == (AuditVerdict.CLEAN, ())


@pytest.mark.parametrize(("layer", "slot"), [(1, 10), (2, 20), (2, 0)])
def test_a_draft_step_may_not_write_the_models_layers_or_what_nobody_holds(layer, slot):
    scene, draft = with_draft()
    scene.add(draft, 0, layer, "V", slot)
    assert found(scene.audit()) == {Rule.DRAFT_ROW_WROTE: 1}


def test_two_requests_that_compute_one_block_are_named_both():
    """The scheduler gave a KV block of a live request away: each wrote what it was told."""
    scene = Scene()
    scene.prompt("a", 6, [1, 2])
    scene.prompt("b", 3, [2])
    audit = scene.audit()
    assert found(audit) == {Rule.FOREIGN_BLOCK: 12}
    finding = next(audit.each())
    assert (finding.request_id, finding.held_by, finding.held_position) == ("b", "a", 4)
    assert finding.expected_slot == finding.written_slot == 8


def test_a_row_whose_blocks_were_taken_back_writes_into_another_requests():
    """A step in flight still runs a request that is finished; its block is another's by now."""
    scene = Scene()
    scene.prompt("a", 6, [1, 2])
    late = scene.step(
        requests=[("b", 3, 0), ("a", 1, 6)],
        finished=["a"],
        admitted=[scene.admission("b", [2])],
    )
    scene.add_all(late, 3, 10)
    audit = scene.audit()
    assert found(audit) == {Rule.FOREIGN_BLOCK: 4}
    assert {(each.request_id, each.held_by) for each in audit.each()} == {("a", "b")}


def test_a_write_into_a_block_that_nobody_holds_any_more():
    scene = Scene()
    scene.prompt("a", 6, [1, 2])
    late = scene.step(requests=[("a", 1, 6)], finished=["a"])
    scene.add_all(late, 0, 10)
    assert found(scene.audit()) == {Rule.FREED_BLOCK: 4}


def test_a_write_into_the_null_block():
    scene = Scene()
    step = scene.prompt("a", 3, [0])
    audit = scene.audit()
    assert found(audit) == {Rule.NULL_BLOCK: 12}
    scene.move(5, step, 0)
    assert found(scene.audit())[Rule.WRONG_SLOT] == 4


def test_a_table_that_names_the_null_block_asks_for_no_write():
    scene = Scene()
    step = scene.prompt("a", 6, [0, 2])
    for row in range(4):
        scene.drop(step, row)
    assert scene.audit().verdict is AuditVerdict.CLEAN


def test_a_write_outside_every_tensor_is_not_missing_too():
    scene, decode = one_request()
    scene.outside(decode, 0)
    finding = only(scene.audit())
    assert (finding.rule, finding.stores) == (Rule.OUTSIDE_KV, 4)
    assert finding.text == "token 6 of request a wrote outside every KV tensor"


def test_other_outputs_of_a_fused_kernel_are_no_findings_and_are_counted():
    """Its instructions never write a KV tensor, so nothing was misplaced."""
    scene, decode = one_request()
    for row in range(4):
        scene.add(decode, row, 0, "K", 0, head=9)
    extra = [store for store in scene.stores if store["head"] == 9]
    nowhere = dict.fromkeys(("layer_index", "kv_group", "part", "kv_block_id", "offset"))
    for store in extra:
        store.update(nowhere | {"written_slot": None, "in_kv_tensor": False, "pc": 0x2000})
    audit = scene.audit()
    assert (audit.verdict, audit.judged.other_outputs) == (AuditVerdict.CLEAN, 4)
    assert any("4 stores outside the KV tensors are other outputs" in note for note in audit.notes)


def test_two_rows_with_one_slot():
    scene = Scene()
    step = scene.prompt("a", 3, [1])
    scene.lines[0]["requests"] = [("a", 3, 0), ("a", 1, 2)]
    scene.lines[0]["rows"] = 4
    audit = scene.audit()
    assert found(audit) == {Rule.DUPLICATE_SLOT: 8}
    assert {each.row for each in audit.each()} == {2, 3}
    assert step == 1


def test_a_row_in_anothers_slot_is_wrong_and_the_other_is_not():
    scene = Scene()
    step = scene.prompt("a", 4, [1])
    scene.move(6, step, 3)
    audit = scene.audit()
    assert found(audit) == {Rule.WRONG_SLOT: 4}
    assert {each.row for each in audit.each()} == {3}


def inexact(*more):
    """Positions are upper bounds in the second step: the token really is one further back."""
    reasons = ["speculative decoding with asynchronous scheduling", *more]
    scene = Scene(started={"inexact": reasons})
    scene.prompt("a", 5, [1, 2])
    step = scene.step(requests=[("a", 1, 6)])
    scene.move(9, step, 0)
    return scene, step


def test_inexact_rows_are_not_compared_but_said_to_be_left_out():
    scene, _ = inexact()
    audit = scene.audit()
    assert (audit.verdict, found(audit)) == (AuditVerdict.CANNOT_JUDGE, {})
    assert any("upper bounds only (speculative decoding with" in doubt for doubt in audit.doubts)


def test_the_first_step_of_a_request_is_exact_anyway():
    scene, _ = inexact()
    scene.move(20, 1, 2, 0, "K")
    assert found(scene.audit()) == {Rule.WRONG_SLOT: 1}


def test_with_context_parallelism_no_step_of_a_request_is_exact():
    scene, _ = inexact("decode context parallelism")
    scene.move(11, 1, 2)
    audit = scene.audit()
    assert (audit.verdict, found(audit)) == (AuditVerdict.CANNOT_JUDGE, {})
    assert any("were not compared: 6." in doubt for doubt in audit.doubts)


def test_layers_that_disagree_where_the_slot_is_not_known():
    scene, step = inexact()
    scene.move(10, step, 0, 1, "V")
    finding = only(scene.audit())
    assert (finding.rule, finding.layer_index, finding.part) == (Rule.LAYERS_DISAGREE, 1, "V")
    assert (finding.expected_slot, finding.written_slot) == (9, 10)


def test_inexact_rows_may_not_write_to_others_either():
    scene, step = inexact()
    scene.move(20, step, 0)
    audit = scene.audit()
    assert found(audit) == {Rule.FREED_BLOCK: 4}
    assert {each.expected_slot for each in audit.each()} == {None}


def test_a_cached_token_that_was_never_written():
    scene = Scene()
    scene.prompt("a", 6, [1, 2])
    step = scene.prompt("b", 10, [1, 7, 8], computed=8)
    audit = scene.audit()
    assert found(audit) == {Rule.READ_BEFORE_WRITE: 4}
    finding = next(audit.each())
    assert (finding.request_id, finding.position, finding.step_stamp) == ("b", 4, step)
    assert (finding.expected_slot, finding.kv_block_id, finding.offset) == (28, 7, 0)
    text = "token 4 of request b was taken as computed, but slot 28 was never written"
    assert finding.text == text


def test_a_cached_token_whose_slot_holds_another_token():
    scene = Scene()
    scene.prompt("a", 4, [1])
    scene.idle(finished=["a"])
    scene.prompt("b", 8, [6, 1])
    scene.idle(finished=["b"])
    scene.prompt("c", 6, [1, 2], computed=4)
    finding = next(scene.audit().each())
    assert (finding.rule, finding.request_id, finding.position) == (
        Rule.READ_BEFORE_WRITE,
        "c",
        0,
    )
    assert (finding.held_by, finding.held_position) == ("b", 4)
    assert finding.text.endswith("but slot 4 was last written as token 4 of request b")


def test_a_copied_block_holds_what_it_was_copied_from():
    scene = Scene()
    scene.prompt("a", 6, [1, 2])
    step = scene.prompt("b", 8, [1, 5], computed=6)
    assert found(scene.audit()) == {Rule.READ_BEFORE_WRITE: 2}
    scene.lines[step - 1]["copied_blocks"] = [[2, 5]]
    assert scene.audit().verdict is AuditVerdict.CLEAN


class TestNoFalseFinding:
    """What engines do every day."""

    def test_prefix_sharing_within_one_step(self):
        scene = Scene()
        scene.step(
            requests=[("a", 6, 0), ("b", 3, 4)],
            admitted=[scene.admission("a", [1, 2]), scene.admission("b", [1, 3], 4)],
        )
        scene.step(requests=[("b", 1, 7), ("a", 1, 6)])
        assert scene.audit().verdict is AuditVerdict.CLEAN

    def test_a_prefix_found_after_its_request_ended(self):
        scene = Scene()
        scene.prompt("a", 6, [1, 2])
        scene.idle(finished=["a"])
        scene.prompt("b", 6, [1, 3], computed=4)
        assert scene.audit().verdict is AuditVerdict.CLEAN

    def test_chunked_prefill(self):
        scene = Scene()
        scene.step(requests=[("a", 3, 0)], admitted=[scene.admission("a", [1])])
        scene.step(
            requests=[("b", 2, 0), ("a", 3, 3)],
            grown=[["a", [[2]]]],
            admitted=[scene.admission("b", [3])],
        )
        scene.step(requests=[("a", 1, 6), ("b", 1, 2)], padded_rows=8)
        assert scene.audit().verdict is AuditVerdict.CLEAN

    def test_preemption_and_resumption_with_other_blocks(self):
        scene = Scene()
        scene.prompt("a", 6, [1, 2])
        scene.step(requests=[("b", 7, 0)], preempted=["a"], admitted=[scene.admission("b", [2, 1])])
        scene.step(requests=[("a", 7, 0)], resumed=[scene.admission("a", [4, 5])])
        assert scene.audit().verdict is AuditVerdict.CLEAN

    def test_reuse_of_blocks_after_the_end(self):
        scene = Scene()
        for index in range(4):
            scene.prompt(f"r{index}", 6, [1, 2])
            scene.idle(finished=[f"r{index}"])
        assert scene.audit().verdict is AuditVerdict.CLEAN

    def test_several_kv_groups(self):
        scene = Scene(groups=2)
        scene.prompt("a", 6, [1, 2])
        scene.prompt("b", 6, [3, 4])
        audit = scene.audit()
        assert (audit.verdict, audit.judged.layers) == (AuditVerdict.CLEAN, 4)

    def test_a_step_that_runs_draft_rows_of_its_requests(self):
        scene, _ = with_draft()
        assert scene.audit().verdict is AuditVerdict.CLEAN


def freed_early(tokens):
    """Two KV groups; the block of `a` that `b` gets is the one at positions 0 to 3."""
    scene = Scene(groups=2)
    scene.step(requests=[("a", tokens, 0)], admitted=[scene.admission("a", [1, 2])])
    scene.prompt("b", 3, [1])
    return scene.audit()


def test_a_block_behind_a_sliding_window_is_a_doubt_and_no_finding():
    audit = freed_early(6)
    assert (audit.verdict, found(audit)) == (AuditVerdict.CANNOT_JUDGE, {})
    assert any("sliding window" in doubt for doubt in audit.doubts)


def test_a_block_that_is_still_being_filled_is_never_behind_a_window():
    assert found(freed_early(3)) == {Rule.FOREIGN_BLOCK: 3 * 2 * 2 * 2}


WINDOWS = {
    # Tokens that must have been computed before the KV block of positions 0 to 3 is free.
    "sliding window of 4": ({"sliding_window": 4}, 7),
    "sliding window of 1": ({"sliding_window": 1}, 4),
    "sliding window of 6": ({"sliding_window": 6}, 9),
    "chunks of 4": ({"attention_chunk_size": 4}, 4),
    "chunks of 8": ({"attention_chunk_size": 8}, 8),
    "chunks of 6": ({"attention_chunk_size": 6}, 6),
}


def new_owner(tokens, window, **options):
    """Let `b` compute three tokens in the first KV block of `a`, which computed so many before."""
    scene = Scene(windows=(window, window), **options)
    scene.step(requests=[("a", tokens, 0)], admitted=[scene.admission("a", [1, 2, 3])])
    scene.step(requests=[("b", 3, 0), ("a", 1, tokens)], admitted=[scene.admission("b", [1])])
    return scene.audit()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("case", WINDOWS)
def test_a_block_wholly_behind_the_window_may_have_a_new_owner(case, groups):
    window, tokens = WINDOWS[case]
    audit = new_owner(tokens, window, groups=groups)
    assert (audit.verdict, audit.doubts, found(audit)) == (AuditVerdict.CLEAN, (), {})


@pytest.mark.parametrize("case", WINDOWS)
def test_a_block_of_which_a_token_is_inside_the_window_has_one_owner(case):
    window, tokens = WINDOWS[case]
    # The step that computes the last token that is needed is too early still.
    audit = new_owner(tokens - 1, window)
    assert set(found(audit)) == {Rule.FOREIGN_BLOCK}
    of_new_owner = [each.position for each in audit.each() if each.request_id == "b"]
    assert sorted(of_new_owner) == [0] * 4 + [1] * 4 + [2] * 4


def test_the_groups_of_a_hybrid_model_have_windows_of_their_own():
    """Nothing is said of the first group, whose layers read everything."""
    scene = Scene(groups=2, windows=({}, {"sliding_window": 4}))
    scene.prompt("a", 7, [1, 2])
    scene.prompt("b", 3, [1])
    audit = scene.audit()
    assert found(audit) == {Rule.FOREIGN_BLOCK: 3 * 2 * 2}
    assert {each.layer_index for each in audit.each()} == {0, 1}


def test_a_request_may_get_its_own_block_again():
    scene = Scene(windows=({"sliding_window": 4},))
    scene.prompt("a", 8, [1, 2])
    scene.step(requests=[("a", 4, 8)], grown=[["a", [[1]]]])
    # In its new place it is shared as any other.
    scene.prompt("b", 13, [4, 5, 1, 6], computed=12)
    audit = scene.audit()
    rules = {each.rule for each in audit.each()}
    assert rules == {Rule.READ_BEFORE_WRITE}, "4 and 5 were never written"
    assert {each.kv_block_id for each in audit.each()} == {4, 5}


def test_what_was_computed_before_a_preemption_is_behind_no_window():
    scene = Scene(windows=({"sliding_window": 4},))
    scene.prompt("a", 10, [1, 2, 3])
    scene.idle(preempted=["a"])
    scene.step(requests=[("a", 3, 0)], resumed=[scene.admission("a", [1])])
    scene.prompt("b", 3, [1])
    assert found(scene.audit()) == {Rule.FOREIGN_BLOCK: 3 * 2 * 2}


def test_a_row_without_a_slot_in_a_block_behind_a_window_is_in_no_requests_block():
    scene = Scene(windows=({"sliding_window": 4},))
    scene.prompt("a", 8, [1, 2])
    step = scene.step(requests=[("b", 1, 20)], admitted=[scene.admission("b", [7])])
    scene.add_all(step, 0, 4)
    assert found(scene.audit()) == {Rule.FREED_BLOCK: 2 * 2}


@pytest.mark.parametrize(
    "options",
    [
        {"windows": ({"unknown_window": True},)},
        {"windows": ({"sliding_window": 4},), "started": {"inexact": ["speculative decoding"]}},
    ],
)
def test_a_window_that_is_not_known_exactly_leaves_a_doubt(options):
    scene = Scene(**options)
    scene.prompt("a", 8, [1, 2])
    scene.prompt("b", 3, [1])
    audit = scene.audit()
    assert (audit.verdict, found(audit)) == (AuditVerdict.CANNOT_JUDGE, {})
    assert any("sliding window, not known exactly): 12" in doubt for doubt in audit.doubts)


def test_findings_come_in_the_order_of_steps():
    scene, decode = one_request()
    scene.move(20, decode, 0)
    scene.move(21, 1, 0)
    assert [each.step_stamp for each in scene.audit().each()] == [1] * 4 + [2] * 4


def test_slices_do_not_change_the_result(monkeypatch):
    def judged(**options):
        scene = Scene()
        scene.prompt("a", 6, [1, 2])
        for position in range(6, 12):
            scene.step(requests=[("a", 1, position)], padded_rows=2)
        scene.lines[2]["grown"] = [["a", [[3]]]]
        scene.move(25, 3, 0)
        scene.drop(4, 0, 1)
        scene.prompt("b", 10, [9, 8, 7], computed=4)
        return scene.audit(**options)

    whole = judged()
    monkeypatch.setattr("kvtrace_cli.analysis.audit_writes._SLICE_WEIGHT", 3)
    monkeypatch.setattr("kvtrace_cli.analysis.audit_cached._SLICE_TOKENS", 1)
    sliced = judged(slice_stores=5)
    assert set(found(whole)) == {Rule.WRONG_SLOT, Rule.MISSING_WRITE, Rule.READ_BEFORE_WRITE}
    assert sliced == whole
    assert list(sliced.each()) == list(whole.each())


def test_a_group_without_layers_to_write_has_tables_of_another_sort():
    """The states of a recurrent layer take one block a request, however many tokens it has."""
    scene = Scene(groups=2)
    scene.prompt("a", 6, [1, 2])
    scene.lines[0]["admitted"][0][2][1] = [9]
    recording = scene.recording()
    (process,) = recording.steps
    tensors = tuple(one for one in process.layout.tensors if one.group == 0)
    layout = replace(process.layout, tensors=tensors)
    scene.stores = [store for store in scene.record().stores if store["kv_group"] == 0]
    audit = scene.audit(replace(recording, steps=(replace(process, layout=layout),)))
    assert (audit.verdict, audit.doubts) == (AuditVerdict.CLEAN, ())


def test_rows_without_a_block_in_the_tables_are_a_doubt():
    scene = Scene()
    scene.prompt("a", 6, [1])
    audit = scene.audit()
    assert audit.verdict is AuditVerdict.CANNOT_JUDGE
    assert audit.doubts == ("Rows of requests without a KV block in the recorded tables: 2.",)


def test_cached_tokens_are_not_judged_where_a_connector_may_have_fetched_them():
    scene = Scene()
    scene.prompt("b", 10, [1, 7, 8], computed=8)
    command = ["vllm", "serve", "--kv-transfer-config={}"]
    audit = scene.audit(scene.recording(manifest={"command": command}))
    assert audit.verdict is AuditVerdict.CLEAN
    assert any("a KV connector may have fetched them" in note for note in audit.notes)
