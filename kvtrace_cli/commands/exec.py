"""`kvtrace exec`: record whatever a command of the user's does, then reconcile it."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from kvtrace_cli.capture.exec_session import ExecResult, record_command
from kvtrace_cli.capture.progress import Progress
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
    PreloadOption,
    RecordOption,
    RingEventsOption,
    RunIdOption,
    SanitizerOption,
    VerboseOption,
)
from kvtrace_cli.config import ExecConfig, RecordingConfig
from kvtrace_cli.errors import ConfigError, ExitCode


def exec(  # noqa: A001  the command's name
    *,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="The program and its arguments, as a shell has."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="What the command uses: vllm, or emulator (no GPU).")
    ] = ExecConfig.engine_name,
    out: OutOption = None,
    force: ForceOption = False,
    run_id: RunIdOption = None,
    observer: ObserverOption = RecordingConfig.observer,
    record: RecordOption = RecordingConfig.record,
    no_steps: NoStepsOption = False,
    kernel: KernelOption = DEFAULT_KERNELS,
    ring_events: RingEventsOption = RecordingConfig.ring_events,
    launch_records: LaunchRecordsOption = RecordingConfig.launch_records,
    one_shot: OneShotOption = RecordingConfig.one_shot,
    no_stamps: NoStampsOption = False,
    bind: BindOption = RecordingConfig.bind,
    patch_at: PatchAtOption = RecordingConfig.patch_at,
    patch: PatchOption = RecordingConfig.patch,
    python: Annotated[
        Path | None,
        typer.Option("--python", help="Interpreter to ask for versions. Default: the command's."),
    ] = None,
    injector: InjectorOption = None,
    sanitizer_library: SanitizerOption = None,
    cupti_library: CuptiOption = None,
    preload: PreloadOption = RecordingConfig.preload,
    no_injection: NoInjectionOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Record every block that enters a KV-cache kernel while a command of yours runs.

    Example: kvtrace exec --out run1 -- vllm bench latency

    It runs here, with this terminal, and what it recorded until it ended is reconciled. A Ctrl-C
    reaches its first process, a second one its whole process group, a third ends it by force.
    Exit code 3 if it fails, else that of `kvtrace reconcile`.
    """
    if not command:
        raise ConfigError("no command; expected it after `--`: kvtrace exec -- python script.py")
    config = ExecConfig(
        command=tuple(command),
        engine_name=engine,
        python=python,
        out=out,
        force=force,
        run_id=run_id,
        recording=RecordingConfig(
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
    )
    raise typer.Exit(execute(config, as_json=as_json, verbose=bool(verbose)))


def execute(config: ExecConfig, *, as_json: bool, verbose: bool) -> ExitCode:
    """Record a command and reconcile it.

    Returns:
        RUN_FAILED if the command failed, INTERRUPTED if it failed because we were interrupted, else
        what reconciling came to.

    Raises:
        KvtraceError: see `record_command` and `reconcile_run`.
    """
    with closing(Progress(verbose=verbose, live=False)) as progress:
        result = record_command(config, progress)
        tell_recorded(result, progress)
        if result.exit_status:
            progress.note(_why(result))
    code = reconcile_recorded(result, as_json=as_json)
    if result.exit_status == 0:
        return code
    return ExitCode.INTERRUPTED if result.was_interrupted else ExitCode.RUN_FAILED


def _why(result: ExecResult) -> str:
    ended = f"the command ended with exit status {result.exit_status}"
    if result.was_interrupted:
        return f"{ended} after it was interrupted"
    return f"{ended}, so this is no success, whatever was recorded"
