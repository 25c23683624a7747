"""The command line: help, exit codes, and which module may import what."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import builders
import pytest

from kvtrace_cli import __version__, app
from kvtrace_cli.errors import ConfigError, ExitCode, InconclusiveError, RunFailedError

PACKAGE = Path(app.__file__).parent
LIBRARIES = ("cffi", "httpx", "polars", "rich", "typer", "vllm")


@pytest.fixture
def raising(monkeypatch):
    """Let the reconcile command raise what a test wants."""

    def install(error):
        def command() -> None:
            raise error

        monkeypatch.setattr(app, "_load", lambda _: command)

    return install


def test_version(capsys):
    assert app.main(["--version"]) == ExitCode.AGREES
    assert capsys.readouterr().out == f"kvtrace {__version__}\n"


def test_help_lists_every_command(capsys):
    assert app.main(["--help"]) == ExitCode.AGREES
    out = capsys.readouterr().out
    assert all(f"{name} " in out and summary in out for name, summary in app.COMMANDS.items())


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_has_help_with_an_example(name, capsys):
    assert app.main([name, "--help"]) == ExitCode.AGREES
    out = capsys.readouterr().out
    assert f"Usage: kvtrace {name}" in out
    assert f"Example: kvtrace {name}" in out


@pytest.mark.parametrize("arguments", [["--nope"], ["nope"], ["reconcile"], []])
def test_usage_errors(arguments, capsys):
    assert app.main(arguments) == ExitCode.USAGE
    assert capsys.readouterr().err or not arguments


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x.toml: 3 found"), ExitCode.USAGE),
        (RunFailedError("x.toml: 3 found"), ExitCode.RUN_FAILED),
        (InconclusiveError("x.toml: 3 found"), ExitCode.INCONCLUSIVE),
    ],
)
def test_our_errors_have_their_own_codes_and_one_line(raising, capsys, error, code):
    raising(error)
    assert app.main(["reconcile"]) == code
    assert capsys.readouterr() == ("", "kvtrace: x.toml: 3 found\n")


def test_an_interrupt(raising):
    raising(KeyboardInterrupt())
    assert app.main(["reconcile"]) == ExitCode.INTERRUPTED


def test_a_bug_is_not_taken_for_a_mismatch(raising, capsys, monkeypatch):
    monkeypatch.delenv("KVTRACE_DEBUG", raising=False)
    raising(ZeroDivisionError("nought"))
    assert app.main(["reconcile"]) == ExitCode.BUG
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a bug in kvtrace" in captured.err
    assert "ZeroDivisionError: nought" in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("way", ["-v", "KVTRACE_DEBUG"])
def test_a_bug_shows_its_traceback_if_asked(raising, capsys, monkeypatch, way):
    monkeypatch.setenv("KVTRACE_DEBUG", "1" if way == "KVTRACE_DEBUG" else "")
    raising(ZeroDivisionError("nought"))
    arguments = ["-v", "reconcile"] if way == "-v" else ["reconcile"]
    assert app.main(arguments) == ExitCode.BUG
    assert "Traceback" in capsys.readouterr().err


def test_help_loads_neither_polars_nor_httpx():
    code = (
        "import sys; from kvtrace_cli.app import main; main(['--help']);"
        "sys.exit(bool({'polars', 'httpx', 'cffi'} & set(sys.modules)))"
    )
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=PACKAGE.parent, capture_output=True
    )
    assert time.monotonic() - began < 2, "a slow machine gets slack; 0.15 s is what we aim at"


def test_the_module_runs(tmp_path):
    run = builders.write_run(tmp_path / "run", builders.seven_replays())
    command = [sys.executable, "-m", "kvtrace_cli", "reconcile", str(run)]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "280 of 280" in done.stdout


def imports():
    """Yield (module below kvtrace_cli, imported module) of every import statement."""
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((name, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                yield from ((name, f"{module}.{alias.name}") for alias in node.names)


def importers(library):
    return {name for name, imported in imports() if imported.split(".")[0] == library}


def within(names, *allowed):
    return {
        name
        for name in names
        if not any(name == one or name.startswith(f"{one}.") for one in allowed)
    }


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("typer", ("app", "commands")),
        ("rich", ("console", "reports", "commands", "capture.progress")),
        ("httpx", ("capture.client",)),
        ("cffi", ("dumps.abi", "emulator.driver")),
        ("altair", ("reports.html",)),
        ("jinja2", ("reports.html",)),
        ("junitparser", ("reports.junit",)),
        ("polars", ("dumps", "analysis", "exports.tables")),
        ("perfetto", ("exports.perfetto",)),
        ("vl_convert", ("reports.html",)),
        ("ray", ("emulator.ray_executor",)),
        ("vllm", ()),
        ("click", ()),
        ("numpy", ("dumps", "analysis")),
        ("pyarrow", ()),
    ],
)
def test_each_library_is_imported_in_its_place_only(library, allowed):
    assert not within(importers(library), *allowed)


def test_layers_import_downwards_only():
    ours = {
        (name, found.removeprefix("kvtrace_cli."))
        for name, found in imports()
        if "kvtrace_cli." in found
    }
    layers = {
        "dumps": ("dumps", "errors"),
        "analysis": (
            "analysis",
            "dumps.abi",
            "dumps.event_source",
            "dumps.rank_names",
            "dumps.schema",
        ),
        "reports": (
            "reports",
            "analysis.model",
            "analysis.audit_model",
            "analysis.diff_model",
            "analysis.overhead_model",
            "analysis.gap_model",
            "analysis.lifetime_model",
            "analysis.patch_point_model",
            "analysis.rank_model",
            "analysis.report_model",
            "analysis.run_facts",
            "dumps.summary",
        ),
        "exports": (
            "exports",
            "analysis.export_columns",
            "analysis.export_frames",
            "analysis.export_slice_schema",
            "analysis.export_tracks",
            "dumps.schema",
            "errors",
        ),
        "emulator": (
            "emulator",
            "capture.libraries",
            "dumps.abi",
            "engine_site.kvtrace_engine_plugin.executor_hooks",
            "engine_site.kvtrace_engine_plugin.recorder",
            "errors",
        ),
        "engine_site": (),
        "errors": (),
    }
    for layer, below in layers.items():
        found = {target for name, target in ours if name.split(".")[0] == layer}
        assert not within(found, *below, "__version__"), layer
    capture = {target for name, target in ours if name.startswith("capture")}
    assert not {
        target for target in capture if target.startswith(("analysis", "commands", "reports"))
    }


def test_what_runs_inside_the_engine_needs_the_standard_library_only():
    """The engine's interpreter has neither kvtrace nor what it depends on."""
    found = {imported for name, imported in imports() if name.startswith("engine_site")}
    assert found
    assert {one.split(".")[0] for one in found if not one.startswith(".")} <= (
        sys.stdlib_module_names
    )


def test_analysis_does_no_input_or_output():
    forbidden = {"gzip", "io", "json", "os", "pathlib", "shutil", "subprocess", "sys"}
    found = {imported.split(".")[0] for name, imported in imports() if name.startswith("analysis")}
    assert not found & forbidden
