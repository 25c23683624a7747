"""`kvtrace run`: start the engine, send the requests, stop it, reconcile what was recorded."""

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from kvtrace_cli import console
from kvtrace_cli.capture.progress import Progress, describe_counters
from kvtrace_cli.capture.session import NOT_ATTACHED, RunResult, record_run
from kvtrace_cli.commands.reconcile import reconcile_run
from kvtrace_cli.commands.run_options import (
    InjectorOption,
    JsonOption,
    PortOption,
    PythonOption,
    SanitizerOption,
    interpreter,
)
from kvtrace_cli.config import (
    Bind,
    EngineConfig,
    RecordingConfig,
    RequestPlan,
    RunConfig,
    TimeLimits,
    Weights,
)
from kvtrace_cli.errors import ConfigError, ExitCode

UNTRACED_SCHEMA_VERSION = 1


def run(
    *,
    model: Annotated[
        str,
        typer.Option("--model", help="A directory, else a hub name: Qwen3-14B, OWNER/NAME."),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- ENGINE ARGUMENTS",
            help="Given to the engine last. Write paths absolute: it runs in the run directory.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="Program to trace: vllm, or emulator (no GPU).")
    ] = EngineConfig.engine,
    weights: Annotated[
        Weights,
        typer.Option("--weights", help="dummy: random weights, only the config is needed."),
    ] = RunConfig.weights,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Run directory. Default: kvtrace-out-<date>-<time>."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the run in --out, if there is one.")
    ] = False,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", help="Output tokens of each measured request.")
    ] = RequestPlan.max_tokens,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", help="Prompt tokens of each request, 2 or more.")
    ] = RequestPlan.prompt_tokens,
    repeat: Annotated[
        int, typer.Option("--repeat", help="Measured requests, one after another.")
    ] = RequestPlan.repeat,
    stream: Annotated[
        bool, typer.Option("--stream", help="Stream the answers and keep each token's time.")
    ] = RequestPlan.stream,
    flash_attention: Annotated[
        int | None,
        typer.Option("--flash-attention", help="2 or 3. Default: the engine's own choice."),
    ] = EngineConfig.flash_attention,
    capture_sizes: Annotated[
        str, typer.Option("--capture-sizes", help="Batch sizes to capture as CUDA graphs.")
    ] = ",".join(map(str, EngineConfig.capture_sizes)),
    kernel: Annotated[
        list[str],
        typer.Option("--kernel", help="Base name of a kernel to record; may be repeated."),
    ] = list(RecordingConfig.kernels),  # noqa: B006  typer copies it
    ring_events: Annotated[
        int, typer.Option("--ring-events", help="Block events in the ring; a power of two.")
    ] = RecordingConfig.ring_events,
    launch_records: Annotated[
        int, typer.Option("--launch-records", help="Launch records in the table; a power of two.")
    ] = RecordingConfig.launch_records,
    one_shot: Annotated[
        bool, typer.Option("--one-shot", help="Fill ring and table once; count the rest as drops.")
    ] = RecordingConfig.one_shot,
    no_stamps: Annotated[
        bool, typer.Option("--no-stamps", help="Bind no launch stamp; replays are told by order.")
    ] = False,
    bind: Annotated[
        Bind,
        typer.Option(
            "--bind", help="target-only leaves functions unbound: shows the crash it causes."
        ),
    ] = RecordingConfig.bind,
    python: PythonOption = None,
    port: PortOption = None,
    injector: InjectorOption = None,
    sanitizer_library: SanitizerOption = None,
    preload: Annotated[
        bool,
        typer.Option("--preload", help="Load the injector by LD_PRELOAD too, in every process."),
    ] = RecordingConfig.preload,
    no_injection: Annotated[
        bool, typer.Option("--no-injection", help="Leave CUDA_INJECTION64_PATH alone.")
    ] = False,
    no_trace: Annotated[
        bool, typer.Option("--no-trace", help="The same run without the injector.")
    ] = False,
    ready_timeout: Annotated[
        float, typer.Option("--ready-timeout", help="Seconds until the engine must be ready.")
    ] = TimeLimits.ready_s,
    request_timeout: Annotated[
        float, typer.Option("--request-timeout", help="Seconds a request may stay silent.")
    ] = TimeLimits.request_s,
    as_json: JsonOption = False,
    verbose: Annotated[
        int, typer.Option("-v", "--verbose", count=True, help="Say more on stderr.")
    ] = 0,
) -> None:
    """Run an engine, record every block that enters a KV-cache kernel, and reconcile the counts.

    Example: kvtrace run --model Qwen3-14B --weights dummy --out run1
    """
    config = RunConfig(
        model=model,
        weights=weights,
        out=out,
        force=force,
        requests=RequestPlan(
            prompt_tokens=prompt_tokens, max_tokens=max_tokens, repeat=repeat, stream=stream
        ),
        engine=EngineConfig(
            engine=engine,
            python=interpreter(python),
            port=port,
            flash_attention=flash_attention,
            capture_sizes=_numbers("--capture-sizes", capture_sizes),
            arguments=tuple(arguments or ()),
        ),
        recording=RecordingConfig(
            enabled=not no_trace,
            kernels=tuple(kernel),
            ring_events=ring_events,
            launch_records=launch_records,
            one_shot=one_shot,
            stamps=not no_stamps,
            bind=bind,
            injector=injector,
            sanitizer_library=sanitizer_library,
            injection=not no_injection,
            preload=preload,
        ),
        limits=TimeLimits(ready_s=ready_timeout, request_s=request_timeout),
    )
    raise typer.Exit(execute(config, as_json=as_json, verbose=bool(verbose)))


def execute(config: RunConfig, *, as_json: bool, verbose: bool) -> ExitCode:
    """Record a run and reconcile it.

    Returns:
        What reconciling came to; INCONCLUSIVE if the injector never attached; AGREES for a run
        that was not traced, which then only says that the requests were answered.

    Raises:
        KvtraceError: see `record_run` and `reconcile_run`.
    """
    with closing(Progress(verbose=verbose)) as progress:
        result = record_run(config, progress)
        _tell(result, progress)
    if not config.recording.enabled:
        _print_untraced(result, as_json=as_json)
        return ExitCode.AGREES
    code = reconcile_run(result.run_dir.path, allow_incomplete=False, as_json=as_json)
    if not result.counters.attached and code is ExitCode.AGREES:
        return ExitCode.INCONCLUSIVE
    return code


def _tell(result: RunResult, progress: Progress) -> None:
    counters = result.counters
    if result.manifest.config.recording.enabled:
        progress.note(f"recorded {describe_counters(counters)}")
        if not counters.attached:
            progress.note(NOT_ATTACHED)
        if counters.first_failure is not None:
            progress.note(f"the injector reports a failure: {counters.first_failure}")
    progress.note(f"run directory: {result.run_dir.path}")


def _print_untraced(result: RunResult, *, as_json: bool) -> None:
    if not as_json:
        text = f"not traced: {len(result.requests)} requests answered"
        console.out.print(text, markup=False, soft_wrap=True)
        return
    document: dict[str, Any] = {
        "schema_version": UNTRACED_SCHEMA_VERSION,
        "traced": False,
        "run_dir": str(result.run_dir.path),
        "requests": [
            {
                "request_index": record.request_index,
                "role": record.role,
                "returned_tokens": len(record.returned_token_ids or ()),
                "host_monotonic_begin_ns": record.host_monotonic_begin_ns,
                "host_monotonic_end_ns": record.host_monotonic_end_ns,
                "token_gaps_ms": record.token_gaps_ms,
            }
            for record in result.requests
        ],
    }
    console.out.print(json.dumps(document, indent=2), markup=False, soft_wrap=True)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{option}: found {text!r}, expected numbers such as 1,2,4,8") from error
