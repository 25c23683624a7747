"""One run against a fake engine: every fault has its error, and no process stays behind."""

import json
import socket
import stat
from contextlib import closing
from dataclasses import replace

import pytest
from machine import make_machine

from kvtrace_cli.analysis.model import Verdict
from kvtrace_cli.analysis.reconcile import reconcile
from kvtrace_cli.capture.progress import Progress
from kvtrace_cli.capture.session import record_run
from kvtrace_cli.config import (
    EngineConfig,
    Record,
    RecordingConfig,
    RequestPlan,
    RequestSpec,
    Role,
    RunConfig,
    TimeLimits,
    Weights,
)
from kvtrace_cli.dumps.recording import read_recording
from kvtrace_cli.dumps.run_dir import open_run_dir
from kvtrace_cli.errors import ConfigError, RunDirError, RunFailedError

LIMITS = TimeLimits(
    ready_s=15,
    request_s=5,
    quiet_s=0.1,
    shutdown_s=1,
    shutdown_margin_s=0.5,
    startup_stop_s=2,
    settle_s=0.3,
    terminate_s=1,
    poll_s=0.05,
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made, environment = make_machine(tmp_path)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("CUDA_INJECTION64_PATH", raising=False)
    return made


@pytest.fixture
def config(machine):
    return RunConfig(
        model="Qwen3-14B",
        weights=Weights.DUMMY,
        out=machine.out,
        engine=EngineConfig(python=machine.python),
        recording=RecordingConfig(
            injector=machine.injector, sanitizer_library=machine.sanitizer_library
        ),
        limits=LIMITS,
    )


def record(config, monkeypatch=None, fault=None):
    if fault is not None:
        monkeypatch.setenv("KVTRACE_TEST_FAULT", fault)
    with closing(Progress()) as progress:
        return record_run(config, progress)


def manifest(config):
    return json.loads((config.out / "manifest.json").read_text())


def requests(config):
    lines = (config.out / "requests.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_run_ends_complete_with_all_it_recorded(config, machine):
    result = record(config)
    assert result.counters.attached
    assert (result.counters.launches, result.counters.dropped) == (3 * 4 + 7 * 4, 0)
    assert {path.name for path in config.out.iterdir()} == {
        "COMPLETE",
        "manifest.json",
        "raw",
        "requests.jsonl",
        "server.log",
    }
    assert machine.left_behind() == []


def test_the_directory_is_for_its_owner_only(config):
    record(config)
    assert stat.S_IMODE(config.out.stat().st_mode) == 0o700


def test_the_manifest_says_what_ran_and_how_it_ended(config, machine):
    record(config)
    written = manifest(config)
    assert written["outcome"]["status"] == "complete"
    assert written["outcome"]["requests_answered"] == 2
    assert written["outcome"]["engine_exit_status"] == 0
    assert written["outcome"]["engine_last_signal"] == "SIGINT"
    assert written["command"][:4] == [
        str(machine.python),
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
    ]
    assert written["versions"]["vllm"] == "0.26.0"
    assert written["gpus"][0]["memory_total_mib"] == 143771
    assert written["environment"]["CUDA_INJECTION64_PATH"] == str(machine.injector)
    assert "LD_PRELOAD" not in written["environment"]


def test_the_manifest_says_which_attention_the_engine_said_it_uses(config):
    """It was not asked for a version of FlashAttention, so that is its own choice."""
    record(config)
    written = manifest(config)
    assert written["config"]["engine"]["flash_attention"] is None
    assert written["attention"] == {"backends": ["FLASH_ATTN"], "flash_attention_versions": [3]}


@pytest.mark.parametrize(("fault", "is_known"), [("exits_at_start", False), ("dies", True)])
def test_of_a_run_that_failed_the_attention_is_what_was_said_until_then(
    config, monkeypatch, fault, is_known
):
    with pytest.raises(RunFailedError):
        record(config, monkeypatch, fault)
    assert (manifest(config)["attention"] is not None) is is_known


def test_the_manifest_never_has_an_empty_string(config, monkeypatch):
    with pytest.raises(RunFailedError):
        record(config, monkeypatch, "exits_at_start")

    def texts(value):
        children = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            return [text for child in children for text in texts(child)]
        return [value]

    assert "" not in texts(manifest(config))


def test_requests_are_written_line_by_line(config):
    record(config)
    warmup, measured = requests(config)
    assert (warmup["role"], warmup["max_tokens"]) == ("warmup", 1)
    assert (measured["role"], len(measured["returned_token_ids"])) == ("measured", 8)
    assert measured["http_status"] == 200
    assert measured["error"] is None
    assert measured["token_host_monotonic_ns"] is None
    assert warmup["host_monotonic_end_ns"] <= measured["host_monotonic_begin_ns"]


def test_streaming_keeps_the_time_of_every_token(config):
    plan = RequestPlan(stream=True, repeat=2)
    result = record(replace(config, requests=plan))
    assert [record["role"] for record in requests(config)] == ["warmup", "measured", "measured"]
    assert len(requests(config)[2]["token_host_monotonic_ns"]) == 8
    assert len(result.requests[2].token_gaps_ms) == 7


def listed(*tokens):
    return tuple(RequestSpec(Role.MEASURED, (10,) * 4, count) for count in tokens)


def most_at_once(records):
    """Count how many requests were under way at once, at most."""
    begins = [(record["host_monotonic_begin_ns"], 1) for record in records]
    ends = [(record["host_monotonic_end_ns"], -1) for record in records]
    now, most = 0, 0
    for _, change in sorted(begins + ends):
        now += change
        most = max(most, now)
    return most


def test_requests_overlap_and_are_told_by_their_index(config, monkeypatch):
    """The engine answers none before three are there; the longest was sent first and ends last."""
    monkeypatch.setenv("KVTRACE_TEST_TOGETHER", "3")
    plan = RequestPlan(concurrency=3, listed=listed(9, 5, 2))
    result = record(replace(config, requests=plan))
    kept = requests(config)
    assert [one["request_index"] for one in kept] == [0, 3, 2, 1]
    assert [one["role"] for one in kept] == ["warmup", "measured", "measured", "measured"]
    assert {one["request_id"] for one in kept[1:]} == {"kvtrace-1", "kvtrace-2", "kvtrace-3"}
    assert [one.request_index for one in result.requests] == [0, 1, 2, 3]
    assert kept[0]["host_monotonic_end_ns"] <= min(
        one["host_monotonic_begin_ns"] for one in kept[1:]
    ), "the warm-up goes first, alone"
    assert manifest(config)["outcome"]["requests_answered"] == 4


def test_never_more_at_once_than_asked(config, monkeypatch):
    monkeypatch.setenv("KVTRACE_TEST_TOGETHER", "2")
    plan = RequestPlan(concurrency=2, repeat=6, max_tokens=2)
    record(replace(config, requests=plan))
    assert most_at_once(requests(config)) == 2


def test_one_failed_request_fails_the_run_when_the_others_have_ended(config, machine, monkeypatch):
    monkeypatch.setenv("KVTRACE_TEST_TOGETHER", "3")
    plan = RequestPlan(concurrency=3, listed=listed(9, 3, 6, 5, 5))
    message = r"measured request 2 failed: HTTP 500: .*; 2 more were not sent(.|\n)*reconcile"
    with pytest.raises(RunFailedError, match=message):
        record(replace(config, requests=plan), monkeypatch, "one_fails")
    kept = {one["request_index"]: one["error"] for one in requests(config)}
    assert set(kept) == {0, 1, 2, 3}
    assert [index for index, error in kept.items() if error is not None] == [2]
    assert manifest(config)["outcome"]["requests_answered"] == 3
    assert machine.left_behind() == []


def test_all_that_failed_are_named(config, monkeypatch):
    monkeypatch.setenv("KVTRACE_TEST_TOGETHER", "3")
    plan = RequestPlan(concurrency=3, listed=listed(3, 3, 3))
    with pytest.raises(RunFailedError, match=r"request \d failed: .*; also failed: \d, \d"):
        record(replace(config, requests=plan), monkeypatch, "one_fails")


def test_the_manifest_says_what_was_recorded_and_leaves_prompts_to_the_requests(config):
    recording = replace(config.recording, record=Record.WRITES)
    plan = RequestPlan(concurrency=2, listed=listed(2))
    record(replace(config, recording=recording, requests=plan))
    written = manifest(config)
    assert (written["subcommand"], written["engine"]) == ("run", "vllm")
    assert written["config"]["recording"]["record"] == "writes"
    assert written["config"]["recording"]["steps"] is True
    assert written["config"]["requests"]["concurrency"] == 2
    assert "listed" not in written["config"]["requests"]
    assert written["environment"]["KVTRACE_STEPS"] == str(config.out.absolute() / "raw")
    assert written["working_directory"] == str(config.out.absolute())


def test_without_tracing_nothing_of_ours_reaches_the_engine(config, monkeypatch):
    monkeypatch.setenv("KVTRACE_CONFIG", "/left/over")
    recording = replace(config.recording, enabled=False)
    result = record(replace(config, recording=recording))
    assert not result.counters.attached
    assert manifest(config)["traced"] is False
    environment = manifest(config)["environment"]
    assert not {"CUDA_INJECTION64_PATH", "KVTRACE_STEPS"} & set(environment)
    assert list((config.out / "raw").iterdir()) == []


def test_an_engine_without_the_injector_is_told_apart(config, monkeypatch, capsys):
    monkeypatch.setenv("KVTRACE_TEST_RECORD", "0")
    result = record(config)
    assert not result.counters.attached
    assert "the injector has not attached" in capsys.readouterr().err
    assert manifest(config)["outcome"]["injector_attached"] is False


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exits_at_start", r"ended before it was ready, exit status 7(.|\n)*infer device type"),
        ("http_500", r"warmup request 0 failed: HTTP 500: .*EngineCore died"),
        ("truncated", r"request 0 failed: HTTP 200, then the connection failed"),
        ("not_json", r"HTTP 200 with an unreadable answer .*: <html>proxy"),
        ("too_few", r"measured request 1 failed: usage says 7 tokens, expected 8"),
        (
            "dies",
            r"measured request 1 failed: .*; the engine ended, exit status 0(.|\n)*fatal error",
        ),
        ("killed", r"killed by SIGKILL(.|\n)*--allow-incomplete"),
        ("fatal_500", r"HTTP 500: .*; its log says: RuntimeError: CUDA error: misaligned address"),
        ("fatal_log", r"cannot go on; its log says: .*misaligned address"),
        ("unhealthy_after", r"/health is not well"),
    ],
)
def test_a_fault_fails_the_run_and_leaves_nothing(config, machine, monkeypatch, fault, message):
    with pytest.raises(RunFailedError, match=message):
        record(config, monkeypatch, fault)
    assert (config.out / "INCOMPLETE").exists()
    assert not (config.out / "COMPLETE").exists()
    assert manifest(config)["outcome"]["status"] == "failed"
    assert machine.left_behind() == []


def test_a_broken_stream_fails_the_run(config, monkeypatch):
    config = replace(config, requests=RequestPlan(stream=True))
    with pytest.raises(RunFailedError, match="usage says None tokens, expected 8"):
        record(config, monkeypatch, "stream_stops")


def test_an_engine_that_dies_keeps_what_it_recorded(config, monkeypatch):
    with pytest.raises(RunFailedError, match=r"recorded until then: 64 block events"):
        record(config, monkeypatch, "killed")
    assert manifest(config)["outcome"]["events"] == 64
    assert requests(config)[1]["error"] is not None


def test_a_hanging_request_is_given_up(config, machine, monkeypatch):
    limits = replace(LIMITS, request_s=0.5, kill_s=0.5)
    with pytest.raises(RunFailedError, match=r"no answer within 0.5 s"):
        record(replace(config, limits=limits), monkeypatch, "hang")
    assert machine.left_behind() == []


def test_a_start_that_takes_too_long_is_given_up(config, machine, monkeypatch):
    """A SIGTERM would not end it: vLLM waits for ever then, so SIGINT must come first."""
    limits = replace(LIMITS, ready_s=4)
    with pytest.raises(RunFailedError, match=r"not ready within 4 s \(last seen: capturing"):
        record(replace(config, limits=limits), monkeypatch, "never_healthy")
    assert manifest(config)["outcome"]["engine_last_signal"] == "SIGINT"
    assert machine.left_behind() == []


def test_a_slow_start_is_waited_for(config, monkeypatch):
    record(config, monkeypatch, "slow_start")
    assert manifest(config)["outcome"]["ready_s"] >= 0.9


@pytest.mark.parametrize(
    ("fault", "last_signal"),
    [("ignores_sigint", "SIGTERM"), ("ignores_both", "SIGKILL"), ("children", "SIGTERM")],
)
def test_every_process_ends_whatever_it_ignores(config, machine, monkeypatch, fault, last_signal):
    """The answers are in, so the run is complete; what a kill may have cost, the verdict says."""
    record(config, monkeypatch, fault)
    assert manifest(config)["outcome"]["engine_last_signal"] == last_signal
    run_dir = open_run_dir(config.out, allow_incomplete=False)
    verdict = Verdict.INCONCLUSIVE if last_signal == "SIGKILL" else Verdict.AGREES
    assert reconcile(read_recording(run_dir)).verdict is verdict
    assert (config.out / "COMPLETE").exists()
    assert machine.left_behind() == []


def test_a_port_in_use_is_found_before_anything_starts(config):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        engine = replace(config.engine, port=other.getsockname()[1])
        with pytest.raises(ConfigError, match=r"port: .* in use"):
            record(replace(config, engine=engine))
    assert not config.out.exists()


def test_an_injector_of_another_abi_is_refused(config, machine):
    machine.injector.write_bytes(b"kvtrace-injector abi=99 test\0")
    with pytest.raises(ConfigError, match=r"speaks ABI 99, this kvtrace \d+; build it again"):
        record(config)


def test_another_tool_in_the_injection_variable_is_refused(config, monkeypatch):
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/other.so")
    with pytest.raises(ConfigError, match=r"/opt/other.so(.|\n)*--no-injection --preload"):
        record(config)


def test_an_earlier_run_is_replaced_only_when_asked(config):
    record(config)
    before = manifest(config)["outcome"]
    with pytest.raises(RunDirError, match="--force"):
        record(config)
    assert manifest(config)["outcome"] == before
    record(replace(config, force=True))
    assert len(requests(config)) == 2
