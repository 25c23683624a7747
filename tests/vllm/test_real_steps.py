"""The engine plug-in in a real `vllm serve` on the CPU, against the engine's own slots.

Model runner V1 only: the second one needs Triton, so the GPU tests see to it. Without an injector:
what is recorded must not depend on one.
"""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from traced_server import BATCHED_TOKENS, KV_BLOCKS, Steps, TracedServer

from kvtrace_cli.capture.plugin import with_engine_plugin

pytestmark = pytest.mark.vllm

BLOCK_SIZE = 32
# Requests at once, each (first prompt token, prompt tokens, output tokens). Two that need 20 KV
# blocks of 13 and share none, so that one is preempted; then a mixture, of which two begin alike.
WAVES = [
    [(5, 160, 160), (250, 160, 160)],
    [(300, 160, 90), (300, 65, 60), (40, 33, 110), (7, 3, 100)],
]
REPEATED = list(range(100, 180))


@pytest.fixture(scope="module")
def traced(setup, tmp_path_factory):
    server = TracedServer(setup, tmp_path_factory.mktemp("traced"))
    try:
        server.wait_until_ready()
        server.request("kvt-first", REPEATED, 4)
        for wave, requests in enumerate(WAVES):
            with ThreadPoolExecutor(len(requests)) as pool:
                sent = [
                    pool.submit(
                        server.request,
                        f"kvt-{wave}.{number}",
                        [*range(first, first + rows)],
                        output,
                    )
                    for number, (first, rows, output) in enumerate(requests)
                ]
            for one in sent:
                one.result()
        server.request("kvt-cold", REPEATED, 4)
        server.request("kvt-warm", REPEATED, 4)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def steps(traced):
    (path,) = traced.raw_dir.glob("*.steps.jsonl")
    return Steps(path)


@pytest.fixture(scope="module")
def engine_lines(traced):
    return [json.loads(line) for line in traced.slot_file.read_text().splitlines()]


def test_the_slots_of_every_step_are_the_engines_own(steps, engine_lines):
    engine = [line for line in engine_lines if "slots" in line]
    assert len(steps.forward) == len(engine) > 100
    assert [[one[0] for one in line["requests"]] for line in steps.forward] == [
        line["requests"] for line in engine
    ]
    assert steps.slots() == [line["slots"] for line in engine]


def test_the_run_had_what_is_hard(steps):
    """Otherwise the test above would say little."""
    rows = [line["rows"] for line in steps.forward]
    assert max(rows) == BATCHED_TOKENS  # a prompt in chunks
    assert max(len(line["requests"]) for line in steps.forward) >= 2
    assert any(
        len({count for _, count, _ in line["requests"]}) > 1 for line in steps.forward
    )  # prefill and decode in one batch
    assert steps.changes("preempted")
    assert {one[0] for one in steps.changes("resumed")} == set(steps.changes("preempted"))
    assert steps.changes("grown")


def test_a_prompt_in_the_prefix_cache_is_admitted_with_what_is_computed(steps):
    computed = {one[0].split("-")[2]: one[1] for one in steps.changes("admitted")}
    assert computed["first"] == 0
    assert computed["warm"] == len(REPEATED) // BLOCK_SIZE * BLOCK_SIZE


def test_every_request_is_admitted_once_and_finished(steps):
    names = {"first", "cold", "warm"}
    names |= {
        f"{wave}.{one}" for wave, requests in enumerate(WAVES) for one in range(len(requests))
    }
    admitted = [one[0] for one in steps.changes("admitted")]
    assert sorted(one.split("-")[2] for one in admitted) == sorted(names)
    # The last one's end is told with the next output, which never came.
    assert {*admitted} - {*steps.changes("finished")} <= {
        one for one in admitted if one.startswith("cmpl-kvt-warm-")
    }


def test_stamps_count_from_one_and_no_line_says_failed(steps):
    stamps = [line["step_stamp"] for line in steps.lines if line["event"] == "step"]
    assert stamps == list(range(1, len(stamps) + 1))
    assert {line["event"] for line in steps.lines} <= {"step", "idle"}
    assert {line["kind"] for line in steps.lines if "kind" in line} <= {"forward", "dummy"}


def test_the_file_says_what_wrote_it(steps, engine_lines):
    assert steps.path.name == f"{engine_lines[0]['process_id']}.steps.jsonl"
    expected = {
        "event": "started",
        "engine": "vllm",
        "model_runner": "v1",
        "ranks": {"tensor": 0, "pipeline": 0, "data": 0, "world": 0},
        "stamped": False,
        "block_sizes": [BLOCK_SIZE],
    }
    assert {name: steps.started.get(name) for name in expected} == expected
    assert "missing" not in steps.started
    assert "inexact" not in steps.started
    assert steps.started["engine_version"][:2] == "0."


def test_the_layout_is_that_of_the_layers_tensors(steps, engine_lines):
    (logged,) = [line["tensors"] for line in engine_lines if "tensors" in line]
    layout = steps.layout
    assert (layout["num_blocks"], layout["null_block"]) == (KV_BLOCKS, 0)
    assert [one["layer_index"] for one in layout["tensors"]] == [0, 1, 2, 3]
    assert {
        one["layer_name"]: [one["address"], one["shape"]] for one in layout["tensors"]
    } == logged
    (group,) = layout["groups"]
    assert group["block_size"] == BLOCK_SIZE
    assert set(group["layer_names"]) == set(logged)
    # The CPU's backend arranges K and V in its own way, which no field of the layout says.
    assert {one["axes"] for one in layout["tensors"]} == {None}


def test_no_other_process_of_the_engine_writes_anything(traced, steps):
    assert set(traced.raw_dir.iterdir()) == {steps.path, steps.layout_path}


PROBE = """
import inspect, json, sys
from vllm.plugins import load_general_plugins
load_general_plugins()
import vllm.v1.worker.gpu_model_runner as v1, vllm.v1.worker.gpu.model_runner as v2
from kvtrace_engine_plugin.engine_facts import missing_fields
runners = {"v1": v1.GPUModelRunner, "v2": v2.GPUModelRunner}
methods = {
    kind: {
        name: list(inspect.signature(method).parameters)
        for name, method in inspect.getmembers(runner, inspect.isfunction)
        if hasattr(method, "_kvtrace_hook")
    }
    for kind, runner in runners.items()
}
batch = ("req_ids", "num_scheduled_tokens", "num_computed_tokens_np", "num_tokens",
         "num_tokens_after_padding")
lacking = missing_fields("vllm.v1.worker.gpu.input_batch", "InputBatch", batch)
lacking += missing_fields("vllm.v1.worker.gpu.cudagraph_utils", "BatchExecutionDescriptor",
                          ("cg_mode",))
print("\\n" + json.dumps([methods, lacking]))
"""


def test_both_runners_of_this_version_have_what_the_hooks_touch(setup, tmp_path):
    """The second runner does not run here, but what the hooks need of it can be looked at."""
    environment = {**setup.environment, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [str(setup.python), "-c", PROBE],
        env=with_engine_plugin(environment, raw_dir=tmp_path, injector=tmp_path / "no.so"),
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    methods, lacking = json.loads(done.stdout.splitlines()[-1])
    assert lacking == []
    both = {
        "initialize_kv_cache": ["self", "kv_cache_config"],
        "execute_model": ["self", "scheduler_output", "intermediate_tensors"],
        "sample_tokens": ["self"],
        "_dummy_run": ["self", "num_tokens"],
        "profile_run": ["self"],
        "capture_model": ["self"],
        "profile_cudagraph_memory": ["self"],
    }
    expected = {
        "v1": {
            **both,
            "_prepare_inputs": ["self", "scheduler_output", "num_scheduled_tokens"],
            "_determine_batch_execution_and_padding": ["self"],
            "_get_slot_mappings": ["self", "num_tokens_padded"],
        },
        "v2": {
            **both,
            "execute_model": ["self", "scheduler_output", "intermediate_tensors", "dummy_run"],
            "prepare_inputs": ["self", "scheduler_output"],
        },
    }
    assert {
        kind: {name: found[: len(expected[kind][name])] for name, found in hooked.items()}
        for kind, hooked in methods.items()
    } == expected
