"""`kvtrace lifetime`: which callback data survives graph replay, tried on a small program."""

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kvtrace_cli import console
from kvtrace_cli.analysis.lifetime import judge_cell
from kvtrace_cli.analysis.lifetime_model import (
    HEAP_MARK_BYTE,
    Cell,
    CellResult,
    Heap,
    Status,
    all_cells,
)
from kvtrace_cli.capture.gpus import list_gpus
from kvtrace_cli.capture.libraries import find_emulator_library, find_sanitizer_library
from kvtrace_cli.capture.lifetime import Outcome, find_program, run_cells
from kvtrace_cli.capture.progress import Progress
from kvtrace_cli.commands.run_options import JsonOption, SanitizerOption
from kvtrace_cli.config import EngineConfig
from kvtrace_cli.errors import ConfigError, ExitCode
from kvtrace_cli.reports.lifetime_documents import lifetime_document
from kvtrace_cli.reports.lifetime_tables import lifetime_tables

_EMULATOR = "emulator"


def lifetime(
    *,
    engine: Annotated[
        str, typer.Option("--engine", help="vllm: on this machine's GPU. emulator: without one.")
    ] = EngineConfig.engine,
    program: Annotated[
        Path | None,
        typer.Option("--program", help="Program that runs a cell. Default: `make lifetime`'s."),
    ] = None,
    sanitizer_library: SanitizerOption = None,
    heap: Annotated[
        Heap,
        typer.Option("--heap", help="New memory of the cells' processes: of a used one, or zeros."),
    ] = Heap.USED,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds after which a cell is said to hang.")
    ] = 15.0,
    jobs: Annotated[int, typer.Option("--jobs", help="Cells that run at once.")] = 4,
    as_json: JsonOption = False,
) -> None:
    """Try every way of binding callback data under graph replay, each in its own process.

    Example: kvtrace lifetime

    Exit code 0: every cell says something, faults and hangs included; 4: some could not be run.
    """
    if engine not in (EngineConfig.engine, _EMULATOR):
        raise ConfigError(f"--engine: found {engine!r}, expected {EngineConfig.engine} or emulator")
    if not timeout > 0:
        raise ConfigError(f"--timeout: found {timeout:g}, expected seconds, more than 0")
    if jobs < 1:
        raise ConfigError(f"--jobs: found {jobs}, expected 1 or more")
    emulated = engine == _EMULATOR
    found_program = find_program(program, emulated=emulated)
    find_library = find_emulator_library if emulated else find_sanitizer_library
    library = find_library(sanitizer_library)
    results = _run_all(found_program, library, timeout_s=timeout, jobs=jobs, heap=heap)
    if as_json:
        about = {
            "emulated": emulated,
            "gpus": [] if emulated else [asdict(gpu) for gpu in list_gpus()],
            "sanitizer_library": str(library),
            "heap": heap.value,
            "timeout_s": timeout,
        }
        text = json.dumps(lifetime_document(results, about), indent=2)
        console.out.print(text, markup=False, soft_wrap=True)
    else:
        for part in lifetime_tables(results, emulated=emulated):
            console.out.print(part)
    is_whole = all(result.status is not Status.NOT_RUN for result in results)
    raise typer.Exit(ExitCode.AGREES if is_whole else ExitCode.INCONCLUSIVE)


def _run_all(
    program: Path, library: Path, *, timeout_s: float, jobs: int, heap: Heap
) -> list[CellResult]:
    cells = {_arguments(cell): cell for cell in all_cells()}
    with closing(Progress(verbose=False)) as progress:
        progress.note(f"running {len(cells)} cells, {jobs} at once")
        outcomes = run_cells(
            cells,
            program=program,
            sanitizer_library=library,
            timeout_s=timeout_s,
            jobs=jobs,
            new_memory=HEAP_MARK_BYTE if heap is Heap.USED else None,
        )
    return [_judged(cell, outcomes[arguments]) for arguments, cell in cells.items()]


def _judged(cell: Cell, outcome: Outcome) -> CellResult:
    return judge_cell(cell, outcome.found, timed_out=outcome.timed_out, said=outcome.said)


def _arguments(cell: Cell) -> tuple[str, ...]:
    return tuple(part.value for part in (cell.callback, cell.binding, cell.neighbours, cell.graph))
