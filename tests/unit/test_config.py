import pytest

from kvtrace_cli.config import (
    EngineConfig,
    ExecConfig,
    Observer,
    Patch,
    PatchAt,
    Record,
    RecordingConfig,
    RequestPlan,
    RequestSpec,
    Role,
    RunConfig,
    TimeLimits,
    default_max_num_seqs,
)
from kvtrace_cli.errors import ConfigError


def test_the_warmup_comes_first_and_asks_for_one_token():
    warmup, *measured = RequestPlan(repeat=2).specs()
    assert (warmup.role, warmup.max_tokens) == (Role.WARMUP, 1)
    assert [spec.max_tokens for spec in measured] == [8, 8]
    assert len(warmup.prompt_token_ids) == 8


def test_prompt_ids_fit_a_small_vocabulary():
    (_, measured) = RequestPlan(prompt_tokens=1000).specs()
    assert max(measured.prompt_token_ids) < 256


@pytest.mark.parametrize(("tokens", "length"), [(8, 1024), (1016, 1024), (1017, 2048)])
def test_the_context_holds_the_request(tokens, length):
    assert RunConfig("m", requests=RequestPlan(max_tokens=tokens)).max_model_len == length


def test_requests_of_a_file_follow_the_warmup():
    listed = (RequestSpec(Role.MEASURED, (10,), 2), RequestSpec(Role.MEASURED, (11,) * 900, 200))
    plan = RequestPlan(listed=listed)
    warmup, *measured = plan.specs()
    assert warmup.role is Role.WARMUP
    assert tuple(measured) == listed
    assert RunConfig("m", requests=plan).max_model_len == 2048


@pytest.mark.parametrize(("concurrency", "sequences"), [(1, 8), (8, 8), (9, 9), (64, 64)])
def test_the_engine_runs_as_many_sequences_as_are_sent_at_once(concurrency, sequences):
    assert default_max_num_seqs(concurrency) == sequences


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RequestPlan(prompt_tokens=1), "--prompt-tokens: found 1, expected 2 or more"),
        (lambda: RequestPlan(max_tokens=0), "--max-tokens: found 0"),
        (lambda: RequestPlan(repeat=0), "--repeat: found 0"),
        (lambda: RequestPlan(concurrency=0), "--concurrency: found 0, expected 1 or more"),
        (lambda: EngineConfig(max_num_seqs=0), "--max-num-seqs: found 0, expected 1 or more"),
        (
            lambda: EngineConfig(max_num_seqs=600),
            "--max-num-batched-tokens: found 512, expected 600 or more, the sequences",
        ),
        (lambda: EngineConfig(flash_attention=4), "--flash-attention: found 4, expected 2 or 3"),
        (lambda: EngineConfig(capture_sizes=()), "--capture-sizes: found nothing"),
        (lambda: EngineConfig(capture_sizes=(1, 0)), "--capture-sizes: found 1,0"),
        (lambda: EngineConfig(port=70000), "--port: found 70000"),
        (lambda: EngineConfig(arguments=("run1",)), "unexpected argument 'run1'"),
        (lambda: RecordingConfig(ring_events=1000), "power of two .*; 512 is one"),
        (lambda: RecordingConfig(ring_events=8), "power of two .*; 16 is one"),
        (lambda: RecordingConfig(launch_records=1 << 30), "--launch-records: .*; 67108864 is one"),
        (lambda: RecordingConfig(observer=Observer.CUPTI, preload=True), "leave --preload"),
        (
            lambda: RecordingConfig(observer=Observer.CUPTI, record=Record.WRITES),
            "--observer cupti: .*--record",
        ),
        (
            lambda: RunConfig(
                "m",
                engine=EngineConfig(engine="emulator"),
                recording=RecordingConfig(observer=Observer.CUPTI),
            ),
            "the emulated engine has no CUPTI",
        ),
        (lambda: RecordingConfig(kernels=("",)), "--kernel: found an empty name"),
        (
            lambda: RecordingConfig(patch=Patch.NO_OP, record=Record.WRITES),
            "--patch no-op: found --record writes with it",
        ),
        (
            lambda: RecordingConfig(record=Record.NONE, patch_at=PatchAt.FIRST_LAUNCH_END),
            "--patch-at first-launch-end: --record none patches nothing",
        ),
        (lambda: RecordingConfig(injection=False), "--no-injection: .* --preload, or --no-trace"),
        (lambda: RunConfig("q", run_id=""), "--run-id: found '', expected 1 to 64 letters"),
        (lambda: RunConfig("q", run_id="a" * 65), "--run-id: found 'aaa"),
        (lambda: ExecConfig(("true",), run_id="a/b"), "--run-id: found 'a/b'"),
        (lambda: TimeLimits(ready_s=0), "--ready-timeout: found 0"),
        (lambda: TimeLimits(request_s=float("nan")), "--request-timeout: found nan"),
    ],
)
def test_what_cannot_work_is_refused_by_name(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
