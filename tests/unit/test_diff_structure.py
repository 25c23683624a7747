"""Where two runs part: each change is named at its place, and once."""

import builders
import pytest
from builders import HOST_STEP_NS, Trace, flags, journal, kv_address, layout, request, started, step
from diff_scenes import (
    LAYERS,
    after_start_up,
    compared,
    decisive,
    plain_pass,
    prompt_and_replays,
    replay,
    side,
    with_manifest,
)

from kvtrace_cli.analysis.diff_model import Aspect, DiffVerdict

SAME, DIFFERS = DiffVerdict.SAME, DiffVerdict.DIFFERS
FUSED = "concat_and_cache_mla_rope_fused_kernel"


@pytest.fixture
def base(tmp_path):
    return side(tmp_path / "base", prompt_and_replays())


def eager(passes=7):
    trace = Trace()
    plain_pass(trace, 8)
    for _ in range(passes):
        plain_pass(trace, 1)
    return trace


def test_two_runs_of_one_set_up_are_the_same(tmp_path, base):
    """Other addresses, process, KV blocks and times do not count."""
    trace = prompt_and_replays()
    trace.process_id = 12
    trace.launches = [launch.with_values(stream=5, graph_exec=0x77) for launch in trace.launches]
    for event in trace.events:
        event["gpu_globaltimer_ns"] += 10**9
    found = compared(base, side(tmp_path / "other", trace))
    assert (found.verdict, found.differences) == (SAME, ())
    assert {"kernels", "course", "blocks-per-layer", "drops", "requests"} <= set(found.checks)


def test_one_more_token_is_one_more_replay(tmp_path, base):
    found = compared(base, side(tmp_path / "b", prompt_and_replays(8)))
    assert found.verdict is DIFFERS
    assert decisive(found) == [
        (
            "course",
            "measured request 1",
            "7 replays of a 4-node graph",
            "8 replays of a 4-node graph",
        )
    ]


def test_padding_is_named_by_the_nodes_whose_grid_grew(tmp_path, base):
    found = compared(base, side(tmp_path / "b", prompt_and_replays(rows=8)), with_times=False)
    place = "measured request 1, nodes 1 to 4 of the graph"
    assert decisive(found) == [("course", place, "grid 1", "grid 8")]


def test_one_node_that_differs_is_named_by_its_number(tmp_path, base):
    trace = Trace()
    plain_pass(trace, 8)
    for launch_id in range(1, 8):
        for node in range(LAYERS):
            trace.enter_all(trace.node(node, launch_id, (2 if node == 2 else 1, 1, 1)))
    found = compared(base, side(tmp_path / "b", trace), with_times=False)
    place = "measured request 1, node 3 of the graph"
    assert decisive(found) == [("course", place, "grid 1", "grid 2")]


def test_a_graph_of_more_nodes_is_named(tmp_path, base):
    trace = Trace()
    plain_pass(trace, 8)
    for launch_id in range(1, 8):
        for node in range(LAYERS + 1):
            trace.enter_all(trace.node(node, launch_id))
    found = compared(base, side(tmp_path / "b", trace), with_times=False)
    sides = "7 replays of a 4-node graph", "7 replays of a 5-node graph"
    assert decisive(found) == [("course", "measured request 1", *sides)]


def test_eager_against_graphs(tmp_path, base):
    found = compared(base, side(tmp_path / "b", eager()), with_times=False)
    sides = "7 replays of a 4-node graph", "28 plain launches of grid 1"
    assert decisive(found) == [("course", "measured request 1", *sides)]


def test_the_prompts_launches_come_first(tmp_path, base):
    trace = Trace()
    plain_pass(trace, 16)
    for launch_id in range(1, 9):
        replay(trace, launch_id)
    found = compared(base, side(tmp_path / "b", trace), with_times=False)
    sides = "4 plain launches of grid 8", "4 plain launches of grid 16"
    assert decisive(found) == [("course", "measured request 1", *sides)]


def test_other_threads_in_a_block_are_named(tmp_path):
    sides = []
    for threads in (128, 256):
        trace = prompt_and_replays()
        dims = {"block_dim_x": threads, "block_dim_y": 1, "block_dim_z": 1}
        trace.launches = [launch.with_values(**dims) for launch in trace.launches]
        sides.append(side(tmp_path / str(threads), trace))
    found = compared(*sides, with_times=False)
    place = "measured request 1, 4 plain launches of grid 8"
    assert decisive(found) == [("course", place, "128 threads a block", "256 threads a block")]


def test_a_kernel_that_takes_anothers_place_is_named_with_its_family_once(tmp_path, base):
    after = side(tmp_path / "b", prompt_and_replays(), journal_lines=journal(name=FUSED))
    assert decisive(compared(base, after)) == [
        (
            "kernels",
            "kernels that write the cache",
            "reshape_and_cache_flash_kernel (family flash)",
            f"{FUSED} (family MLA, fused with RoPE)",
        )
    ]


def test_what_a_new_kernel_does_otherwise_is_still_found(tmp_path, base):
    after = side(tmp_path / "b", prompt_and_replays(8), journal_lines=journal(name=FUSED))
    assert [rule for rule, *_ in decisive(compared(base, after))] == ["kernels", "course"]


def test_template_arguments_are_listed_only(tmp_path):
    names = ["_ZN4vllm30reshape_and_cache_flash_kernelIfEEvv", f"_ZN4vllm30{builders.TARGET}IdEEvv"]
    before, after = (
        side(tmp_path / name, prompt_and_replays(), journal_lines=journal(name=name))
        for name in names
    )
    found = compared(before, after)
    assert found.verdict is SAME
    assert [one.rule for one in found.differences] == ["kernel-names"]
    assert compared(before, after, strict=True).verdict is DIFFERS


def test_start_up_is_listed_and_decides_only_if_asked(tmp_path):
    before, after = (
        side(
            tmp_path / str(passes),
            prompt_and_replays(start_up=passes),
            requests=[after_start_up(passes)],
        )
        for passes in (1, 3)
    )
    found = compared(before, after)
    assert found.verdict is SAME
    (difference,) = found.differences
    assert (difference.aspect, difference.rule) == (Aspect.STRUCTURE, "start-up")
    assert difference.text == (
        "start-up: 4 plain launches of grid 16, then 12 plain launches of grid 16."
    )
    assert compared(before, after, strict=True).verdict is DIFFERS


def several(path, replays_of):
    """Requests one after the other, each of so many replays of the same graph."""
    trace = Trace()
    requests = []
    launch_id = 0
    for index, replays in enumerate(replays_of):
        begin = HOST_STEP_NS * (len(trace.launches) + 1)
        for _ in range(replays):
            launch_id += 1
            replay(trace, launch_id)
        end = HOST_STEP_NS * len(trace.launches)
        requests.append(request(index, host_monotonic_begin_ns=begin, host_monotonic_end_ns=end))
    return side(path, trace, requests=requests)


def test_what_differs_alike_in_several_requests_is_said_once(tmp_path):
    before = several(tmp_path / "a", [2, 3, 2, 2, 2, 2])
    after = several(tmp_path / "b", [3, 3, 3, 3, 3, 2])
    assert decisive(compared(before, after, with_times=False)) == [
        (
            "course",
            "measured requests 1, 3, 4 and 1 more",
            "2 replays of a 4-node graph",
            "3 replays of a 4-node graph",
        )
    ]


def test_a_change_beyond_the_requests_that_are_kept_is_noticed(tmp_path):
    before, after = [1] * 70, [1] * 69 + [2]
    found = compared(several(tmp_path / "a", before), several(tmp_path / "b", after))
    (difference,) = decisive(found)
    assert difference[:2] == ("course", "measured requests beyond the first 64")


def at_once(path, trace, **changes):
    requests = [request(index, **changes) for index in range(2)]
    manifest = with_manifest(requests={"concurrency": 2})
    return side(path, trace, requests=requests, manifest=manifest)


def test_how_requests_at_once_were_batched_is_listed_only(tmp_path):
    before = at_once(tmp_path / "a", prompt_and_replays(7))
    after = at_once(tmp_path / "b", prompt_and_replays(9))
    found = compared(before, after, with_times=False)
    assert found.verdict is SAME
    assert [one.rule for one in found.differences] == ["measured"]
    assert any("Measured requests ran at once" in note for note in found.notes)
    assert compared(before, after, with_times=False, strict=True).verdict is DIFFERS


def test_requests_at_once_without_a_graph_in_common_differ(tmp_path):
    before = at_once(tmp_path / "a", prompt_and_replays())
    for number, trace in enumerate((eager(), prompt_and_replays(rows=8))):
        after = at_once(tmp_path / str(number), trace)
        found = compared(before, after, with_times=False)
        assert found.verdict is DIFFERS
        assert decisive(found)[0][0] == "graphs"


def test_requests_at_once_must_get_as_many_tokens(tmp_path):
    before = at_once(tmp_path / "a", prompt_and_replays())
    after = at_once(tmp_path / "b", prompt_and_replays(), returned_token_ids=[1])
    found = compared(before, after, with_times=False)
    sides = "8 returned tokens", "1 returned token"
    assert decisive(found) == [("returned-tokens", "measured requests 1, 2", *sides)]


def test_a_run_without_measured_requests_is_judged_by_its_whole_life(tmp_path):
    before = side(tmp_path / "a", prompt_and_replays(7), requests=[])
    after = side(tmp_path / "b", prompt_and_replays(8), requests=[])
    found = compared(before, after)
    assert found.verdict is DIFFERS
    sides = "7 replays of a 4-node graph", "8 replays of a 4-node graph"
    assert decisive(found) == [("whole-life", "whole life", *sides)]
    same = compared(before, before)
    assert same.verdict is SAME
    assert "requests" not in same.checks
    assert any("No requests were recorded" in note for note in same.notes)


def test_new_drops_are_a_difference_of_structure(tmp_path, base):
    trace = prompt_and_replays()
    trace.drop(3)
    found = compared(base, side(tmp_path / "b", trace))
    assert found.verdict is DIFFERS
    rules = {rule: (before, after) for rule, _, before, after in decisive(found)}
    assert rules["drops"] == ("0", "3")
    assert rules["run-verdict"][1].startswith("mismatch (")


def test_nodes_that_change_from_replay_to_replay_are_noticed(tmp_path, base):
    trace = Trace()
    plain_pass(trace, 8)
    for launch_id in range(1, 8):
        for node in range(LAYERS):
            trace.enter_all(trace.node(node, launch_id, graph_node=0x9000 + node + launch_id))
    found = compared(base, side(tmp_path / "b", trace), with_times=False)
    place = "nodes of a graph exec from replay to replay"
    assert decisive(found) == [("same-nodes", place, "the same", "not the same")]


def test_several_processes_that_do_the_same_are_one_entry(tmp_path):
    traces = [prompt_and_replays() for _ in range(2)]
    for number, trace in enumerate(traces):
        trace.process_id = 100 + number
    two = side(tmp_path / "two", *traces)
    assert [one.processes for one in two.structure.processes] == [2]
    one = side(tmp_path / "one", prompt_and_replays())
    found = compared(one, two, with_times=False)
    assert decisive(found) == [("processes", "who writes the cache", "1 process", "2 processes")]


def writes(path, slots, *, padded=2, block_size=16, padding_store=False):
    """One request of a prompt token in a step of two layers; `slots` of its stores per layer."""
    shape = layout(2, block_size=block_size)
    trace = Trace(changes={"flags": flags("CLOSED", "PATCHED", "WRITES")})
    for layer, slot in enumerate(slots):
        launch = trace.plain((padded, 1, 1), step_stamp=1)
        trace.enter_all(launch)
        for part in "KV":
            trace.store(launch, (0, 0, 0), kv_address(slot, layer, part, shape=shape))
            if padding_store:
                trace.store(launch, (1, 0, 0), kv_address(5, layer, part, shape=shape))
    line = step(
        1,
        requests=[("cmpl-kvtrace-0-0-1a", 1, 0)],
        admitted=[["cmpl-kvtrace-0-0-1a", 0, [[1]]]],
        padded_rows=padded,
    )
    asked = request(prompt_token_ids=[1], returned_token_ids=[1, 2])
    return side(
        path,
        trace,
        steps=[started(block_sizes=[block_size]), line],
        layout=shape,
        requests=[asked],
        manifest=with_manifest(recording={"record": "writes"}),
    )


def test_writes_into_another_slot_are_named_by_position_and_layer(tmp_path):
    before = writes(tmp_path / "a", [16, 16])
    assert before.structure.requests[0].slots.in_place == 4
    for slot, words in ((19, "+3 slots in its own KV block"), (40, "into another KV block")):
        found = compared(before, writes(tmp_path / str(slot), [16, slot]))
        (difference,) = decisive(found)
        assert difference[:3] == (
            "slots",
            "measured request 1, KV slots",
            "4 of 4 writes in the request's own slots",
        )
        assert difference[3].endswith(f"first position 0, layer 1, K: {words}")


def test_other_kv_blocks_are_no_difference(tmp_path):
    """The slot is told by its place in the request's table, not by the KV block's id."""
    found = compared(writes(tmp_path / "a", [16, 16]), writes(tmp_path / "b", [16, 16]))
    assert found.verdict is SAME
    assert {"slots", "positions", "writes", "padding-rows", "padding-stores", "kv-layout"} <= set(
        found.checks
    )


def test_padding_rows_and_their_stores(tmp_path):
    before = writes(tmp_path / "a", [16, 16])
    found = compared(before, writes(tmp_path / "b", [16, 16], padding_store=True))
    assert decisive(found) == [
        ("padding-stores", "stores of padding rows in measured requests", "0", "4")
    ]
    found = compared(before, writes(tmp_path / "c", [16, 16], padded=4), with_times=False)
    assert [one[:2] for one in decisive(found)] == [
        ("course", "measured request 1"),
        ("padding-rows", "padding rows that entered in measured requests"),
    ]


def test_a_layer_without_its_write_is_named(tmp_path):
    before = writes(tmp_path / "a", [16, 16])
    after = writes(tmp_path / "b", [16])
    rules = [rule for rule, *_ in decisive(compared(before, after, with_times=False))]
    assert rules[0] == "course"
    assert "lacks" not in rules, "what follows from the course is not said again"


def test_another_layout_of_the_kv_tensors(tmp_path):
    before = writes(tmp_path / "a", [16, 16])
    after = writes(tmp_path / "b", [32, 32], block_size=32)
    (difference,) = decisive(compared(before, after))
    assert difference[:2] == ("kv-layout", "layout of the KV tensors")
    assert "offset 16" in difference[2]
    assert "offset 32" in difference[3]


def test_more_shapes_of_graphs_than_are_kept_are_still_told_apart(tmp_path):
    def run(name, last):
        trace = Trace()
        for launch_id in range(1, 302):
            rows = last if launch_id == 301 else launch_id
            trace.enter_all(trace.node(0, launch_id, (rows, 1, 1)))
        return side(tmp_path / name, trace, requests=[])

    before = run("a", 1)
    assert len(before.structure.processes[0].graphs) == 256
    assert compared(before, run("b", 1), with_times=False).verdict is SAME
    found = compared(before, run("c", 256), with_times=False)
    assert [one[0] for one in decisive(found)] == ["whole-life"]


def test_a_geometry_beyond_those_that_are_kept_is_noticed(tmp_path):
    def run(name, last):
        trace = Trace()
        for rows in (*range(1, 71), last):
            trace.enter_all(trace.plain((rows, 1, 1)))
        return side(tmp_path / name, trace, requests=[])

    found = compared(run("a", 80), run("b", 81))
    place = "whole life, beyond the most frequent launches"
    assert decisive(found) == [("whole-life", place, "71 plain launches", "71 plain launches")]


def test_a_request_that_failed_is_noticed(tmp_path, base):
    asked = [request(returned_token_ids=None)]
    found = compared(base, side(tmp_path / "b", prompt_and_replays(), requests=asked))
    assert decisive(found)[0][2:] == ("8 returned tokens", "0 returned tokens")
