"""`kvtrace overhead`: measure what each way of recording costs, or read it again."""

from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from kvtrace_cli import console
from kvtrace_cli.analysis.overhead import overhead as costs_of
from kvtrace_cli.analysis.overhead_model import BarVerdict
from kvtrace_cli.capture.overhead_arms import ARMS, DEFAULT_ARMS
from kvtrace_cli.capture.overhead_file import Measurement, load, merged
from kvtrace_cli.capture.overhead_plan import OverheadPlan
from kvtrace_cli.capture.overhead_session import measure_overhead
from kvtrace_cli.capture.progress import Progress
from kvtrace_cli.commands.overhead_told import notes_of, samples_of
from kvtrace_cli.commands.run_options import (
    CuptiOption,
    InjectorOption,
    JsonOption,
    PythonOption,
    SanitizerOption,
    VerboseOption,
    WeightsOption,
    interpreter,
    numbers,
)
from kvtrace_cli.config import EngineConfig, RecordingConfig, TimeLimits
from kvtrace_cli.errors import ConfigError, ExitCode, InconclusiveError
from kvtrace_cli.reports.documents import document_text
from kvtrace_cli.reports.overhead_documents import overhead_document
from kvtrace_cli.reports.overhead_tables import overhead_tables

_CHECKED: Final = {
    BarVerdict.MET: ExitCode.AGREES,
    BarVerdict.MISSED: ExitCode.MISMATCH,
    BarVerdict.CANNOT_TELL: ExitCode.INCONCLUSIVE,
}


def overhead(
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A directory, else a hub name: Qwen3-14B, OWNER/NAME."),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ENGINE ARGUMENTS", help="Given to every server last."),
    ] = None,
    from_: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="Measure nothing: print what DIR holds; repeated, their starts put together.",
        ),
    ] = None,
    arms: Annotated[
        str, typer.Option("--arms", help=f"Which are measured, of: {', '.join(ARMS)}.")
    ] = ",".join(DEFAULT_ARMS),
    starts: Annotated[
        int, typer.Option("--starts", help="How often all servers are started anew.")
    ] = OverheadPlan.starts,
    rounds: Annotated[
        int, typer.Option("--rounds", help="How often each server of a start is asked.")
    ] = OverheadPlan.rounds,
    batch: Annotated[
        str, typer.Option("--batch", help="How many requests at once, one after another.")
    ] = ",".join(map(str, OverheadPlan.batches)),
    tokens: Annotated[
        int, typer.Option("--tokens", help="Output tokens of each request of a batch.")
    ] = OverheadPlan.tokens,
    prefill: Annotated[
        int, typer.Option("--prefill", help="Prompt tokens where the time to the first counts.")
    ] = OverheadPlan.prefill,
    side_by_side: Annotated[
        int | None,
        typer.Option("--side-by-side", help="Servers on the card at once. Default: what fits."),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="What orders and prompts are drawn from.")
    ] = OverheadPlan.seed,
    engine: Annotated[
        str, typer.Option("--engine", help="vllm, or emulator (no GPU; its times mean nothing).")
    ] = EngineConfig.engine,
    weights: WeightsOption = OverheadPlan.weights,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Directory. Default: kvtrace-overhead-<date>-<time>."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Let the bars decide the exit code.")
    ] = False,
    python: PythonOption = None,
    injector: InjectorOption = None,
    sanitizer_library: SanitizerOption = None,
    cupti_library: CuptiOption = None,
    ready_timeout: Annotated[
        float, typer.Option("--ready-timeout", help="Seconds until a server must be ready.")
    ] = TimeLimits.ready_s,
    as_json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Measure what recording costs: servers that differ in it only, asked in turn.

    Example: kvtrace overhead --model Qwen3-14B --starts 3 --out cost

    Every gap between tokens is kept in the directory. Bars: block entries cost at most 0.5 % of the
    median inter-token time at every batch size, and 1 % of the prefill's time to the first token.

    Exit code 0: measured, and with --check all bars are met; 1: --check, and a bar is missed;
    3: a server or a request failed; 4: --check, and it cannot be told, or an arm did not record.
    """
    if from_:
        if model is not None or arguments:
            raise ConfigError("--from: measures nothing, so it takes no --model and no arguments")
        measured = merged([(path, load(path)) for path in from_])
    else:
        if model is None:
            raise ConfigError(
                "--model: nothing found, expected Qwen3-14B or a directory, or --from"
            )
        plan = OverheadPlan(
            model=model,
            weights=weights,
            arms=tuple(part.strip() for part in arms.split(",")),
            starts=starts,
            rounds=rounds,
            batches=numbers("--batch", batch, such_as="1,8,64"),
            tokens=tokens,
            prefill=prefill,
            seed=seed,
            side_by_side=side_by_side,
            out=out,
            engine=EngineConfig(
                engine=engine, python=interpreter(python), arguments=tuple(arguments or ())
            ),
            limits=TimeLimits(ready_s=ready_timeout),
        )
        recording = RecordingConfig(
            injector=injector, sanitizer_library=sanitizer_library, cupti_library=cupti_library
        )
        measured = _measure(plan, recording, verbose=bool(verbose))
    raise typer.Exit(tell(measured, as_json=as_json, check=check))


def tell(measured: Measurement, *, as_json: bool, check: bool) -> ExitCode:
    """Print what was measured.

    Returns:
        AGREES, or with `check` what the bars say; those of an emulated engine say nothing.

    Raises:
        InconclusiveError: not one round was measured.
    """
    if not measured.rounds:
        raise InconclusiveError(
            f"nothing was measured: {measured.ended} ({measured.error or 'no round'}); "
            "see the servers' logs, and measure again"
        )
    emulated = measured.setup.emulated
    found = costs_of(samples_of(measured), measured.arms, judge=not emulated)
    notes = list(notes_of(measured, found))
    if as_json:
        # The rounds, with every gap, are in the file.
        about = asdict(replace(measured, rounds=()))
        del about["rounds"]
        text = document_text(overhead_document(found, about, notes))
        console.out.print(text, markup=False, soft_wrap=True)
    else:
        for one in overhead_tables(found, emulated=emulated, notes=notes):
            console.out.print(one)
    return _CHECKED[found.verdict] if check else ExitCode.AGREES


def _measure(plan: OverheadPlan, recording: RecordingConfig, *, verbose: bool) -> Measurement:
    with closing(Progress(verbose=verbose)) as progress:
        measured = measure_overhead(plan, recording, progress)
        progress.note(f"every gap is in {measured.path}")
    return measured.measurement
