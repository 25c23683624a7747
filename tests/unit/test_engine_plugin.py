"""The engine plug-in as a process of the engine has it: found, loaded and started by its name."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace_cli import __version__
from kvtrace_cli.capture.plugin import ENGINE_SITE, with_engine_plugin
from kvtrace_cli.errors import ConfigError

INJECTOR = Path("/lib/ours.so")
PACKAGE = ENGINE_SITE / "kvtrace_engine_plugin"

# As vLLM does it, and what tells whether the hooks are there.
LOAD = """
import sys
from importlib.metadata import entry_points
before = list(sys.meta_path)
found = [one for one in entry_points(group="vllm.general_plugins") if one.name == "kvtrace"]
for one in found:
    for _ in range(2):
        one.load()()
added = [type(one).__name__ for one in sys.meta_path if one not in before]
def hooked(name):
    return hasattr(sys.modules[name].GPUModelRunner.execute_model, "_kvtrace_hook")
"""
RUNNERS = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")
FAKE_RUNNER = """
class GPUModelRunner:
    def initialize_kv_cache(self, config): ...
    def execute_model(self, scheduler_output): return "ran"
"""


@pytest.fixture
def engine(tmp_path):
    """Run a program in a process whose environment is a traced engine's; return its answer."""
    site, raw_dir = tmp_path / "site", tmp_path / "raw"
    raw_dir.mkdir()
    for name in RUNNERS:
        path = site.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FAKE_RUNNER)

    def run(program, **changes):
        base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site)}
        environment = with_engine_plugin(base, raw_dir=raw_dir, injector=INJECTOR) | changes
        # Not from here: an engine cannot import kvtrace.
        done = subprocess.run(
            [sys.executable, "-S", "-c", LOAD + program],
            env=environment,
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert list(raw_dir.iterdir()) == []  # no process writes before it runs a model
        return json.loads(done.stdout) if done.stdout else None, done.stderr

    return run


def test_the_plugin_is_found_by_its_entry_point_and_imports_neither_vllm_nor_kvtrace(engine):
    answer, _ = engine(
        """
import json
print(json.dumps([len(found), added, [n for n in sys.modules if n.split(".")[0] in
                                      ("vllm", "torch", "numpy", "kvtrace_cli")]]))
"""
    )
    assert answer == [1, ["PostImportFinder"], []]


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_runner_is_hooked_when_the_engine_imports_it(engine, runner):
    answer, _ = engine(
        f"""
import json, {runner} as module
loader = module.__spec__.loader
print(json.dumps([hooked({runner!r}), module.GPUModelRunner().execute_model(None),
                  type(loader).__name__, "exec_module" in vars(loader)]))
"""
    )
    assert answer == [True, "ran", "SourceFileLoader", False]


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_runner_that_is_imported_already_is_hooked_at_once(engine, runner):
    answer, _ = engine(
        f"""
import json
sys.meta_path[:] = before
del sys.modules["kvtrace_engine_plugin.installing"]
import {runner}
one.load()()
print(json.dumps(hooked({runner!r})))
"""
    )
    assert answer is True


def test_a_runner_that_cannot_be_hooked_is_imported_and_it_is_said(engine):
    answer, errors = engine(
        """
import json, types
class Odd(types.ModuleType): ...
sys.modules["vllm.v1.worker.gpu_model_runner"] = Odd("vllm.v1.worker.gpu_model_runner")
sys.meta_path[:] = before
del sys.modules["kvtrace_engine_plugin.installing"]
one.load()()
print(json.dumps("loaded"))
"""
    )
    assert answer == "loaded"
    assert "kvtrace: engine plug-in stopped in the import of vllm.v1.worker.gpu_mod" in errors


def test_an_engine_that_is_not_traced_has_no_hooks_and_no_module_of_ours(engine):
    answer, _ = engine(
        """
import json
print(json.dumps([added, sorted(n for n in sys.modules if n.startswith("kvtrace"))]))
""",
        KVTRACE_STEPS="",
    )
    assert answer == [[], ["kvtrace_engine_plugin"]]


def test_kvtrace_itself_registers_nothing_with_vllm():
    """Else the plug-in would be in every vLLM of an environment that has kvtrace."""
    program = "from importlib.metadata import distribution as d; print(d('kvtrace').entry_points)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert "vllm" not in done.stdout
    assert "console_scripts" in done.stdout


def test_the_plugins_metadata_carries_this_version():
    (metadata,) = ENGINE_SITE.glob("*.dist-info")
    assert metadata.name == f"kvtrace_engine_plugin-{__version__}.dist-info"
    assert f"\nVersion: {__version__}\n" in (metadata / "METADATA").read_text()


def test_the_plugin_is_python_3_9_and_needs_the_standard_library_only():
    for path in PACKAGE.glob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        assert "from __future__ import annotations" in path.read_text(), path
        imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        modules = {alias.name for node in imported for alias in node.names} | {
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.level == 0
        }
        tops = {name.partition(".")[0] for name in modules}
        assert tops <= set(sys.stdlib_module_names), path


def test_the_engines_environment_finds_the_plugin_before_anything_of_the_users():
    base = {"A": "1", "PYTHONPATH": "/theirs:/more"}
    assert with_engine_plugin(base, raw_dir=Path("/run/raw"), injector=INJECTOR) == {
        "A": "1",
        "PYTHONPATH": f"{ENGINE_SITE}:/theirs:/more",
        "KVTRACE_STEPS": "/run/raw",
        "KVTRACE_INJECTOR": str(INJECTOR),
    }
    assert base == {"A": "1", "PYTHONPATH": "/theirs:/more"}


def test_relative_paths_are_made_absolute_as_the_engine_runs_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = with_engine_plugin({}, raw_dir=Path("run/raw"), injector=Path("ours.so"))
    assert found["PYTHONPATH"] == str(ENGINE_SITE)
    assert found["KVTRACE_STEPS"] == str(tmp_path / "run/raw")
    assert found["KVTRACE_INJECTOR"] == str(tmp_path / "ours.so")


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [("", "kvtrace"), ("a", "a,kvtrace"), ("a,b", "a,b,kvtrace"), ("kvtrace,a", "kvtrace,a")],
)
def test_a_users_choice_of_plugins_has_ours_added(theirs, expected):
    """VLLM_PLUGINS names those that vLLM loads; unset, it loads all."""
    found = with_engine_plugin({"VLLM_PLUGINS": theirs}, raw_dir=Path("/r"), injector=INJECTOR)
    assert found["VLLM_PLUGINS"] == expected
    assert "VLLM_PLUGINS" not in with_engine_plugin({}, raw_dir=Path("/r"), injector=INJECTOR)


def test_a_path_that_python_path_cannot_express_is_refused(monkeypatch):
    monkeypatch.setattr("kvtrace_cli.capture.plugin.ENGINE_SITE", Path("/odd:path/engine_site"))
    with pytest.raises(ConfigError, match="install kvtrace elsewhere"):
        with_engine_plugin({}, raw_dir=Path("/r"), injector=INJECTOR)
