"""Whose the rows were: by owner, and by request, token position and layer."""

from dataclasses import replace

import builders
import pytest
from builders import Trace, attributed, flags, kv_address, layout, request, started, step

from kvtrace_cli.analysis.attribution import our_request_index
from kvtrace_cli.analysis.model import RowCounts

LAYERS = 2
OURS = "cmpl-kvtrace-0-0-1a2b3c4d"


class Engine:
    """Runs steps: lines of the plug-in, launches of each layer, and their entries and stores."""

    def __init__(self, *, stores=True, layers=LAYERS):
        self.trace = Trace()
        if stores:
            self.trace.changes = {"flags": flags("CLOSED", "PATCHED", "WRITES")}
        self.lines = [started()]
        self._stores, self._layers = stores, layers

    def step(self, kind="forward", requests=(), slots=(), rows=None, graph=False, **fields):
        """Run a step of `rows` blocks; the first of them store to `slots`."""
        stamp = len([line for line in self.lines if line["event"] == "step"]) + 1
        rows = sum(part[1] for part in requests) if rows is None else rows
        self.lines.append(step(stamp, kind, requests, **fields))
        for layer in range(self._layers):
            grid = (rows, 1, 1)
            if graph:
                launch = self.trace.node(layer, stamp, grid, step_stamp=stamp)
            else:
                launch = self.trace.plain(grid, step_stamp=stamp)
            for block in launch.blocks:
                self.trace.enter(launch, block)
                if self._stores and block[0] < len(slots):
                    for part in "KV":
                        address = kv_address(slots[block[0]], layer, part)
                        self.trace.store(launch, block, address)
        return self

    def found(self, tmp_path, **options):
        options = {"steps": self.lines, "layout": layout(LAYERS)} | options
        return attributed(tmp_path, self.trace, **options)[1]


def one_request(**options):
    """A prompt of 3 tokens and 3 tokens back, in KV block 1: 5 positions."""
    engine = Engine(**options)
    engine.step("dummy", rows=8)
    engine.step(requests=[(OURS, 3, 0)], rows=4, slots=[16, 17, 18], admitted=[[OURS, 0, [[1]]]])
    engine.step(requests=[(OURS, 1, 3)], slots=[19], graph=True)
    return engine.step(requests=[(OURS, 1, 4)], slots=[20], rows=2, graph=True)


def asked(**changes):
    tokens = {"prompt_token_ids": [1, 2, 3], "returned_token_ids": [4, 5, 6]}
    return request(0, **(tokens | changes))


def test_rows_are_owned_padding_or_dummy(tmp_path):
    found = one_request().found(tmp_path, requests=[asked()])
    assert found.whole_life == RowCounts(owned=10, padding=4, dummy=16)
    assert found.stores == RowCounts(owned=20)
    assert (found.measured, found.measured_stores) == (found.whole_life, found.stores)
    assert found.notes == ()


def test_a_request_has_its_positions_times_layers(tmp_path):
    (ours,) = one_request().found(tmp_path, requests=[asked()]).requests
    assert (ours.request_index, ours.request_id) == (0, OURS)
    assert (ours.prompt_tokens, ours.returned_tokens) == (3, 3)
    assert (ours.positions, ours.layers, ours.expected) == (5, 2, 10)
    assert (ours.entered, ours.k_written, ours.v_written) == (10, 10, 10)
    assert ours.lacks == ()


def test_tokens_are_listed_one_by_one(tmp_path):
    tokens = one_request().found(tmp_path).tokens
    assert tokens["position"].to_list() == [0, 1, 2, 3, 4]
    assert tokens.select("layers", "layers_entered", "k_layers", "v_layers").unique().rows() == [
        (2, 2, 2, 2)
    ]


def test_without_stores_only_entries_are_counted(tmp_path):
    found = one_request(stores=False).found(tmp_path, requests=[asked()])
    assert (found.stores, found.measured_stores) == (None, None)
    (ours,) = found.requests
    assert (ours.entered, ours.k_written, ours.v_written, ours.lacks) == (10, None, None, ())


def test_without_a_layout_layers_are_counted_from_the_launches(tmp_path):
    (ours,) = one_request().found(tmp_path, layout=None, requests=[asked()]).requests
    assert (ours.layers, ours.entered, ours.k_written, ours.lacks) == (2, 10, None, ())


def lose_an_entry(engine, row, position):
    events = engine.trace.events
    at = [
        number
        for number, event in enumerate(events)
        if event["block_idx_x"] == row and event["event_kind"] == 1
    ]
    engine.trace.lose(at[position])


def test_a_row_that_did_not_enter_one_layer_is_named(tmp_path):
    engine = one_request(stores=False)
    # Of row 2: two layers of the dummy step, then two of the prefill.
    lose_an_entry(engine, row=2, position=3)
    found = engine.found(tmp_path, requests=[asked()])
    assert found.whole_life == RowCounts(owned=9, padding=4, dummy=16)
    (ours,) = found.requests
    assert (ours.expected, ours.entered, ours.lacks) == (10, 9, ("1 entered",))
    assert found.tokens["layers_entered"].to_list() == [2, 2, 1, 2, 2]


def test_a_padding_row_that_did_not_enter_takes_nothing_from_a_request(tmp_path):
    engine = one_request(stores=False)
    lose_an_entry(engine, row=3, position=2)
    found = engine.found(tmp_path, requests=[asked()])
    assert found.whole_life == RowCounts(owned=10, padding=3, dummy=16)
    assert found.requests[0].lacks == ()


def test_a_row_that_entered_and_did_not_store_is_named(tmp_path):
    engine = one_request()
    engine.step(requests=[(OURS, 1, 5)])
    (ours,) = engine.found(tmp_path, requests=[asked()]).requests
    assert (ours.positions, ours.entered) == (6, 12)
    assert (ours.k_written, ours.v_written, ours.lacks) == (10, 10, ("2 K", "2 V"))


def test_stores_outside_the_cache_write_no_position(tmp_path):
    engine = one_request()
    for event in engine.trace.events:
        if event.get("address") == kv_address(19, 1, "V"):
            event["address"] = 64
    (ours,) = engine.found(tmp_path).requests
    assert (ours.k_written, ours.v_written) == (10, 9)


def test_stores_are_counted_by_the_owner_of_their_row(tmp_path):
    engine = Engine()
    engine.step("dummy", rows=1, slots=[0]).step("draft", rows=1, slots=[0])
    engine.step(requests=[("a", 1, 0)], rows=2, slots=[16, 17], admitted=[["a", 0, [[1]]]])
    stray = engine.trace.plain()
    engine.trace.enter_all(stray)
    engine.trace.store(stray)
    found = engine.found(tmp_path)
    assert found.stores == RowCounts(owned=4, padding=4, dummy=4, draft=4, unknown=1)
    assert found.whole_life == RowCounts(owned=2, padding=2, dummy=2, draft=2, unknown=1)


def test_entries_that_match_no_launch_are_unknown(tmp_path):
    engine = one_request(stores=False)
    engine.trace.enter(engine.trace.launches[-1])
    engine.trace.enter(engine.trace.launches[0].with_values(grid_id=5))
    found = engine.found(tmp_path, requests=[asked()])
    assert (found.whole_life.unknown, found.measured.unknown) == (2, 0)


def test_a_step_of_which_there_is_no_line_is_unknown(tmp_path):
    engine = one_request(stores=False)
    engine.lines.pop()
    found = engine.found(tmp_path, requests=[asked()])
    assert found.whole_life == RowCounts(owned=8, padding=2, dummy=16, unknown=4)
    assert found.notes == (
        "4 block entries are of launches without a recorded step: owner unknown.",
    )
    # The last position that came back was fed in by a step that is not known.
    assert found.requests[0].lacks == ("1 position",)


def test_a_position_that_is_computed_again_counts_once(tmp_path):
    engine = Engine(stores=False)
    engine.step(requests=[("a", 2, 0)], admitted=[["a", 0, [[1]]]])
    engine.step(requests=[("a", 2, 0)], preempted=["a"], resumed=[["a", 0, [[2]]]])
    (only,) = engine.found(tmp_path).requests
    assert (only.positions, only.expected, only.entered, only.lacks) == (2, 4, 4, ())


def test_cached_positions_are_not_missed(tmp_path):
    engine = Engine(stores=False)
    engine.step(requests=[("a", 2, 16)], admitted=[["a", 16, [[1, 2]]]])
    (only,) = engine.found(tmp_path).requests
    assert (only.cached_positions, only.positions, only.lacks) == (16, 2, ())


def test_a_gap_in_the_positions_is_named(tmp_path):
    engine = Engine(stores=False)
    engine.step(requests=[("a", 2, 0)], admitted=[["a", 0, [[1]]]])
    engine.step(requests=[("a", 1, 4)])
    (only,) = engine.found(tmp_path).requests
    assert only.lacks == ("2 positions",)


def test_requests_are_ordered_ours_first_and_the_engines_last(tmp_path):
    engine = Engine(stores=False)
    ids = ["_warmup_0_", "someone", "cmpl-kvtrace-1-0-aa", OURS, "_v2_mixed_warmup_prefill_"]
    engine.step(requests=[(name, 1, 0) for name in ids])
    found = engine.found(tmp_path, requests=[asked(returned_token_ids=None), request(1)])
    assert [one.request_id for one in found.requests] == [ids[3], ids[2], ids[1], ids[0], ids[4]]
    assert [one.is_engine_own for one in found.requests] == [False, False, False, True, True]
    assert found.whole_life == RowCounts(owned=10, engine_own=4)


def test_one_request_in_two_processes_is_added_up(tmp_path):
    """Tensor parallel: each rank has all positions; pipeline: each its layers."""
    engine = one_request(stores=False)
    run = builders.write_run(
        tmp_path / "run",
        engine.trace,
        replace(engine.trace, process_id=9),
        steps=engine.lines,
        requests=[asked()],
    )
    recording = builders.read_recording(builders.open_run_dir(run, allow_incomplete=False))
    result = builders.reconcile(recording)
    found = builders.attribute(result, recording, builders.step_tables(recording))
    (ours,) = found.requests
    assert (ours.positions, ours.layers, ours.expected, ours.entered) == (5, 4, 20, 20)
    assert ours.lacks == ()


@pytest.mark.parametrize(
    ("request_id", "index"),
    [
        ("cmpl-kvtrace-3-0-1a2b3c4d", 30),
        ("chatcmpl-kvtrace-3", 30),
        ("kvtrace-3", 30),
        ("cmpl-kvtrace-30-0-1a2b3c4d", None),
        ("cmpl-mykvtrace-3-0", None),
        ("", None),
    ],
)
def test_our_id_is_found_in_the_engines(request_id, index):
    assert our_request_index(request_id, {"kvtrace-3": 30}) == index


NOTES = {
    "lacks": ({"missing": ["prepare_inputs"]}, "lacks what the plug-in hooks: prepare_inputs."),
    "inexact": ({"inexact": ["speculative decoding"]}, "upper bounds: speculative decoding."),
    "no stamps": ({"stamped": False}, "takes no step stamps, so its launches have no step."),
}


@pytest.mark.parametrize("case", NOTES)
def test_what_limits_the_attribution_is_said(tmp_path, case):
    changes, text = NOTES[case]
    engine = one_request(stores=False)
    engine.lines[0] = started(**changes)
    (note,) = engine.found(tmp_path).notes
    assert text in note
    assert "process 4711" in note


def test_a_plug_in_that_stopped_is_said(tmp_path):
    engine = one_request(stores=False)
    engine.lines.append({"event": "failed", "hook": "execute_model", "error": "KeyError: 'x'"})
    assert engine.found(tmp_path).notes == (
        "The engine plug-in of process 4711 stopped in execute_model: KeyError: 'x'",
    )


def test_without_steps_nothing_is_claimed(tmp_path):
    found = one_request(stores=False).found(tmp_path, steps=None, layout=None)
    assert (found.has_steps, found.requests) == (False, ())
    assert found.whole_life == RowCounts(unknown=30)
    assert found.notes == ("No engine steps were recorded, so no row is given to a request.",)


def test_nothing_recorded_at_all(tmp_path):
    found = attributed(tmp_path, requests=[])[1]
    assert (found.whole_life, found.measured, found.requests) == (RowCounts(), None, ())
