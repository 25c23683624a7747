"""Run the cells of the lifetime matrix, each in a process of its own that may fault or hang."""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kvtrace_cli.capture.injection import CONFIG_VARIABLE, INJECTION_VARIABLE, PRELOAD_VARIABLE
from kvtrace_cli.errors import ConfigError

PROGRAM_NAME: Final = "kvtrace_lifetime"
EMULATED_PROGRAM_NAME: Final = "kvtrace_lifetime_emulated"
# glibc fills what it frees with this byte, and what it gives with its complement.
_PERTURB_VARIABLE: Final = "MALLOC_PERTURB_"
_USAGE_STATUS = 2
_MOST_SAID = 300


@dataclass(frozen=True)
class Outcome:
    """How a cell's process ended: what it printed, or why it printed nothing."""

    found: Mapping[str, Any] | None
    timed_out: bool = False
    said: str = ""


def find_program(given: Path | None, *, emulated: bool) -> Path:
    """Find the program of the matrix: the one given, else the one of this package.

    Raises:
        ConfigError: there is none, or its library is not beside it.
    """
    if given is not None:
        path = given.expanduser().absolute()
    else:
        name = EMULATED_PROGRAM_NAME if emulated else PROGRAM_NAME
        path = Path(__file__).parents[1] / "native" / name
    for file in (path, path.parent / f"lib{path.name}.so"):
        if not file.is_file():
            raise ConfigError(
                f"{file.name}: not found in {file.parent}; build it with `make lifetime`, or name "
                "the program with --program"
            )
    return path


def run_cells(
    cells: Iterable[tuple[str, ...]],
    *,
    program: Path,
    sanitizer_library: Path,
    timeout_s: float,
    jobs: int,
    new_memory: int | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[tuple[str, ...], Outcome]:
    """Run cells side by side.

    Args:
        cells: the program's arguments: callback, binding, neighbours, graph, and where that is
            what differs when the module is patched.
        program: from `find_program`.
        sanitizer_library: that the program subscribes to.
        timeout_s: after which a cell is said to hang, and is killed.
        jobs: cells that run at once.
        new_memory: the byte that new memory of their host processes is filled with; null: as the
            system gives it.
        variables: more of their environment.

    Raises:
        ConfigError: the program does not know our cells, or cannot be started.
    """
    found = {}
    environment = dict(_environment(new_memory)) | dict(variables)
    with ThreadPoolExecutor(jobs) as pool:
        running = {
            pool.submit(
                _run, [str(program), *cell, str(sanitizer_library)], environment, timeout_s
            ): cell
            for cell in cells
        }
        try:
            for done in as_completed(running):
                found[running[done]] = done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return found


def _run(command: list[str], environment: Mapping[str, str], timeout_s: float) -> Outcome:
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, timed_out=True)
    except OSError as error:
        raise ConfigError(f"--program {command[0]}: {error}") from error
    if done.returncode == _USAGE_STATUS:
        raise ConfigError(
            f"--program {command[0]}: does not know the cell {' '.join(command[1:-1])}; "
            "build it with `make lifetime`"
        )
    said = done.stderr.strip()[-_MOST_SAID:] or f"exit status {done.returncode}"
    return Outcome(_last_document(done.stdout), said=said)


def _environment(new_memory: int | None) -> Iterator[tuple[str, str]]:
    """Yield our environment without what would load another tool into the cell."""
    others = (CONFIG_VARIABLE, INJECTION_VARIABLE, PRELOAD_VARIABLE, _PERTURB_VARIABLE)
    yield from ((name, text) for name, text in os.environ.items() if name not in others)
    if new_memory is not None:
        yield _PERTURB_VARIABLE, str(new_memory ^ 0xFF)


def _last_document(text: str) -> Mapping[str, Any] | None:
    lines = [line for line in text.splitlines() if line.startswith("{")]
    try:
        document = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
