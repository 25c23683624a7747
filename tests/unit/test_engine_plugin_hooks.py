# ruff: noqa: ARG001  the signatures are the engine's

import contextlib
import json
import os
from inspect import signature
from types import SimpleNamespace

import pytest
from fake_runners import (
    FullAttentionSpec,
    V1Runner,
    V2Runner,
    as_module,
    cache_config,
    fresh_class,
    group,
    scheduler_output,
)

from kvtrace_cli.engine_site.kvtrace_engine_plugin import recorder, v1_hooks, v2_hooks
from kvtrace_cli.engine_site.kvtrace_engine_plugin.session import Session

BOTH = pytest.mark.parametrize("kind", ["v1", "v2"])
RUNNERS = {"v1": V1Runner, "v2": V2Runner}
HOOKS = {"v1": v1_hooks, "v2": v2_hooks}
DRAFTER = {"v1": "drafter", "v2": "speculator"}
MODE = {"v1": "FULL", "v2": "PIECEWISE"}


class Hooked:
    """A hooked fake runner, with its KV cache, and what was recorded of it."""

    def __init__(self, directory, stamps, kind, *, initialise=True, **attributes):
        self.directory, self.stamps, self.kind = directory, stamps, kind
        self.runner_class = fresh_class(RUNNERS[kind], **attributes)
        self.session = Session(str(directory), None, kind)
        HOOKS[kind].install(self.session, as_module(self.runner_class))
        self.runner = self.runner_class(stamps)
        if initialise:
            assert self.runner.initialize_kv_cache() == "initialised"

    def run(self, *args, **kwargs):
        return self.runner.execute_model(scheduler_output(*args, **kwargs))

    @property
    def started(self):
        return self.all_lines()[0]

    @property
    def lines(self):
        lines = self.all_lines()[1:]
        for line in lines:
            line.pop("host_monotonic_ns")
        return lines

    def all_lines(self):
        path = self.directory / f"{os.getpid()}.steps.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    @property
    def silent(self):
        return list(self.directory.iterdir()) == []


@pytest.fixture
def stamps(monkeypatch):
    """Every value that the injector was given, the last one in force."""
    seen = [0]
    monkeypatch.setattr(recorder, "find_set_step", lambda _path: seen.append)
    return seen


@pytest.fixture
def hooked(tmp_path, stamps):
    return lambda kind, **attributes: Hooked(tmp_path, stamps, kind, **attributes)


@BOTH
def test_a_forward_step_is_told_before_its_launches_carry_its_stamp(hooked, kind):
    one = hooked(kind)
    assert one.run([("a", 5), ("b", 1)], new=[("a", [1], 16), ("b", [2], 0)]) is None
    rows = {"v1": [["a", 5, 16], ["b", 1, 0]], "v2": [["b", 1, 0], ["a", 5, 16]]}
    assert one.lines == [
        {
            "event": "step",
            "step_stamp": 1,
            "kind": "forward",
            "rows": 6,
            "padded_rows": 8,
            "graph_mode": MODE[kind],
            "requests": rows[kind],  # in row order, which is the runner's
            "admitted": [["a", 16, [[1]]], ["b", 0, [[2]]]],
        }
    ]
    assert one.runner.launches[-1] == ("forward", 1)
    assert one.stamps[-1] == 0  # what comes after belongs to no step


@BOTH
def test_an_output_that_runs_nothing_is_idle(hooked, kind):
    one = hooked(kind)
    one.run([("a", 1)], new=[("a", [1], 0)])
    assert one.run(finished=["a"]) == "empty"
    assert one.run() == "empty"
    assert one.lines[1:] == [{"event": "idle", "finished": ["a"]}]


@BOTH
def test_every_step_says_what_changed_since_the_line_before(hooked, kind):
    one = hooked(kind)
    one.run([("a", 16)], new=[("a", [1], 0)])
    one.run([("a", 1)], cached=[("a", [2], 16)])
    one.run([("a", 1)], cached=[("a", None, 17)])
    one.run([("b", 1)], new=[("b", [3], 0)], preempted=["a"])
    fields = ("requests", "admitted", "grown", "preempted")
    assert [{name: line[name] for name in fields if name in line} for line in one.lines] == [
        {"requests": [["a", 16, 0]], "admitted": [["a", 0, [[1]]]]},
        {"requests": [["a", 1, 16]], "grown": [["a", [[2]]]]},
        {"requests": [["a", 1, 17]]},
        {"requests": [["b", 1, 0]], "admitted": [["b", 0, [[3]]]], "preempted": ["a"]},
    ]


@BOTH
def test_outputs_in_flight_are_each_followed_by_their_own_step(hooked, kind):
    """With pipeline parallelism a second output runs before the first one is sampled."""
    one = hooked(kind)
    one.run([("a", 2)], new=[("a", [1], 0)])
    one.run([("b", 3)], new=[("b", [2], 0)])
    assert one.runner.sample_tokens(None) == "sampled"
    one.run([("a", 1)], cached=[("a", None, 2)])
    assert [line["requests"] for line in one.lines] == [[["a", 2, 0]], [["b", 3, 0]], [["a", 1, 2]]]
    assert [stamp for what, stamp in one.runner.launches if what == "forward"] == [1, 2, 3]


@BOTH
def test_a_dummy_run_is_a_step_without_requests(hooked, kind):
    one = hooked(kind)
    one.runner._dummy_run(7)
    one.runner._dummy_run(num_tokens=3)
    assert one.lines == [
        {"event": "step", "step_stamp": 1, "kind": "dummy", "rows": 7},
        {"event": "step", "step_stamp": 2, "kind": "dummy", "rows": 3},
    ]
    assert one.runner.launches == [("dummy 7", 1), ("dummy 3", 2)]
    assert one.stamps[-1] == 0


def test_a_dummy_run_of_the_second_runner_may_come_through_execute_model(hooked):
    one = hooked("v2")
    one.runner.execute_model(scheduler_output([("_dummy_req_0", 4)]), dummy_run=True)
    one.runner.execute_model(scheduler_output([("_dummy_req_0", 2)]), None, True)
    assert [(line["kind"], line["rows"]) for line in one.lines] == [("dummy", 4), ("dummy", 2)]


@BOTH
def test_a_dummy_run_leaves_what_the_scheduler_said_alone(hooked, kind):
    one = hooked(kind)
    one.run([("a", 1)], new=[("a", [1], 0)])
    one.runner._dummy_run(1)
    one.run([("a", 1)], cached=[("a", None, 1)])
    assert [line["kind"] for line in one.lines] == ["forward", "dummy", "forward"]
    assert "admitted" not in one.lines[2]
    assert "finished" not in one.lines[2]


@BOTH
@pytest.mark.parametrize(
    ("method", "launches"),
    [
        ("profile_run", [("dummy 64", 1), ("sampler", 1)]),
        ("capture_model", [("dummy 8", 1), ("capture 8", 1), ("dummy 4", 1), ("capture 4", 1)]),
    ],
)
def test_all_that_profiling_or_capture_launches_is_one_dummy_step(hooked, kind, method, launches):
    one = hooked(kind)
    getattr(one.runner, method)()
    assert one.lines == [{"event": "step", "step_stamp": 1, "kind": "dummy"}]
    assert one.runner.launches == launches


@BOTH
def test_before_there_is_a_kv_cache_nothing_is_recorded(hooked, kind):
    """Nothing can write a cache that is not there, and the first line needs its block sizes."""
    one = hooked(kind, initialise=False)
    one.runner.profile_run()
    assert one.silent
    one.runner.initialize_kv_cache()
    one.runner._dummy_run(2)
    assert one.runner.launches == [("dummy 64", 0), ("sampler", 0), ("dummy 2", 1)]


def test_a_profiling_that_makes_its_own_kv_cache_is_labelled_from_there_on(hooked):
    def profile_cudagraph_memory(runner):
        runner.initialize_kv_cache()
        runner._dummy_run(4)
        del runner.kv_cache_config
        return 5

    one = hooked("v1", initialise=False, profile_cudagraph_memory=profile_cudagraph_memory)
    assert one.runner.profile_cudagraph_memory() == 5
    one.runner.initialize_kv_cache()
    assert one.lines == [{"event": "step", "step_stamp": 1, "kind": "dummy", "rows": 4}]


@BOTH
def test_a_speculators_passes_are_a_draft_step_after_the_forward_step(hooked, kind):
    one = hooked(kind, **{DRAFTER[kind]: object()})
    one.run([("a", 2)], new=[("a", [1], 0)])
    one.runner.sample_tokens(None)
    assert [line["kind"] for line in one.lines] == ["forward", "draft"]
    assert one.runner.launches[-2:] == [("forward", 1), ("draft", 2)]
    assert one.stamps[-1] == 0
    one.runner.sample_tokens(None)  # nothing to sample
    assert len(one.lines) == 2


@BOTH
def test_without_a_speculator_there_is_no_draft_step(hooked, kind):
    one = hooked(kind)
    one.run([("a", 2)], new=[("a", [1], 0)])
    one.runner.sample_tokens(None)
    assert [line["kind"] for line in one.lines] == ["forward"]


def test_a_speculator_inside_a_dummy_run_belongs_to_the_dummy_step(hooked):
    one = hooked("v2", speculator=object())
    one.runner._dummy_run(2)
    assert [line["kind"] for line in one.lines] == ["dummy"]
    assert one.runner.launches == [("dummy 2", 1), ("propose", 1)]


@BOTH
def test_speculation_with_async_scheduling_makes_positions_inexact(hooked, kind):
    one = hooked(kind, speculative=True)
    assert one.started["inexact"] == ["speculative decoding with asynchronous scheduling"]


@BOTH
def test_speculation_alone_leaves_positions_exact(hooked, kind):
    assert "inexact" not in hooked(kind, speculative=True, async_scheduling=False).started


@BOTH
def test_context_parallelism_makes_positions_inexact(hooked, kind):
    one = hooked(kind, initialise=False)
    one.runner.parallel_config.decode_context_parallel_size = 2
    one.runner.parallel_config.prefill_context_parallel_size = 2
    one.runner.initialize_kv_cache()
    assert one.started["inexact"] == ["decode context parallelism", "prefill context parallelism"]


@BOTH
@pytest.mark.parametrize(
    ("parallel", "ranks", "sizes"),
    [
        # The replica of a model that is spread over replicas knows how many there are.
        (
            {"data_parallel_rank": 1, "data_parallel_index": 1, "data_parallel_size": 4},
            {"data": 1, "world": 3},
            {"tensor": 2, "pipeline": 1, "data": 4},
        ),
        # That of a dense one is told that it is alone, but for its index.
        (
            {"data_parallel_rank": 0, "data_parallel_index": 2, "data_parallel_size": 1},
            {"data": 2, "world": 3},
            {"tensor": 2, "pipeline": 1},
        ),
        # Before there was an index, no replica was told so.
        (
            {"data_parallel_rank": 0, "data_parallel_size": 1},
            {"data": 0, "world": 3},
            {"tensor": 2, "pipeline": 1, "data": 1},
        ),
    ],
)
def test_sizes_are_told_as_far_as_the_engine_tells_them(hooked, kind, parallel, ranks, sizes):
    one = hooked(kind, initialise=False)
    known = {"tensor_parallel_size": 2, "pipeline_parallel_size": 1}
    vars(one.runner.parallel_config).update(known | parallel)
    one.runner.initialize_kv_cache()
    assert one.started["ranks"] == ranks
    assert one.started["world_sizes"] == sizes
    assert "several_hosts" not in one.started


@BOTH
@pytest.mark.parametrize(
    "parallel",
    [
        {"distributed_executor_backend": "ray"},
        {"distributed_executor_backend": type("RayExecutorV2", (), {})},
        {"data_parallel_backend": "ray"},
        {"nnodes": 2},
        {"data_parallel_size": 4, "data_parallel_size_local": 2},
    ],
)
def test_an_engine_whose_ranks_may_be_elsewhere_says_so(hooked, kind, parallel):
    one = hooked(kind, initialise=False)
    vars(one.runner.parallel_config).update(parallel)
    one.runner.initialize_kv_cache()
    assert one.started["several_hosts"] is True


@BOTH
def test_cross_attention_has_slots_that_positions_do_not_tell(hooked, kind):
    one = hooked(kind, initialise=False)
    spec = type("CrossAttentionSpec", (FullAttentionSpec,), {})()
    one.runner.initialize_kv_cache(cache_config(group("model.layers.0.attn", spec=spec)))
    assert one.started["inexact"] == ["cross-attention: its slots follow the encoder's tokens"]


@BOTH
def test_the_first_line_has_ranks_and_block_sizes(hooked, kind):
    started = hooked(kind).started
    assert started["ranks"] == {"data": 1, "world": 3}  # those that the engine tells
    assert "world_sizes" not in started
    assert started["block_sizes"] == [16]
    assert (started["engine"], started["model_runner"]) == ("vllm", kind)


def test_a_runner_without_positions_has_them_from_the_scheduler_and_it_is_said(hooked):
    one = hooked("v2", has_positions=False)
    one.run([("a", 5), ("b", 1)], new=[("a", [1], 16)], cached=[("b", None, 40)])
    assert one.lines[0]["requests"] == [["b", 1, 40], ["a", 5, 16]]
    assert "InputBatch.num_computed_tokens_np" in one.started["missing"]


def test_the_descriptor_is_found_wherever_a_version_passes_it(hooked):
    """From vLLM 0.30 on it is the third of four arguments."""

    def prepare_inputs(runner, scheduler_output, state, batch_desc, num_active_loras):
        return runner.make_batch(scheduler_output, batch_desc)

    def execute_model(runner, scheduler_output, intermediate_tensors=None, dummy_run=False):
        runner._note(scheduler_output)
        descriptor = SimpleNamespace(num_tokens=4, cg_mode=SimpleNamespace(name="FULL"))
        runner.prepare_inputs(scheduler_output, object(), descriptor, num_active_loras=0)
        runner.launch("forward")

    one = hooked("v2", prepare_inputs=prepare_inputs, execute_model=execute_model)
    one.run([("a", 1)], new=[("a", [1], 0)])
    assert (one.lines[0]["padded_rows"], one.lines[0]["graph_mode"]) == (4, "FULL")


def _run_v1(*, pad=None):
    """Return an `execute_model` of the first runner that calls only what a version has."""

    def execute_model(runner, scheduler_output, intermediate_tensors=None):
        runner._note(scheduler_output)
        runner._prepare_inputs(scheduler_output, runner.fill_batch(scheduler_output))
        if pad is not None:
            runner._determine_batch_execution_and_padding(3, 1)
            runner._get_slot_mappings(pad, 1)
        runner.launch("forward")

    return execute_model


def test_padding_is_what_the_slot_mappings_are_made_for(hooked):
    """Where the cache is written inside of attention, they are not padded as the batch is."""
    one = hooked("v1", execute_model=_run_v1(pad=3))
    one.run([("a", 3)], new=[("a", [1], 0)])
    assert (one.lines[0]["rows"], one.lines[0]["padded_rows"]) == (3, 3)
    assert one.runner.launches[-1] == ("forward", 1)


def test_a_version_without_slot_mappings_begins_the_step_earlier_and_it_is_said(hooked):
    one = hooked("v1", _get_slot_mappings=None, execute_model=_run_v1())
    one.run([("a", 3)], new=[("a", [1], 0)])
    assert one.started["missing"][0] == "GPUModelRunner._get_slot_mappings"
    assert "padded_rows" not in one.lines[0]
    assert one.runner.launches[-1] == ("forward", 1)


@BOTH
def test_what_a_version_lacks_is_said(hooked, kind):
    one = hooked(kind, sample_tokens=None)
    assert one.started["missing"][0] == "GPUModelRunner.sample_tokens"
    assert "SchedulerOutput.preempted_req_ids" in one.started["missing"]  # there is no vLLM here


@BOTH
def test_the_engines_own_errors_pass_and_the_recording_goes_on(hooked, kind):
    def launch(runner, what):
        if what == "forward" and runner._current[-1] == 1:
            raise RuntimeError("out of memory")

    one = hooked(kind, launch=launch)
    with pytest.raises(RuntimeError, match="out of memory") as raised:
        one.run([("a", 1)], new=[("a", [1], 0)])
    assert raised.value  # keeps the frames, and what they hold
    assert one.stamps[-1] == 0
    one.run([("a", 1)], cached=[("a", None, 1)])
    assert [line["event"] for line in one.lines] == ["step", "step"]


def test_rows_that_the_engine_gave_up_on_are_forgotten(hooked):
    def determine(runner, num_tokens, num_reqs):
        raise RuntimeError("out of memory")

    one = hooked("v1", _determine_batch_execution_and_padding=determine)
    with pytest.raises(RuntimeError, match="out of memory"):
        one.run([("a", 1)], new=[("a", [1], 0)])
    one.run(finished=["a"])
    assert [line["event"] for line in one.lines] == ["idle", "idle"]


@BOTH
def test_an_output_that_raises_before_its_step_still_has_its_changes(hooked, kind):
    def note(runner, output):
        raise RuntimeError("bad input")

    one = hooked(kind, _note=note)
    with pytest.raises(RuntimeError, match="bad input"):
        one.run([("a", 1)], new=[("a", [1], 0)])
    assert one.lines == [{"event": "idle", "admitted": [["a", 0, [[1]]]]}]


@BOTH
def test_a_hook_that_fails_ends_the_recording_and_not_the_engine(hooked, kind, capsys):
    one = hooked(kind)
    broken = scheduler_output([("a", 1)], new=[("a", [1], 0)])
    del broken.scheduled_cached_reqs.resumed_req_ids
    one.runner.execute_model(broken)
    assert one.runner.launches[-1] == ("forward", 0)
    (failed,) = one.lines
    assert (failed["event"], failed["hook"]) == ("failed", "execute_model")
    assert "resumed_req_ids" in failed["error"]
    assert one.run([("a", 1)], cached=[("a", None, 1)]) is None
    one.runner._dummy_run(2)
    assert len(one.lines) == 1
    assert capsys.readouterr().err.count("kvtrace: engine plug-in stopped") == 1


@BOTH
def test_a_directory_that_cannot_be_written_ends_the_recording_only(tmp_path, stamps, kind, capsys):
    one = Hooked(tmp_path / "missing", stamps, kind)
    assert one.run([("a", 1)], new=[("a", [1], 0)]) is None
    assert one.runner.launches[-1] == ("forward", 0)
    assert "stopped in initialize_kv_cache: FileNotFoundError" in capsys.readouterr().err


def test_rows_that_do_not_add_up_end_the_recording(hooked):
    def prepare_inputs(runner, scheduler_output, batch_desc):
        batch = runner.make_batch(scheduler_output, batch_desc)
        batch.num_tokens += 1
        return batch

    one = hooked("v2", prepare_inputs=prepare_inputs)
    one.run([("a", 1)], new=[("a", [1], 0)])
    assert "expected 2 in all" in one.lines[0]["error"]
    assert one.runner.launches[-1] == ("forward", 0)


def test_rows_that_never_become_a_step_end_the_recording(hooked):
    one = hooked("v1", execute_model=_run_v1())
    one.run([("a", 1)], new=[("a", [1], 0)])
    assert one.lines[-1]["event"] == "failed"
    assert "never asked for" in one.lines[-1]["error"]


@BOTH
def test_a_signal_in_a_hook_is_the_engines(hooked, kind, monkeypatch):
    """An engine ends by an exception that its signal handler raises, wherever it is just then."""
    one = hooked(kind)

    def interrupted(*_args):
        raise SystemExit

    monkeypatch.setattr(one.session._tracker, "take", interrupted)
    with pytest.raises(SystemExit):
        one.run([("a", 1)], new=[("a", [1], 0)])


@BOTH
def test_hooks_are_put_in_once(hooked, kind):
    one = hooked(kind)
    HOOKS[kind].install(one.session, as_module(one.runner_class))
    one.run([("a", 1)], new=[("a", [1], 0)])
    one.runner._dummy_run(1)
    assert [line["kind"] for line in one.lines] == ["forward", "dummy"]


@BOTH
def test_hooked_methods_keep_their_names_and_signatures(hooked, kind):
    one = hooked(kind)
    for name in ("execute_model", "_dummy_run", "initialize_kv_cache", "sample_tokens"):
        method, original = getattr(one.runner_class, name), getattr(RUNNERS[kind], name)
        assert method is not original
        assert (method.__name__, signature(method)) == (name, signature(original))


@BOTH
def test_a_kv_cache_that_is_made_again_has_its_layout_written_again(hooked, kind):
    one = hooked(kind)
    one.runner.initialize_kv_cache(cache_config(group("model.layers.0.attn"), num_blocks=50))
    (path,) = one.directory.glob("*.layout.json")
    assert json.loads(path.read_text())["num_blocks"] == 50
    assert one.lines == []


@BOTH
def test_a_kv_cache_of_other_blocks_ends_the_recording(hooked, kind):
    one = hooked(kind)
    spec = type("FullAttentionSpec", (), {"block_size": 64, "num_kv_heads": 8, "head_size": 128})()
    one.runner.initialize_kv_cache(cache_config(group("model.layers.0.attn", spec=spec)))
    assert "found [64], expected [16] as before" in one.lines[-1]["error"]


@BOTH
def test_a_forked_child_writes_a_file_of_its_own(hooked, kind):
    one = hooked(kind)
    one.run([("a", 1)], new=[("a", [1], 0)])
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            one.run([("b", 1)], new=[("b", [2], 0)])
        os._exit(0)
    os.waitpid(child, 0)
    assert len(one.lines) == 1
    text = (one.directory / f"{child}.steps.jsonl").read_text().splitlines()
    assert [json.loads(line).get("admitted") for line in text] == [None, [["b", 0, [[2]]]]]
