"""`kvtrace run`: start the engine, send the requests, stop it, reconcile what was recorded."""

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from kvtrace_cli import console
from kvtrace_cli.capture.progress import Progress
from kvtrace_cli.capture.request_file import read_request_file
from kvtrace_cli.capture.session import RunResult, record_run
from kvtrace_cli.commands.recorded import reconcile_recorded, tell_recorded
from kvtrace_cli.commands.run_options import (
    DEFAULT_KERNELS,
    BindOption,
    CuptiOption,
    ForceOption,
    InjectorOption,
    JsonOption,
    KernelOption,
    LaunchRecordsOption,
    NoInjectionOption,
    NoStampsOption,
    NoStepsOption,
    ObserverOption,
    OneShotOption,
    OutOption,
    PatchAtOption,
    PatchOption,
    PortOption,
    PreloadOption,
    PythonOption,
    RecordOption,
    RingEventsOption,
    RunIdOption,
    SanitizerOption,
    VerboseOption,
    WeightsOption,
    interpreter,
    numbers,
)
from kvtrace_cli.config import (
    EngineConfig,
    RecordingConfig,
    RequestPlan,
    RunConfig,
    TimeLimits,
    default_max_num_seqs,
)
from kvtrace_cli.errors import ConfigError, ExitCode

UNTRACED_SCHEMA_VERSION = 1
_SIZES = ("prompt_tokens", "max_tokens", "repeat", "stream")


def run(
    context: typer.Context,
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
    weights: WeightsOption = RunConfig.weights,
    out: OutOption = None,
    force: ForceOption = False,
    run_id: RunIdOption = None,
    ranks_elsewhere: Annotated[
        bool,
        typer.Option(
            "--ranks-elsewhere", help="Workers are recorded on their nodes, by `kvtrace exec`."
        ),
    ] = RunConfig.ranks_elsewhere,
    observer: ObserverOption = RecordingConfig.observer,
    record: RecordOption = RecordingConfig.record,
    requests: Annotated[
        Path | None,
        typer.Option("--requests", help="File of requests, one JSON object a line; see README."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", help="Measured requests that are sent at once.")
    ] = RequestPlan.concurrency,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", help="Output tokens of each measured request.")
    ] = RequestPlan.max_tokens,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", help="Prompt tokens of each request, 2 or more.")
    ] = RequestPlan.prompt_tokens,
    repeat: Annotated[
        int, typer.Option("--repeat", help="Measured requests, all alike.")
    ] = RequestPlan.repeat,
    stream: Annotated[
        bool, typer.Option("--stream", help="Stream the answers and keep each token's time.")
    ] = RequestPlan.stream,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            "--max-num-seqs", help="Requests in a batch. Default: 8, or --concurrency if more."
        ),
    ] = None,
    max_num_batched_tokens: Annotated[
        int,
        typer.Option("--max-num-batched-tokens", help="Tokens in a step; prompts are cut to it."),
    ] = EngineConfig.max_num_batched_tokens,
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching", help="Let requests share KV blocks.")
    ] = EngineConfig.prefix_caching,
    flash_attention: Annotated[
        int | None,
        typer.Option("--flash-attention", help="2 or 3. Default: the engine's own choice."),
    ] = EngineConfig.flash_attention,
    capture_sizes: Annotated[
        str, typer.Option("--capture-sizes", help="Batch sizes to capture as CUDA graphs.")
    ] = ",".join(map(str, EngineConfig.capture_sizes)),
    no_steps: NoStepsOption = False,
    kernel: KernelOption = DEFAULT_KERNELS,
    ring_events: RingEventsOption = RecordingConfig.ring_events,
    launch_records: LaunchRecordsOption = RecordingConfig.launch_records,
    one_shot: OneShotOption = RecordingConfig.one_shot,
    no_stamps: NoStampsOption = False,
    bind: BindOption = RecordingConfig.bind,
    patch_at: PatchAtOption = RecordingConfig.patch_at,
    patch: PatchOption = RecordingConfig.patch,
    python: PythonOption = None,
    port: PortOption = None,
    injector: InjectorOption = None,
    sanitizer_library: SanitizerOption = None,
    cupti_library: CuptiOption = None,
    preload: PreloadOption = RecordingConfig.preload,
    no_injection: NoInjectionOption = False,
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
    verbose: VerboseOption = 0,
) -> None:
    """Run an engine, record every block that enters a KV-cache kernel, and reconcile the counts.

    Example: kvtrace run --model Qwen3-14B --weights dummy --out run1
    """
    if requests is not None:
        _refuse_sizes(context)
    config = RunConfig(
        model=model,
        weights=weights,
        out=out,
        force=force,
        run_id=run_id,
        ranks_elsewhere=ranks_elsewhere,
        requests=RequestPlan(
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            repeat=repeat,
            stream=stream,
            concurrency=concurrency,
            file=requests,
            listed=() if requests is None else read_request_file(requests),
        ),
        engine=EngineConfig(
            engine=engine,
            python=interpreter(python),
            port=port,
            max_num_seqs=(
                default_max_num_seqs(concurrency) if max_num_seqs is None else max_num_seqs
            ),
            max_num_batched_tokens=max_num_batched_tokens,
            prefix_caching=prefix_caching,
            flash_attention=flash_attention,
            capture_sizes=numbers("--capture-sizes", capture_sizes, such_as="1,2,4,8"),
            arguments=tuple(arguments or ()),
        ),
        recording=RecordingConfig(
            enabled=not no_trace,
            observer=observer,
            record=record,
            steps=not no_steps,
            kernels=tuple(kernel),
            ring_events=ring_events,
            launch_records=launch_records,
            one_shot=one_shot,
            stamps=not no_stamps,
            bind=bind,
            patch_at=patch_at,
            patch=patch,
            injector=injector,
            sanitizer_library=sanitizer_library,
            cupti_library=cupti_library,
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
        tell_recorded(result, progress)
    if not config.recording.enabled:
        _print_untraced(result, as_json=as_json)
        return ExitCode.AGREES
    return reconcile_recorded(result, as_json=as_json)


def _refuse_sizes(context: typer.Context) -> None:
    """Refuse options of which a request file has its own."""
    for name in _SIZES:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(
                f"--{name.replace('_', '-')}: of no use with --requests, whose lines say it for "
                "each request; leave one of the two out"
            )


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
