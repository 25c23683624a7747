"""Look at this machine before a run, so that what cannot work fails in a second, not in minutes."""

import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from kvtrace_cli.capture.engine_memory import kv_cache_memory_bytes
from kvtrace_cli.capture.gpus import Gpu, cuda_driver_version, list_gpus
from kvtrace_cli.capture.injection import check_environment
from kvtrace_cli.capture.libraries import (
    CUPTI_INJECTOR_NAME,
    INJECTOR_NAME,
    Injector,
    find_cupti_library,
    find_emulator_library,
    find_injector,
    find_sanitizer_library,
)
from kvtrace_cli.capture.parallel import AskedParallel, asked_parallel
from kvtrace_cli.capture.program import find_program, interpreter_of
from kvtrace_cli.capture.vllm_version import (
    NEWEST_VLLM,
    OLDEST_VLLM,
    is_supported_vllm,
    probe_versions,
)
from kvtrace_cli.config import EngineConfig, ExecConfig, Observer, PatchAt, RecordingConfig
from kvtrace_cli.dumps import abi
from kvtrace_cli.errors import ConfigError

MIB = 1024**2
# The model comes on top, and so does what the engine needs to compute.
_MEMORY_MARGIN_MIB = 2048
_DISK_WANTED_MIB = 1024
_DISK_LEAST_MIB = 128


class Status(str, Enum):
    """What a check came to."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One thing looked at: what was found, and what to do about it unless it is ok."""

    name: str
    status: Status
    found: str
    next_step: str | None = None


@dataclass
class Preflight:
    """All checks, and what was found on the way that a run needs."""

    checks: list[Check] = field(default_factory=list)
    injector: Injector | None = None
    sanitizer_library: Path | None = None
    cupti_library: Path | None = None
    gpus: list[Gpu] = field(default_factory=list)
    cuda_driver: str | None = None
    versions: dict[str, str | None] = field(default_factory=dict)

    @property
    def failed(self) -> list[Check]:
        """The checks without which a run cannot work."""
        return [check for check in self.checks if check.status is Status.FAIL]


def run_preflight(
    engine: EngineConfig,
    recording: RecordingConfig,
    out: Path | None = None,
    *,
    emulated: bool = False,
) -> Preflight:
    """Check everything such a run needs; never raises for what it finds.

    An emulated engine needs neither GPU nor vLLM, so neither is looked for.
    """
    found = Preflight()
    _check_libraries(recording, found, emulated=emulated)
    if not emulated:
        found.checks += _check_patching_point(recording)
        found.checks += [
            _check_driver(found),
            _check_gpus(kv_cache_memory_bytes(engine), found),
            *_check_gpu_count(asked_parallel(engine.arguments), found),
        ]
        found.checks.append(_check_vllm(engine.python, found))
    if engine.port is not None:
        found.checks.append(_check_port(engine.port))
    found.checks.append(_check_disk(out or Path.cwd()))
    return found


def run_command_preflight(config: ExecConfig, *, emulated: bool = False) -> Preflight:
    """Check what recording a command of the user's needs; never raises for what it finds.

    Which vLLM it uses, if any, is its own matter: it is looked for to be written down.
    """
    found = Preflight()
    program = find_program(config.command[0])
    found.checks.append(_check_program(config.command[0], program))
    _check_libraries(config.recording, found, emulated=emulated)
    if not emulated:
        found.checks += _check_patching_point(config.recording)
        found.checks += [_check_driver(found), _check_gpus(None, found)]
        found.checks.append(_note_vllm(config.python, program, found))
    found.checks.append(_check_disk(config.out or Path.cwd()))
    return found


def demand(preflight: Preflight) -> None:
    """Refuse to start a run that cannot work.

    Raises:
        ConfigError: a check failed; the message has each with its next step.
    """
    failed = preflight.failed
    if failed:
        lines = [f"{check.name}: {check.found}; {check.next_step}" for check in failed]
        raise ConfigError("this run cannot work here:\n  " + "\n  ".join(lines))


def _check_patching_point(recording: RecordingConfig) -> Iterator[Check]:
    """Refuse what hung in every program that was tried on a GPU: a server must never be blocked."""
    if recording.patch_at is not PatchAt.MODULE_LOAD:
        yield Check(
            "--patch-at",
            Status.FAIL,
            f"{recording.patch_at.value}, which makes the engine hang on a GPU",
            "leave it out, or see the lost blocks with --engine emulator",
        )


def _check_libraries(recording: RecordingConfig, found: Preflight, *, emulated: bool) -> None:
    if recording.enabled:
        found.checks.append(_check_injector(recording, found))
    if emulated:
        found.checks.append(_check_emulator(recording, found))
        found.versions = {"python": platform.python_version()}
    elif recording.enabled and recording.observer is Observer.CUPTI:
        found.checks.append(_check_cupti(recording, found))
    elif recording.enabled:
        found.checks.append(_check_sanitizer(recording, found))


def _check_program(name: str, program: Path | None) -> Check:
    if program is not None:
        return Check("command", Status.OK, str(program))
    return Check(
        "command",
        Status.FAIL,
        f"{name}: no such program, or not executable",
        "give a program that is in PATH, or its path, after `--`",
    )


def _check_injector(recording: RecordingConfig, found: Preflight) -> Check:
    is_cupti = recording.observer is Observer.CUPTI
    target = "cupti" if is_cupti else "injector"
    name = CUPTI_INJECTOR_NAME if is_cupti else INJECTOR_NAME
    try:
        injector = find_injector(recording.injector, name, target)
        check_environment(os.environ, recording, injector.path)
    except ConfigError as error:
        return _failure("injector", error)
    found.injector = injector
    expected = abi.constant("KVTRACE_ABI_VERSION")
    if injector.abi_version is None:
        return Check(
            "injector",
            Status.WARN,
            f"{injector.path} carries no build stamp",
            f"build it again with `make {target}` if the run records nothing",
        )
    if injector.abi_version != expected:
        return Check(
            "injector",
            Status.FAIL,
            f"{injector.path} speaks ABI {injector.abi_version}, this kvtrace {expected}",
            f"build it again with `make {target}`",
        )
    return Check("injector", Status.OK, f"{injector.path} ({injector.build})")


def _check_sanitizer(recording: RecordingConfig, found: Preflight) -> Check:
    try:
        found.sanitizer_library = find_sanitizer_library(recording.sanitizer_library)
    except ConfigError as error:
        return _failure("sanitizer library", error)
    return Check("sanitizer library", Status.OK, str(found.sanitizer_library))


def _check_cupti(recording: RecordingConfig, found: Preflight) -> Check:
    try:
        found.cupti_library = find_cupti_library(recording.cupti_library)
    except ConfigError as error:
        return _failure("CUPTI library", error)
    return Check("CUPTI library", Status.OK, str(found.cupti_library))


def _check_emulator(recording: RecordingConfig, found: Preflight) -> Check:
    try:
        found.sanitizer_library = find_emulator_library(recording.sanitizer_library)
    except ConfigError as error:
        return _failure("emulator library", error)
    return Check("emulator library", Status.OK, str(found.sanitizer_library))


def _check_driver(found: Preflight) -> Check:
    found.cuda_driver = cuda_driver_version()
    found.gpus = list_gpus()
    if found.cuda_driver is not None:
        return Check("driver", Status.OK, f"libcuda.so.1 for CUDA {found.cuda_driver}")
    if found.gpus:
        return Check(
            "driver",
            Status.WARN,
            "nvidia-smi answers, but libcuda.so.1 cannot be loaded",
            "make libcuda.so.1 visible to the loader (in a container: the compute capability)",
        )
    return Check(
        "driver",
        Status.FAIL,
        "no libcuda.so.1 and no answer from nvidia-smi",
        "record on a machine with an NVIDIA GPU; reading a run needs none",
    )


def _check_gpus(kv_cache_bytes: int | None, found: Preflight) -> Check:
    """See whether the KV cache fits, if its size is known."""
    if not found.gpus:
        return Check(
            "gpu", Status.WARN, "nvidia-smi names none", "see whether `nvidia-smi` works here"
        )
    names = ", ".join(f"{gpu.name} (sm {gpu.compute_capability})" for gpu in found.gpus)
    wanted = 0 if kv_cache_bytes is None else kv_cache_bytes // MIB + _MEMORY_MARGIN_MIB
    free = [gpu.memory_free_mib for gpu in found.gpus if gpu.memory_free_mib is not None]
    if free and max(free) < wanted:
        return Check(
            "gpu",
            Status.WARN,
            f"{names}: {max(free)} MiB free, the KV cache alone wants {wanted} MiB",
            "end what else runs on it, or ask for less: -- --kv-cache-memory-bytes N",
        )
    return Check("gpu", Status.OK, names + (f", {max(free)} MiB free" if free else ""))


def _check_gpu_count(asked: AskedParallel, found: Preflight) -> Iterator[Check]:
    """See whether each rank can have a GPU, if there are several ranks and all of them here."""
    ranks = asked.sizes.total
    if ranks == 1 or asked.is_partial or asked.uses_ray or not found.gpus:
        return
    gpus = f"{len(found.gpus)} for {ranks} ranks"
    if len(found.gpus) >= ranks:
        yield Check("gpus", Status.OK, gpus)
    else:
        yield Check(
            "gpus",
            Status.FAIL,
            gpus,
            "ask for fewer ranks, or spread them over several nodes: docs/ranks.md",
        )


def _note_vllm(given: Path | None, program: Path | None, found: Preflight) -> Check:
    """Write the versions down; a command without vLLM may be meant so."""
    python = given or (interpreter_of(program) if program is not None else None)
    if python is None:
        return Check(
            "vllm", Status.OK, "not looked for: the command is no Python program (see --python)"
        )
    check = _check_vllm(python, found)
    return replace(check, status=Status.WARN) if check.status is Status.FAIL else check


def _check_vllm(python: Path, found: Preflight) -> Check:
    try:
        found.versions = probe_versions(python)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Check(
            "vllm",
            Status.FAIL,
            f"{python} does not run: {error}",
            "name the Python interpreter that has vLLM with --python",
        )
    version = found.versions.get("vllm")
    if version is None:
        return Check(
            "vllm",
            Status.FAIL,
            f"{python} has no vLLM",
            "name the Python interpreter that has vLLM with --python, or install it there",
        )
    text = f"vLLM {version}, torch {found.versions.get('torch') or 'absent'}"
    if not is_supported_vllm(version):
        oldest, newest = (".".join(map(str, part)) for part in (OLDEST_VLLM, NEWEST_VLLM))
        return Check(
            "vllm",
            Status.WARN,
            text,
            f"kvtrace knows {oldest} to {newest}; check that the kernel and the flags still exist",
        )
    return Check("vllm", Status.OK, text)


def _check_port(port: int) -> Check:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Check(
                "port",
                Status.FAIL,
                f"127.0.0.1:{port}: {error.strerror}",
                "choose another --port, or leave it out for a free one",
            )
    return Check("port", Status.OK, f"127.0.0.1:{port} is free")


def _check_disk(out: Path) -> Check:
    place = out.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free // MIB
    if free < _DISK_LEAST_MIB:
        status = Status.FAIL
    else:
        status = Status.WARN if free < _DISK_WANTED_MIB else Status.OK
    step = None if status is Status.OK else "choose another --out, or make room"
    return Check("disk space", status, f"{free} MiB free in {place}", step)


def _failure(name: str, error: ConfigError) -> Check:
    found, _, step = str(error).partition("; ")
    return Check(name, Status.FAIL, found, step or None)
