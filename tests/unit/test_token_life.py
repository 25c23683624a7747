"""The life of a token without recorded stores, and the history of its slot with them."""

import polars as pl
import pytest
from audit_scenes import PROCESS_ID, STORE_SCHEMA, Scene, agreed

from kvtrace_cli.analysis.steps import step_tables
from kvtrace_cli.analysis.token_life import last_position, matching_requests, token_life
from kvtrace_cli.analysis.token_slot import SlotHistory


def life(scene, request_id, position):
    recording = scene.recording()
    return token_life(
        recording, agreed(recording, stores=None), step_tables(recording), request_id, position
    )


def reused():
    """Slot 5 is the first request's, then the second's."""
    scene = Scene()
    scene.prompt("a", 6, [1, 2])
    scene.idle(finished=["a"])
    scene.prompt("b", 3, [1])
    return scene


def test_a_token_has_the_step_and_slot_that_computed_it():
    (one,) = life(reused(), "a", 5).passes
    assert (one.process_id, one.step_stamp, one.row, one.rows) == (PROCESS_ID, 1, 5, 6)
    assert (one.expected_slot, one.kv_block_id, one.offset, one.kv_group) == (9, 2, 1, 0)
    assert (one.launched, one.layers) == ("no launch was recorded", ())


def test_what_came_after_without_stores_is_an_assignment_only():
    assert life(reused(), "a", 1).passes[0].end == (
        "given back before step 2; assigned again in step 2 to token 1 of request b; stores were "
        "not recorded"
    )
    assert life(reused(), "a", 4).passes[0].end == "given back before step 2; not written again"
    assert life(reused(), "b", 1).passes[0].end == "still held at the end"


def stored(scene):
    if scene.stores is None:
        scene.record()
    located = [{name: store[name] for name in STORE_SCHEMA} for store in scene.stores]
    return pl.DataFrame(located, schema=STORE_SCHEMA, orient="row")


def end(scene, position=1):
    tables = step_tables(scene.recording())
    token = {
        "process_id": PROCESS_ID,
        "step_stamp": 1,
        "kv_group": 0,
        "request_id": "a",
        "position": position,
        "expected_slot": 4 + position,
        "kv_block_id": 1,
    }
    return SlotHistory(tables, stored(scene)).end(token)


def test_what_came_after_with_stores_is_a_write():
    scene = reused()
    assert end(scene) == ("given back before step 2; overwritten in step 2 by token 1 of request b")
    scene.drop(2, 1)
    assert end(scene) == "given back before step 2; not written again"


def test_a_write_before_the_block_was_given_back_is_told_as_such():
    scene = Scene()
    scene.prompt("a", 3, [1])
    step = scene.step(requests=[("a", 1, 3)], padded_rows=2)
    scene.add_all(step, 1, 5)
    assert end(scene) == "overwritten in step 2 by row 1, which is no request's"


def test_a_preempted_token_has_a_pass_for_each_time():
    scene = Scene()
    scene.prompt("a", 3, [1])
    scene.step(requests=[("b", 3, 0)], preempted=["a"], admitted=[scene.admission("b", [1])])
    scene.step(requests=[("a", 3, 0)], resumed=[scene.admission("a", [2])])
    found = life(scene, "a", 2).passes
    assert [(one.step_stamp, one.expected_slot) for one in found] == [(1, 6), (3, 10)]


def test_a_token_computed_again_in_its_own_slot_says_so():
    scene = Scene()
    scene.prompt("a", 3, [1])
    scene.step(requests=[("a", 1, 2)])
    assert "by the same token" in end(scene, 2)


def test_each_kv_group_has_a_slot_of_its_own():
    scene = Scene(groups=2)
    scene.prompt("a", 3, [1])
    found = life(scene, "a", 2).passes
    assert [(one.kv_group, one.expected_slot) for one in found] == [(0, 6), (1, 406)]


def test_a_token_without_a_block():
    scene = Scene()
    scene.prompt("a", 3, [1])
    scene.step(requests=[("a", 1, 4)])
    (one,) = life(scene, "a", 4).passes
    assert one.expected_slot is None
    assert one.end == "the request's table had no KV block for it"


@pytest.mark.parametrize(
    ("blocks", "origin"),
    [
        ([1, 7], "which step 1 computed as token 2 of request a."),
        ([9, 7], "which no recorded step was assigned before."),
    ],
)
def test_a_token_from_the_prefix_cache_names_where_it_was_computed(blocks, origin):
    scene = reused()
    scene.lines.pop()
    scene.prompt("c", 6, blocks, computed=4)
    found = life(scene, "c", 2)
    assert found.passes == ()
    assert found.notes == (
        f"Found in the prefix cache in step 2, in slot {4 * blocks[0] + 2}, {origin}",
    )


def test_a_position_that_never_was():
    found = life(reused(), "a", 6)
    assert (found.passes, found.notes) == ((), ())
    assert last_position(step_tables(reused().recording()), "a") == 5


NAMES = ["cmpl-kvtrace-1-0-aa", "cmpl-kvtrace-10-0-bb", "7", "other"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("1", NAMES[:1]),
        ("10", NAMES[1:2]),
        ("kvtrace-1", NAMES[:1]),
        ("cmpl-kvtrace-1", NAMES[:2]),
        ("7", ["7"]),
        ("oth", ["other"]),
        ("nothing", []),
        ("1" * 5000, []),
    ],
)
def test_names_of_a_request(wanted, found):
    scene = Scene()
    for number, name in enumerate(NAMES):
        scene.prompt(name, 2, [1 + number])
    requests = tuple(
        {"request_index": index, "request_id": f"kvtrace-{index}"} for index in (1, 10, 7)
    )
    recording = scene.recording(requests=requests)
    assert list(matching_requests(recording, step_tables(recording), wanted)) == found
