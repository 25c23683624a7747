"""The engine plug-in in a real `vllm serve` on the CPU with two tensor-parallel ranks."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from traced_server import Steps, TracedServer

pytestmark = pytest.mark.vllm

RANKS = ("--distributed-executor-backend", "mp", "--tensor-parallel-size", "2")
# Name, prompt tokens, output tokens; together more than a step takes.
REQUESTS = (("kvt-a", 40, 12), ("kvt-b", 90, 6), ("kvt-c", 5, 16))


@pytest.fixture(scope="module")
def ranks(setup, tmp_path_factory):
    """Serve a few requests at once, and return the server and each rank's steps, by rank."""
    # A core each is more than a small machine has.
    unbound = setup.environment | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    shared = replace(setup, environment=unbound)
    server = TracedServer(shared, tmp_path_factory.mktemp("ranks"), *RANKS)
    try:
        server.wait_until_ready()
        with ThreadPoolExecutor(len(REQUESTS)) as pool:
            sent = [
                pool.submit(server.request, name, [*range(rows)], output)
                for name, rows, output in REQUESTS
            ]
        for one in sent:
            one.result()
    finally:
        server.stop()
    steps = [Steps(path) for path in server.raw_dir.glob("*.steps.jsonl")]
    return server, sorted(steps, key=lambda one: one.started["ranks"]["tensor"])


def test_each_worker_says_which_rank_it_is_of_how_many(ranks):
    _, steps = ranks
    assert [one.started["ranks"] for one in steps] == [
        {"tensor": 0, "pipeline": 0, "data": 0, "world": 0},
        {"tensor": 1, "pipeline": 0, "data": 0, "world": 1},
    ]
    for one in steps:
        assert one.started["world_sizes"].items() >= {"tensor": 2, "pipeline": 1}.items()
        assert "missing" not in one.started


def test_both_ranks_ran_the_same_rows_in_the_engines_own_slots(ranks):
    server, steps = ranks
    logged = [json.loads(line) for line in server.slot_file.read_text().splitlines()]
    for one in steps:
        process_id = int(one.path.name.split(".")[0])
        engine = [line for line in logged if line.get("process_id") == process_id]
        assert len(one.forward) == len(engine) > 12
        assert one.slots() == [line["slots"] for line in engine]
    first, second = ([line["requests"] for line in one.forward] for one in steps)
    assert first == second
    assert steps[0].slots() == steps[1].slots()


def test_each_rank_has_a_layout_of_its_own_heads(ranks):
    _, steps = ranks
    layouts = [one.layout for one in steps]
    assert layouts[0]["groups"] == layouts[1]["groups"]
    (shape,) = {tuple(tensor["shape"]) for layout in layouts for tensor in layout["tensors"]}
    assert shape[1] == 1  # of the two KV heads of the model
