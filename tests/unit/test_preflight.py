import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvtrace_cli.capture import preflight
from kvtrace_cli.capture.gpus import Gpu, parse_gpus
from kvtrace_cli.capture.preflight import (
    Status,
    demand,
    run_command_preflight,
    run_preflight,
)
from kvtrace_cli.capture.vllm_version import is_supported_vllm
from kvtrace_cli.config import EngineConfig, ExecConfig, Observer, PatchAt, RecordingConfig
from kvtrace_cli.errors import ConfigError

H200 = Gpu("NVIDIA H200", "580.1", 143771, 143000, "9.0")
GB10 = Gpu("NVIDIA GB10", "580.1", None, None, "12.1")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine that has everything; tests take single things away."""
    monkeypatch.setattr(preflight, "list_gpus", lambda: [H200])
    monkeypatch.setattr(preflight, "cuda_driver_version", lambda: "13.0")
    versions = {"python": "3.12.0", "vllm": "0.26.0", "torch": "2.11.0"}
    monkeypatch.setattr(preflight, "probe_versions", lambda _python: versions)
    monkeypatch.delenv("CUDA_INJECTION64_PATH", raising=False)
    (tmp_path / "i.so").write_bytes(b"kvtrace-injector abi=1\0")
    (tmp_path / "s.so").touch()
    return RecordingConfig(injector=tmp_path / "i.so", sanitizer_library=tmp_path / "s.so")


def check(recording, name, **engine):
    found = run_preflight(EngineConfig(**engine), recording)
    return next(one for one in found.checks if one.name == name)


def test_a_machine_that_has_everything_passes(machine):
    found = run_preflight(EngineConfig(), machine)
    assert {one.status for one in found.checks} == {Status.OK}
    demand(found)


def test_each_rank_needs_a_gpu_if_all_are_here(machine, monkeypatch):
    assert check(machine, "gpus", arguments=("-tp", "2")).status is Status.FAIL
    monkeypatch.setattr(preflight, "list_gpus", lambda: [H200, H200])
    assert check(machine, "gpus", arguments=("-tp", "2")).status is Status.OK
    found = check(machine, "gpus", arguments=("-tp", "2", "-dp", "2"))
    assert (found.status, found.found) == (Status.FAIL, "2 for 4 ranks")
    for elsewhere in ("--nnodes=2", "--distributed-executor-backend=ray"):
        arguments = ("-tp", "4", elsewhere)
        assert "gpus" not in {
            one.name for one in run_preflight(EngineConfig(arguments=arguments), machine).checks
        }


def test_without_recording_neither_library_is_looked_for():
    found = run_preflight(EngineConfig(), RecordingConfig(enabled=False))
    assert not {"injector", "sanitizer library"} & {one.name for one in found.checks}


def test_all_that_is_missing_is_said_at_once(machine, monkeypatch):
    monkeypatch.setattr(preflight, "list_gpus", list)
    monkeypatch.setattr(preflight, "cuda_driver_version", lambda: None)
    monkeypatch.setattr(preflight, "probe_versions", lambda _python: {"vllm": None})
    machine.injector.unlink()
    with pytest.raises(ConfigError, match=r"injector: (.|\n)*driver: (.|\n)*vllm: .*--python"):
        demand(run_preflight(EngineConfig(), machine))


def test_memory_that_is_not_known_is_no_fault(machine, monkeypatch):
    monkeypatch.setattr(preflight, "list_gpus", lambda: [GB10])
    assert check(machine, "gpu").status is Status.OK


def test_a_full_gpu_is_a_warning(machine, monkeypatch):
    monkeypatch.setattr(preflight, "list_gpus", lambda: [Gpu("A", "1", 16000, 4000, "9.0")])
    found = check(machine, "gpu")
    assert found.status is Status.WARN
    assert "4000 MiB free, the KV cache alone wants 10240 MiB" in found.found


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--kv-cache-memory-bytes", "1G"), Status.OK),
        (("--kv-cache-memory-bytes=16G",), Status.WARN),
        (("--kv-cache-memory-bytes", "?"), Status.OK),
    ],
)
def test_the_memory_that_the_user_asks_for_is_what_counts(machine, monkeypatch, arguments, status):
    monkeypatch.setattr(preflight, "list_gpus", lambda: [Gpu("A", "1", 16000, 4000, "9.0")])
    assert check(machine, "gpu", arguments=arguments).status is status


def command_checks(recording, *command, **config):
    found = run_command_preflight(ExecConfig(command, recording=recording, **config))
    return {one.name: one for one in found.checks}


def test_a_command_needs_no_port_no_memory_and_no_vllm(machine, monkeypatch):
    monkeypatch.setattr(preflight, "list_gpus", lambda: [Gpu("A", "1", 16000, 10, "9.0")])
    checks = command_checks(machine, "true")
    assert {one.status for one in checks.values()} == {Status.OK}
    assert "port" not in checks
    assert "no Python program" in checks["vllm"].found


def test_the_interpreter_of_a_command_is_asked_for_versions(machine, monkeypatch):
    monkeypatch.setattr(preflight, "probe_versions", lambda python: {"vllm": f"0.26.{python}"})
    assert sys.executable in command_checks(machine, sys.executable, "-c", "")["vllm"].found
    given = command_checks(machine, "true", python=Path("/venv/python"))["vllm"]
    assert "0.26./venv/python" in given.found


def test_a_command_without_vllm_is_a_warning(machine, monkeypatch):
    monkeypatch.setattr(preflight, "probe_versions", lambda _python: {"vllm": None})
    found = command_checks(machine, sys.executable)["vllm"]
    assert (found.status, "has no vLLM" in found.found) == (Status.WARN, True)


def test_a_program_that_is_missing_is_refused(machine):
    found = run_command_preflight(ExecConfig(("no-such-program",), recording=machine))
    with pytest.raises(
        ConfigError, match="command: no-such-program: no such program, or not executable; give"
    ):
        demand(found)


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("0.19.9", False),
        ("0.20.0", True),
        ("0.26.0+cu130", True),
        ("0.33.1", True),
        ("0.34.0rc1", False),
        ("1.0", False),
        ("dev", False),
    ],
)
def test_the_vllm_versions_that_are_known(version, supported):
    assert is_supported_vllm(version) is supported


def test_another_vllm_is_a_warning(machine, monkeypatch):
    monkeypatch.setattr(preflight, "probe_versions", lambda _python: {"vllm": "0.99"})
    found = check(machine, "vllm")
    assert found.status is Status.WARN
    assert "0.20 to 0.33" in found.next_step


def test_an_interpreter_that_fails_shows_its_last_line(machine, monkeypatch, tmp_path):
    monkeypatch.undo()
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho one >&2; echo two >&2; exit 3\n")
    script.chmod(0o755)
    found = check(machine, "vllm", python=script)
    assert found.status is Status.FAIL
    assert "exit status 3: two" in found.found


def test_a_port_is_checked_only_if_given(machine):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert check(machine, "port", port=port).status is Status.FAIL
    assert check(machine, "port", port=port).status is Status.OK
    assert "port" not in {one.name for one in run_preflight(EngineConfig(), machine).checks}


def test_disk_space_is_that_of_the_nearest_directory_that_exists(machine, tmp_path):
    found = run_preflight(EngineConfig(), machine, tmp_path / "a/b")
    assert found.checks[-1].found.endswith(f"MiB free in {tmp_path}")


def test_gpus_are_read_from_nvidia_smi():
    text = "NVIDIA H200, 580.1, 143771, 143000, 9.0\nNVIDIA GB10, 580.1, [N/A], [N/A], 12.1\n"
    assert parse_gpus(text + "\nFailed to initialize NVML\n") == [H200, GB10]


def test_an_emulated_engine_needs_neither_gpu_nor_vllm(machine, monkeypatch):
    monkeypatch.setattr(preflight, "list_gpus", list)
    monkeypatch.setattr(preflight, "cuda_driver_version", lambda: None)
    monkeypatch.setattr(preflight, "probe_versions", lambda _python: {"vllm": None})
    found = run_preflight(EngineConfig(engine="emulator"), machine, emulated=True)
    assert [one.name for one in found.checks] == ["injector", "emulator library", "disk space"]
    demand(found)
    assert found.sanitizer_library == machine.sanitizer_library
    assert found.gpus == []


def test_patching_after_a_launch_is_refused_where_it_hangs(machine):
    late = replace(machine, patch_at=PatchAt.FIRST_LAUNCH_END)
    assert check(late, "--patch-at").status is Status.FAIL
    command = ExecConfig(command=("true",), recording=late)
    assert "--patch-at" in {one.name for one in run_command_preflight(command).failed}
    for found in (
        run_preflight(EngineConfig(), late, emulated=True),
        run_command_preflight(command, emulated=True),
    ):
        assert "--patch-at" not in {one.name for one in found.checks}


def test_a_missing_emulator_library_says_how_to_build_it(machine):
    machine.sanitizer_library.unlink()
    found = run_preflight(EngineConfig(engine="emulator"), machine, emulated=True)
    assert [one.name for one in found.failed] == ["emulator library"]
    assert "make emulator" in found.failed[0].next_step


def test_the_cupti_observer_needs_its_own_libraries(machine, tmp_path):
    library = tmp_path / "libcupti.so.13"
    library.touch()
    recording = replace(machine, observer=Observer.CUPTI, cupti_library=library)
    found = run_preflight(EngineConfig(), recording)
    assert (found.cupti_library, found.sanitizer_library) == (library, None)
    library.unlink()
    assert check(recording, "CUPTI library").status is Status.FAIL
    recording = replace(recording, injector=None)
    assert "libkvtrace_cupti.so" in check(recording, "injector").found
