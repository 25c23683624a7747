"""What the emulated engine tells in its steps file is what its kernels are told."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from pass_by_pass import LAYERS, Engine, make_cache

from kvtrace_cli.emulator.kv_blocks import NULL_BLOCK
from kvtrace_cli.emulator.step_log import StepLog


@st.composite
def loads(draw):
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    # Prompts of one alphabet, so that prefixes are shared and end within a block too.
    base = draw(st.lists(st.integers(0, 2), min_size=40, max_size=40))
    arrivals = draw(
        st.lists(
            st.tuples(
                st.integers(1, 40),  # prompt tokens that are the same for all
                st.lists(st.integers(0, 2), max_size=5),
                st.integers(1, 20),  # tokens to make
                st.integers(0, 6),  # passes to run before it comes
            ),
            min_size=1,
            max_size=8,
        )
    )
    longest = max(same + len(own) + most for same, own, most, _ in arrivals)
    fewest = 1 + -(-longest // block_size)
    options = {
        "cache": make_cache(fewest + draw(st.integers(0, 2 * fewest)), block_size),
        "prefix_caching": draw(st.booleans()),
        "max_num_seqs": draw(st.integers(1, 5)),
        "max_batched_tokens": draw(st.integers(5, 64)),
        "capture_sizes": draw(st.sampled_from([(1, 2, 4, 8), (8,), (3, 20)])),
    }
    return base, arrivals, options


def run(directory, load):
    base, arrivals, options = load
    engine = Engine(directory, **options)
    for same, own, most, passes_before in arrivals:
        for _ in range(passes_before):
            engine.step()
        engine.submit([*base[:same], *own], most)
    engine.finish()
    return engine


@settings(max_examples=300, deadline=None)
@given(loads())
def test_every_row_of_a_mixed_load_has_the_slot_that_the_steps_tell(load):
    with tempfile.TemporaryDirectory() as directory:
        engine = run(Path(directory), load)
        for line, expected, tables, stored in engine.told():
            # Blocks ran out: nobody new may take what others were just robbed of.
            assert not line.get("preempted") or not {"admitted", "resumed"} & line.keys()
            assert NULL_BLOCK not in {block for table in tables.values() for block in table}
            if line.get("kind") == "forward":
                padded = [*expected, *[-1] * (line["padded_rows"] - line["rows"])]
                assert stored == [padded] * LAYERS
                assert len(set(expected)) == len(expected) == line["rows"]
            elif stored:
                assert stored == [[-1] * line["rows"]] * LAYERS


@settings(max_examples=300, deadline=None)
@given(loads())
def test_a_request_finds_its_own_tokens_in_its_blocks_in_every_pass(load):
    """Sharing, preemption and reuse of blocks never let one read what another one wrote."""
    with tempfile.TemporaryDirectory() as directory:
        engine = run(Path(directory), load)
        texts = {one.request_id: one.token_ids for one in engine.requests}
        size, content, done = engine.cache.block_size, {}, {}
        for line, expected, tables, _ in engine.told():
            for request_id, computed, _ in (*line.get("admitted", ()), *line.get("resumed", ())):
                assert not computed or engine.prefix_caching
                done[request_id] = computed
            written = [
                texts[request_id][: position + 1]
                for request_id, rows, first in line.get("requests", ())
                for position in range(first, first + rows)
            ]
            content |= dict(zip(expected, written, strict=True))
            for request_id, rows, first in line.get("requests", ()):
                assert done[request_id] == first
                done[request_id] = first + rows
                for position in range(first + rows):
                    slot = tables[request_id][position // size] * size + position % size
                    assert content[slot] == texts[request_id][: position + 1]
        # The last token made is never computed.
        assert done == {one.request_id: len(one.token_ids) - 1 for one in engine.requests}


@settings(max_examples=100, deadline=None)
@given(loads())
def test_everything_is_answered_alike_and_every_block_comes_back(load):
    with tempfile.TemporaryDirectory() as directory:
        engine = run(Path(directory), load)
        assert engine.blocks.free_count == engine.cache.num_blocks - 1
        for request in engine.requests:
            assert list(request.tokens()) == request.token_ids[len(request.prompt) :]
            assert request.produced == request.max_tokens
        (*_, last) = engine.told()
        assert last[2] == {}


def test_rows_of_one_token_come_first_then_the_shorter_chunks(tmp_path):
    engine = Engine(tmp_path, max_batched_tokens=32)
    engine.submit([1] * 4, 9)
    engine.step()
    engine.submit([2] * 9, 2)
    engine.submit([3] * 5, 2)
    engine.step()
    line = engine.lines()[-1]
    rows = [(request_id[:6], rows, first) for request_id, rows, first in line["requests"]]
    assert rows == [("cmpl-0", 1, 4), ("cmpl-2", 5, 0), ("cmpl-1", 9, 0)]
    assert (line["rows"], line["padded_rows"], line["graph_mode"]) == (15, 15, "NONE")


def test_passes_are_padded_to_the_captured_size_above(tmp_path):
    engine = Engine(tmp_path, capture_sizes=(4, 8))
    engine.submit([1] * 6, 3)
    engine.finish()
    forward = [line for line in engine.lines() if line.get("kind") == "forward"]
    assert [(line["rows"], line["padded_rows"], line["graph_mode"]) for line in forward] == [
        (6, 8, "PIECEWISE"),
        (1, 4, "FULL"),
        (1, 4, "FULL"),
    ]


def test_a_prompt_is_computed_in_chunks_of_the_budget(tmp_path):
    engine = Engine(tmp_path, max_batched_tokens=5)
    engine.submit([1] * 12, 2)
    engine.finish()
    chunks = [line["requests"][0][1:] for line in engine.lines() if "requests" in line]
    assert chunks == [[5, 0], [5, 5], [2, 10], [1, 12]]


def test_the_newest_request_is_preempted_and_computes_all_over_in_other_blocks(tmp_path):
    # Eight blocks of four tokens for two requests that come to five blocks each.
    engine = Engine(tmp_path, cache=make_cache(num_blocks=9))
    old = engine.submit([1] * 11, 9)
    new = engine.submit([2] * 5, 12)
    engine.finish()
    lines = engine.lines()
    (preempting,) = (line for line in lines if "preempted" in line)
    assert preempting["preempted"] == [new.request_id]
    assert [request_id for request_id, _, _ in preempting["requests"]] == [old.request_id]
    (resuming,) = (line for line in lines if "resumed" in line)
    ((request_id, computed, (kv_block_ids,)),) = resuming["resumed"]
    assert (request_id, computed) == (new.request_id, 0)
    (admitted,) = (
        blocks
        for line in lines
        for request_id, _, (blocks,) in line.get("admitted", ())
        if request_id == new.request_id
    )
    assert kv_block_ids[: len(admitted)] != admitted
    assert old.request_id in resuming["finished"]
    # What it had made before is computed again with the prompt, in chunks if need be.
    ((_, rows, first),) = resuming["requests"]
    assert first == 0
    assert rows > len(new.prompt)


def test_a_preempted_request_goes_before_those_that_wait_already(tmp_path):
    engine = Engine(tmp_path, cache=make_cache(num_blocks=9), max_num_seqs=2)
    for prompt, most in (([1] * 11, 20), ([2] * 5, 12), ([3] * 3, 1)):
        engine.submit(prompt, most)
    engine.finish()
    lines = engine.lines()
    (resuming,) = (line for line in lines if "resumed" in line)
    # The third one would have had room as soon as the second one had none.
    assert [request_id[:6] for request_id, *_ in resuming["admitted"]] == ["cmpl-2"]
    assert lines.index(resuming) > 1 + next(k for k, one in enumerate(lines) if "preempted" in one)


def test_ends_are_told_with_the_next_output_or_with_an_idle_one(tmp_path):
    engine = Engine(tmp_path)
    first = engine.submit([1] * 4, 1)
    second = engine.submit([2] * 4, 2)
    engine.finish()
    _, mixed, decode, idle = [line for line in engine.lines() if line.get("kind") != "dummy"]
    assert "finished" not in mixed
    assert decode["finished"] == [first.request_id]
    assert idle["event"] == "idle"
    assert idle["finished"] == [second.request_id]


def test_nothing_is_written_without_a_directory_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with StepLog({}, make_cache()).dummy(1, "NONE"):
        pass
    assert list(tmp_path.iterdir()) == []
