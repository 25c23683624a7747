"""`kvtrace lifetime`: which callback data survives graph replay, tried on a small program."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
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
from kvtrace_cli.analysis.patch_point_model import Loading, PatchPoint, PointResult
from kvtrace_cli.analysis.patch_points import judge_point
from kvtrace_cli.capture.gpus import list_gpus
from kvtrace_cli.capture.injection import LATE_PATCHING_VARIABLE
from kvtrace_cli.capture.libraries import find_emulator_library, find_sanitizer_library
from kvtrace_cli.capture.lifetime import Outcome, find_program, run_cells
from kvtrace_cli.capture.progress import Progress
from kvtrace_cli.commands.run_options import JsonOption, SanitizerOption
from kvtrace_cli.config import EngineConfig
from kvtrace_cli.errors import ConfigError, ExitCode
from kvtrace_cli.reports.lifetime_documents import lifetime_document, patch_points_document
from kvtrace_cli.reports.lifetime_tables import lifetime_tables
from kvtrace_cli.reports.patch_point_tables import patch_point_tables

_EMULATOR = "emulator"
_Run = Callable[..., dict[tuple[str, ...], Outcome]]


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
    patch_points: Annotated[
        bool,
        typer.Option("--patch-points", help="Try when a module can be patched, not the matrix."),
    ] = False,
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
    run = partial(
        run_cells,
        program=found_program,
        sanitizer_library=library,
        timeout_s=timeout,
        jobs=jobs,
        new_memory=HEAP_MARK_BYTE if heap is Heap.USED else None,
    )
    about = {
        "emulated": emulated,
        "gpus": [] if emulated or not as_json else [asdict(gpu) for gpu in list_gpus()],
        "sanitizer_library": str(library),
        "heap": heap.value,
        "timeout_s": timeout,
    }
    with closing(Progress(verbose=False)) as progress:
        if patch_points:
            points = _try_points(run, progress)
            statuses = [one.status for one in points]
            document = patch_points_document(points, about)
            tables = patch_point_tables(points, emulated=emulated)
        else:
            cells = _try_cells(run, progress)
            statuses = [one.status for one in cells]
            document = lifetime_document(cells, about)
            tables = lifetime_tables(cells, emulated=emulated)
    if as_json:
        console.out.print(json.dumps(document, indent=2), markup=False, soft_wrap=True)
    else:
        for part in tables:
            console.out.print(part)
    is_whole = Status.NOT_RUN not in statuses
    raise typer.Exit(ExitCode.AGREES if is_whole else ExitCode.INCONCLUSIVE)


def _try_cells(run: _Run, progress: Progress) -> list[CellResult]:
    cells = {_arguments(cell): cell for cell in all_cells()}
    progress.note(f"running {len(cells)} cells")
    outcomes = run(cells)
    return [_judged(cell, outcomes[arguments]) for arguments, cell in cells.items()]


def _try_points(run: _Run, progress: Progress) -> list[PointResult]:
    progress.note(f"patching at {len(PatchPoint)} points, with lazy and with eager loading")
    # The neighbour is in a module of its own, so that one is loaded after the first launch.
    points = {
        ("counter", "every-function", "other-module", "kernels", point.value): point
        for point in PatchPoint
    }
    results = []
    for loading in Loading:
        variables = {
            "CUDA_MODULE_LOADING": loading.value.upper(),
            # The emulator is to show what is lost, and so does not end where a GPU hangs.
            LATE_PATCHING_VARIABLE: "1",
        }
        outcomes = run(points, variables=variables)
        results += [
            judge_point(
                point,
                loading,
                outcomes[arguments].found,
                timed_out=outcomes[arguments].timed_out,
                said=outcomes[arguments].said,
            )
            for arguments, point in points.items()
        ]
    return results


def _judged(cell: Cell, outcome: Outcome) -> CellResult:
    return judge_cell(cell, outcome.found, timed_out=outcome.timed_out, said=outcome.said)


def _arguments(cell: Cell) -> tuple[str, ...]:
    return tuple(part.value for part in (cell.callback, cell.binding, cell.neighbours, cell.graph))
