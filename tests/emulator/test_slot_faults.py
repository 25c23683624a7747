"""Each slot fault of the emulated engine does one thing wrong, and nothing before it is struck."""

from pass_by_pass import Engine, make_cache

from kvtrace_cli.emulator.faults import Fault

LAYERS = 9
ODD_LAYER = 7
BLOCK_SIZE = 4


def serve(directory, fault, *loads, **options):
    """Run loads one after the other; each is requests that come at once: (prompt, tokens)."""
    cache = make_cache(64, BLOCK_SIZE, LAYERS)
    engine = Engine(directory, cache=cache, fault=fault, **options)
    for load in loads:
        for prompt, most in load:
            engine.submit(prompt, most)
        engine.finish()
    return engine


def forward(engine):
    """Return (expected slots with padding, stored slots of each layer) of each forward pass."""
    return [
        ([*expected, *[-1] * (line["padded_rows"] - line["rows"])], stored)
        for line, expected, _, stored in engine.told()
        if line.get("kind") == "forward"
    ]


def dummies(engine):
    return [
        stored for line, _, _, stored in engine.told() if line.get("kind") == "dummy" and stored
    ]


def differing(engine):
    """Return the forward passes with a wrong slot: (pass, expected, stored of each layer)."""
    return [
        (number, expected, stored)
        for number, (expected, stored) in enumerate(forward(engine))
        if stored != [expected] * LAYERS
    ]


WARM_UP = [([9] * 7, 1)]


def test_without_a_fault_nothing_differs(tmp_path):
    load = [([1] * 21, 6), ([2] * 3, 9)]
    engine = serve(tmp_path, Fault.NONE, WARM_UP, load, capture_sizes=(4, 8))
    assert differing(engine) == []
    assert all(set(slots) == {-1} for stored in dummies(engine) for slots in stored)


def test_faults_of_other_kinds_touch_no_slot(tmp_path):
    engine = serve(tmp_path, Fault.WORKER_PROCESS, WARM_UP, [([1] * 5, 6)])
    assert differing(engine) == []


def test_the_warm_up_request_is_never_struck(tmp_path):
    faults = [
        *(Fault.STALE_PADDING_SLOTS, Fault.PADDING_LAST_SLOT, Fault.FREED_BLOCK_REUSED),
        *(Fault.BLOCK_SIZE_MIXUP, Fault.SKIPPED_LAYER, Fault.SHIFTED_LAYER),
        *(Fault.SHIFTED_SLOTS, Fault.UNLAUNCHED_LAYER),
    ]
    for fault in faults:
        engine = serve(tmp_path / fault.value, fault, [([9] * 7, 1), ([8] * 30, 1)], WARM_UP)
        assert differing(engine) == []


def test_dummy_rows_get_slot_zero_also_after_the_requests(tmp_path):
    engine = serve(tmp_path, Fault.DUMMY_SLOT_ZERO, WARM_UP, [([1] * 5, 6)], capture_sizes=(2, 4))
    assert dummies(engine) == [[[0] * rows] * LAYERS for rows in (4, 2, 2, 2)]
    lines = engine.lines()
    assert [line.get("kind") for line in lines[-2:]] == [None, "dummy"]
    assert differing(engine) == []


def test_padding_rows_keep_the_slots_of_the_chunk_before(tmp_path):
    options = {"capture_sizes": (4, 8), "max_batched_tokens": 5}
    engine = serve(tmp_path, Fault.STALE_PADDING_SLOTS, [([1] * 8, 4)], **options)
    (first, _), *_ = passes = forward(engine)
    wrong = differing(engine)
    # The second chunk has three rows of four, the first decode pass after it one.
    assert [number for number, _, _ in wrong] == [1, 2]
    for number, expected, stored in wrong:
        rows = 4 - expected.count(-1)
        before = passes[number - 1][1][0]
        assert stored == [[*expected[:rows], *before[rows:4]]] * LAYERS
    assert wrong[0][2][0][3] == first[3]


def test_padding_rows_write_the_last_slot(tmp_path):
    options = {"capture_sizes": (4, 8)}
    engine = serve(tmp_path, Fault.PADDING_LAST_SLOT, WARM_UP, [([1] * 6, 3)], **options)
    last = 64 * BLOCK_SIZE - 1
    wrong = differing(engine)
    assert [number for number, _, _ in wrong] == [1, 2, 3]
    for _, expected, stored in wrong:
        assert stored == [[last if slot == -1 else slot for slot in expected]] * LAYERS


def test_a_block_that_is_still_written_is_given_to_a_new_request(tmp_path):
    engine = Engine(tmp_path, cache=make_cache(64, BLOCK_SIZE), fault=Fault.FREED_BLOCK_REUSED)
    old = engine.submit([1] * 5, 6)
    engine.step()
    new = engine.submit([2] * 6, 3)
    third = engine.submit([3] * 6, 3)
    engine.finish()
    lines = engine.lines()
    tables = {
        request_id: kv_block_ids
        for line in lines
        for request_id, _, (kv_block_ids,) in line.get("admitted", ())
    }
    assert tables[new.request_id][0] == tables[old.request_id][-1]
    assert not set(tables[third.request_id]) & {*tables[old.request_id], *tables[new.request_id]}
    # In the pass that admits the new one, and the next, the old one's row is in that block.
    shared = tables[new.request_id][0]
    admitting = next(
        k for k, (line, *_) in enumerate(engine.told()) if "admitted" in line and k > 8
    )
    for line, expected, _, stored in list(engine.told())[admitting : admitting + 2]:
        assert line["requests"][0][0] == old.request_id
        assert expected[0] // BLOCK_SIZE == shared
        assert stored[0][0] == expected[0]
    assert engine.blocks.free_count == 63


def test_slots_are_computed_with_twice_the_block_size(tmp_path):
    engine = serve(tmp_path, Fault.BLOCK_SIZE_MIXUP, [([1] * 10, 2)], capture_sizes=(16,))
    ((_, stored), (_, decode)) = forward(engine)
    (table,) = (
        table
        for line, _, tables, _ in engine.told()
        for table in tables.values()
        if "admitted" in line
    )
    wrong = [table[position // 8] * 8 + position % 8 for position in range(11)]
    assert stored == [[*wrong[:10], *[-1] * 6]] * LAYERS
    assert decode == [[wrong[10], *[-1] * 15]] * LAYERS


def test_one_layer_writes_nothing_in_one_decode_pass(tmp_path):
    engine = serve(tmp_path, Fault.SKIPPED_LAYER, WARM_UP, [([1] * 6, 4)])
    ((number, expected, stored),) = differing(engine)
    # Pass 0 is the warm-up request, 1 the prompt.
    assert number == 2
    assert stored[ODD_LAYER] == [-1] * len(expected)
    assert stored[:ODD_LAYER] + stored[ODD_LAYER + 1 :] == [expected] * (LAYERS - 1)


def test_one_layer_writes_one_slot_further(tmp_path):
    engine = serve(tmp_path, Fault.SHIFTED_LAYER, WARM_UP, [([1] * 6, 3)], capture_sizes=(4, 8))
    wrong = differing(engine)
    assert [number for number, _, _ in wrong] == [1, 2, 3]
    for _, expected, stored in wrong:
        assert stored[ODD_LAYER] == [slot + 1 if slot != -1 else -1 for slot in expected]
        assert stored[:ODD_LAYER] + stored[ODD_LAYER + 1 :] == [expected] * (LAYERS - 1)


def test_all_layers_write_one_slot_further(tmp_path):
    engine = serve(tmp_path, Fault.SHIFTED_SLOTS, WARM_UP, [([1] * 5, 3)])
    assert [number for number, _, _ in differing(engine)] == [1, 2, 3]
    for _, expected, stored in differing(engine):
        further = [slot + 1 if slot >= 0 else -1 for slot in expected]
        assert stored == [further] * LAYERS


def test_one_layer_is_not_launched_for_prompts(tmp_path):
    engine = serve(tmp_path, Fault.UNLAUNCHED_LAYER, WARM_UP, [([1] * 5, 3)])
    (struck,) = differing(engine)
    number, expected, stored = struck
    assert number == 1
    assert stored == [expected] * (LAYERS - 1)
