"""The typer app, and the only place where exceptions become exit codes."""

import os
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from kvtrace_cli import __version__
from kvtrace_cli.errors import ExitCode, KvtraceError

# Command -> what the list of commands says of it. Its function has its name in commands/<name>.py,
# and only the called one is imported: polars and httpx take longer to load than `--help` may.
COMMANDS: Final = {
    "run": "Start an engine, send requests, record and reconcile them.",
    "exec": "Record a command of yours and reconcile it.",
    "collect": "Gather what the nodes of a run recorded into one directory.",
    "reconcile": "Reconcile a run again, from its files alone.",
    "show": "Print one token's life: step, replay, nodes, slots, addresses.",
    "audit": "Check every KV-cache write against the slot it was assigned.",
    "diff": "Compare two runs: set-up, structure, times.",
    "baseline": "Save a small summary to compare later runs with.",
    "export": "Write joined events as Parquet, Arrow or a Perfetto timeline.",
    "report": "Write one HTML file with tables and pictures of a run.",
    "overhead": "Measure what recording costs: latency, throughput, memory.",
    "gap": "Say what ran on the GPU in replays and between them.",
    "lifetime": "Try which callback data survives graph replay, and how.",
    "doctor": "Check what recording needs on this machine.",
}


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code; every exception ends here.

    Args:
        argv: arguments without the program's name.
    """
    try:
        _app(argv)(args=list(argv), prog_name="kvtrace")
    except SystemExit as ended:  # how typer ends: usage errors, typer.Exit, interrupts
        return ended.code if isinstance(ended.code, int) else ExitCode.AGREES
    except KvtraceError as error:
        _say(f"kvtrace: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - an uncaught one would exit 1 and look like a mismatch
        _report_bug(error, argv)
        return ExitCode.BUG
    return ExitCode.AGREES


def _app(argv: Sequence[str]) -> typer.Typer:
    """Return the app with the called command loaded and the others known by name only."""
    app = typer.Typer(
        callback=_global_options,
        help="Record every GPU thread block that enters a kernel which writes vLLM's KV cache.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    called = next((argument for argument in argv if argument in COMMANDS), None)
    for name, summary in COMMANDS.items():
        if name == called:
            app.command(name)(_load(name))
        else:
            app.command(name, help=summary)(_not_called)
    return app


def _load(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(import_module(f"kvtrace_cli.commands.{name}"), name)
    return function


def _not_called() -> None:
    """Stand in for a command that the arguments do not call; only `--help` sees it."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvtrace {__version__}")
        raise typer.Exit(ExitCode.AGREES)


def _global_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Say more; show tracebacks.")
    ] = 0,
) -> None:
    """Know the options that come before a command."""


def _report_bug(error: Exception, argv: Sequence[str]) -> None:
    if os.environ.get("KVTRACE_DEBUG") or {"-v", "--verbose"} & set(argv):
        traceback.print_exception(error)
    _say(
        f"kvtrace: a bug in kvtrace, not in the traced run: {type(error).__name__}: {error}\n"
        "Please report it with the output of the same command under KVTRACE_DEBUG=1."
    )


def _say(text: str) -> None:
    typer.echo(text, err=True)
