"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from kvtrace_cli.config import (
    Bind,
    EngineConfig,
    Observer,
    Patch,
    PatchAt,
    Record,
    RecordingConfig,
    Weights,
)
from kvtrace_cli.errors import ConfigError

WeightsOption = Annotated[
    Weights,
    typer.Option("--weights", help="dummy: random weights, only the config is needed."),
]
PythonOption = Annotated[
    Path | None,
    typer.Option("--python", help="Python interpreter that has vLLM. Default: this one."),
]
InjectorOption = Annotated[
    Path | None,
    typer.Option("--injector", help="Injector library. Default: the one of this package."),
]
SanitizerOption = Annotated[
    Path | None,
    typer.Option(
        "--sanitizer-library",
        help="libsanitizer-public.so. Default: its Python package, then the CUDA toolkit.",
    ),
]
PortOption = Annotated[
    int | None, typer.Option("--port", help="Port on 127.0.0.1. Default: a free one.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of a table.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", help="Run directory. Default: kvtrace-out-<date>-<time>."),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace the run in --out, if there is one.")
]
RunIdOption = Annotated[
    str | None,
    typer.Option("--run-id", help="Name that all nodes of one run share. Default: a random one."),
]
VerboseOption = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="Say more on stderr.")
]
RecordOption = Annotated[
    Record,
    typer.Option(
        "--record",
        help="blocks; writes: also the stores of each block's first thread; all-writes: all; "
        "none: launches only, a diagnostic.",
    ),
]
ObserverOption = Annotated[
    Observer,
    typer.Option(
        "--observer",
        help="sanitizer: every block. cupti: when each kernel ran instead, for `kvtrace gap`.",
    ),
]
CuptiOption = Annotated[
    Path | None,
    typer.Option(
        "--cupti-library",
        help="libcupti.so of CUDA 13.0. Default: its Python package, then the CUDA toolkit.",
    ),
]
NoStepsOption = Annotated[
    bool, typer.Option("--no-steps", help="Leave the engine plug-in out: rows have no owner.")
]
KernelOption = Annotated[
    list[str],
    typer.Option("--kernel", help="Base name of a kernel to record; may be repeated."),
]
RingEventsOption = Annotated[
    int, typer.Option("--ring-events", help="Events in the ring; a power of two.")
]
LaunchRecordsOption = Annotated[
    int, typer.Option("--launch-records", help="Launch records in the table; a power of two.")
]
OneShotOption = Annotated[
    bool, typer.Option("--one-shot", help="Fill ring and table once; count the rest as drops.")
]
NoStampsOption = Annotated[
    bool, typer.Option("--no-stamps", help="Bind no launch stamp; replays are told by order.")
]
BindOption = Annotated[
    Bind,
    typer.Option("--bind", help="target-only leaves functions unbound: shows the crash it causes."),
]
PatchAtOption = Annotated[
    PatchAt,
    typer.Option(
        "--patch-at",
        help="first-launch-end (emulator only) loses the blocks of the first launch, and shows it.",
    ),
]
# Hidden: of use only to take the cost of recording apart; see docs/overhead.md.
PatchOption = Annotated[Patch, typer.Option("--patch", hidden=True)]
PreloadOption = Annotated[
    bool,
    typer.Option("--preload", help="Load the injector by LD_PRELOAD too, in every process."),
]
NoInjectionOption = Annotated[
    bool, typer.Option("--no-injection", help="Leave CUDA_INJECTION64_PATH alone.")
]
DEFAULT_KERNELS = list(RecordingConfig.kernels)


def interpreter(given: Path | None) -> Path:
    """Return the interpreter to start the engine with; a virtual environment's link stays one."""
    return EngineConfig.python if given is None else given.expanduser().absolute()


def numbers(option: str, text: str, *, such_as: str) -> tuple[int, ...]:
    """Return the numbers of a list such as 1,2,4,8.

    Raises:
        ConfigError: it is none.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{option}: found {text!r}, expected numbers such as {such_as}"
        ) from error
