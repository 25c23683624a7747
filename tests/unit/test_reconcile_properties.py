"""Whatever the interleaving: the generator knows which launch each block truly belongs to."""

import random
import tempfile
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from builders import Trace, reconciled
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace_cli.analysis import joined, matching
from kvtrace_cli.analysis.joined import store_slices
from kvtrace_cli.analysis.model import Verdict


def interleaved(seed, *, stamps, streams, nodes, count, losses):
    """Return a trace of several streams and, for each event, the launch it truly belongs to.

    Blocks of one replay enter in any order, replays of one exec one after the other, streams in
    any interleaving; `losses` blocks find no space.
    """
    chance = random.Random(seed)
    trace = Trace(stamps=stamps)
    queues = []
    for stream in range(streams):
        grids = [(chance.randint(1, 3), chance.randint(1, 2), chance.randint(1, 2))] * nodes
        queue = []
        for launch_id in range(1, count + 1):
            key = {"graph_exec": 0x5000 + stream, "stream": stream, "api_stream": stream}
            if stamps:
                key["launch_stamp"] = stream * count + launch_id
            blocks = []
            for node, grid in enumerate(grids):
                grid_id = 1000 * (1 + stream) + node
                launch = trace.node(node, launch_id, grid, grid_id=grid_id, **key)
                index = len(trace.launches) - 1
                blocks += [(index, launch, block) for block in launch.blocks]
            chance.shuffle(blocks)
            queue += blocks
        plain = trace.plain((chance.randint(1, 4), 1, 1))
        queue += [(len(trace.launches) - 1, plain, block) for block in plain.blocks]
        queues.append(queue)
    total = sum(map(len, queues))
    lost = set(chance.sample(range(total), min(losses, total)))
    truth = []
    for position in range(total):
        queue = chance.choice([queue for queue in queues if queue])
        index, launch, block = queue.pop(0)
        if position in lost:
            trace.drop()
        else:
            trace.enter(launch, block)
            truth.append(index)
    return trace, truth, total


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    stamps=st.booleans(),
    streams=st.integers(1, 4),
    nodes=st.integers(1, 4),
    count=st.integers(1, 5),
    losses=st.integers(0, 6),
)
def test_whatever_the_interleaving_no_block_is_given_to_a_wrong_launch(
    *, seed, stamps, streams, nodes, count, losses
):
    lost = losses if stamps else 0
    trace, truth, total = interleaved(
        seed, stamps=stamps, streams=streams, nodes=nodes, count=count, losses=lost
    )
    with tempfile.TemporaryDirectory() as directory:
        result = reconciled(Path(directory), trace)
    assert result.block_events["launch_index"].to_list() == truth
    assert result.block_events["matched"].all()
    sections = (result.whole_life.graph_nodes, result.whole_life.plain_launches)
    assert sum(blocks.expected_blocks for blocks in sections) == total
    assert sum(blocks.missing_blocks for blocks in sections) == total - len(truth)
    assert sum(blocks.unexpected_blocks for blocks in sections) == 0
    assert (result.verdict is Verdict.AGREES) == (len(truth) == total)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), stamps=st.booleans(), losses=st.integers(0, 6))
def test_the_counts_always_add_up(seed, stamps, losses):
    """Also when counting goes wrong and events are spoilt: nothing is counted twice or never."""
    trace, _, total = interleaved(seed, stamps=stamps, streams=2, nodes=3, count=3, losses=losses)
    chance = random.Random(seed)
    for event in chance.sample(trace.events, min(3, len(trace.events))):
        event[chance.choice(["block_idx_x", "grid_id", "launch_stamp"])] += 1
    with tempfile.TemporaryDirectory() as directory:
        result = reconciled(Path(directory), trace)
    sections = (result.whole_life.graph_nodes, result.whole_life.plain_launches)
    assert sum(blocks.expected_blocks for blocks in sections) == total
    found = sum(blocks.matched_blocks + blocks.unexpected_blocks for blocks in sections)
    assert found == len(trace.events)
    assert all(blocks.missing_blocks >= 0 for blocks in sections)


def with_stores(trace, truth, chance):
    """Return the trace with up to three stores a block, and the launch each truly belongs to.

    The stores of a block come at any time after its entry, and before the block of the same grid
    id and stamp enters again.
    """
    again = Trace(stamps=trace.stamps, launches=trace.launches)
    waiting, store_truth = {}, []

    def store(key):
        index, block = waiting[key].pop()
        again.store(trace.launches[index], block)
        store_truth.append(index)

    for event, index in zip(trace.events, truth, strict=True):
        block = tuple(event[f"block_idx_{axis}"] for axis in "xyz")
        key = (event["grid_id"], event["launch_stamp"], block)
        while waiting.get(key):
            store(key)
        again.enter(trace.launches[index], block)
        waiting[key] = [(index, block)] * chance.randint(0, 3)
        while (ready := [one for one in waiting if waiting[one]]) and chance.random() < 0.6:
            store(chance.choice(ready))
    for key, left in waiting.items():
        while left:
            store(key)
    return again, store_truth


@contextmanager
def in_slices(count):
    with (
        mock.patch.object(joined, "SLICE_EVENTS", count),
        mock.patch.object(matching, "PIECE_EVENTS", count),
    ):
        yield


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    stamps=st.booleans(),
    streams=st.integers(1, 3),
    count=st.integers(1, 4),
    in_slice=st.sampled_from([1, 3, 10, 1000]),
)
def test_whatever_the_interleaving_no_store_is_given_to_a_wrong_launch(
    *, seed, stamps, streams, count, in_slice
):
    trace, truth, total = interleaved(
        seed, stamps=stamps, streams=streams, nodes=2, count=count, losses=0
    )
    trace, store_truth = with_stores(trace, truth, random.Random(seed))
    with tempfile.TemporaryDirectory() as directory, in_slices(in_slice):
        result = reconciled(Path(directory), trace)
        stores = [part["launch_index"].to_list() for part in store_slices(result.contexts)]
    assert result.verdict is Verdict.AGREES
    assert result.block_events["launch_index"].to_list() == truth
    assert [index for part in stores for index in part] == store_truth
    if store_truth:
        assert (result.stores.recorded, result.stores.unexpected) == (len(store_truth), 0)
    assert result.files[0].entries_written == total
