import json
from pathlib import Path

import pytest

from kvtrace_cli.capture.libraries import Injector
from kvtrace_cli.capture.plugin import ENGINE_SITE
from kvtrace_cli.capture.preflight import Preflight
from kvtrace_cli.capture.tracing import as_typed, traced_environment
from kvtrace_cli.config import Observer, RecordingConfig
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.run_dir import RunDir

INJECTOR = Path("/lib/ours.so")


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "raw").mkdir()
    return RunDir(tmp_path)


def traced(base, run_dir, recording=None, *, found=True, **options):
    preflight = Preflight()
    if found:
        preflight.injector = Injector(INJECTOR, 1, "build")
        preflight.sanitizer_library = Path("/lib/sanitizer.so")
    recording = recording or RecordingConfig()
    options = {"emulated": False} | options
    return traced_environment(base, recording, preflight, run_dir, **options)


def test_injector_and_plugin_are_told_where_to_write(run_dir):
    environment = traced({"A": "1"}, run_dir)
    assert environment["A"] == "1"
    assert environment["KVTRACE_CONFIG"] == str(run_dir.injector_config)
    assert environment["CUDA_INJECTION64_PATH"] == str(INJECTOR)
    assert environment["KVTRACE_STEPS"] == str(run_dir.raw)
    assert run_dir.injector_config.exists()


def test_the_cupti_observer_is_told_where_its_library_is(run_dir):
    preflight = Preflight()
    preflight.injector = Injector(INJECTOR, 1, "build")
    preflight.cupti_library = Path("/lib/libcupti.so.13")
    recording = RecordingConfig(observer=Observer.CUPTI, activity_flush_ms=70)
    environment = traced_environment({}, recording, preflight, run_dir, emulated=False)
    assert environment["CUDA_INJECTION64_PATH"] == str(INJECTOR)
    data = run_dir.injector_config.read_bytes()
    config = abi.ffi().from_buffer(f"{abi.ACTIVITY_CONFIG_STRUCT} *", data)
    assert config.magic == abi.constant("KVTRACE_ACTIVITY_CONFIG_MAGIC")
    assert config.struct_size == len(data)
    assert config.flush_period_ms == 70
    assert abi.ffi().string(config.cupti_library) == b"/lib/libcupti.so.13"
    assert abi.ffi().string(config.output_dir) == str(run_dir.raw).encode()


def test_without_steps_the_plugin_stays_away(run_dir):
    base = {"KVTRACE_STEPS": "/left/over", "PYTHONPATH": "/mine"}
    environment = traced(base, run_dir, RecordingConfig(steps=False))
    assert "KVTRACE_STEPS" not in environment
    assert environment["PYTHONPATH"] == "/mine"


def test_without_recording_nothing_of_an_outer_one_is_left(run_dir):
    base = {"KVTRACE_STEPS": "/outer", "KVTRACE_CONFIG": "/outer/config", "A": "1"}
    assert traced(base, run_dir, found=False) == {"A": "1"}
    assert not run_dir.injector_config.exists()


def test_vllm_gets_time_to_end_its_processes_unless_the_user_said_how_much(run_dir):
    name = "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"
    assert traced({}, run_dir)[name] == "20"
    assert traced({name: "3"}, run_dir)[name] == "3"
    assert name not in traced({}, run_dir, emulated=True)


def test_workers_of_ray_get_what_was_set_to_record_and_nothing_else(run_dir):
    environment = traced({"A": "1", "PYTHONPATH": "/mine"}, run_dir, uses_ray=True)
    names = environment["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"].split(",")
    assert set(names) == {
        *("KVTRACE_CONFIG", "KVTRACE_STEPS", "KVTRACE_INJECTOR"),
        *("CUDA_INJECTION64_PATH", "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"),
    }
    variables = json.loads(environment["RAY_JOB_CONFIG_JSON_ENV_VAR"])["runtime_env"]["env_vars"]
    assert variables.keys() == {*names, "PYTHONPATH"}
    assert variables["PYTHONPATH"] == f"{ENGINE_SITE}:${{PYTHONPATH}}"
    assert "RAY_JOB_CONFIG_JSON_ENV_VAR" not in traced({}, run_dir)


def test_without_recording_ray_is_told_nothing(run_dir):
    assert traced({"A": "1"}, run_dir, found=False, uses_ray=True) == {"A": "1"}


def test_a_command_is_shown_as_a_shell_takes_it():
    assert as_typed({"B": "2 3", "A": "1"}, ["say", "it's"]) == """A=1 'B=2 3' say 'it'"'"'s'"""
