"""Options that `run` and `doctor` share."""

from pathlib import Path
from typing import Annotated

import typer

from kvtrace_cli.config import EngineConfig

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


def interpreter(given: Path | None) -> Path:
    """Return the interpreter to start the engine with; a virtual environment's link stays one."""
    return EngineConfig.python if given is None else given.expanduser().absolute()
