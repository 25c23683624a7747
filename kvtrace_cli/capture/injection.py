"""Tell the injector what to record, and compose the environment that loads it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvtrace_cli.config import Bind, Patch, PatchAt, Record, RecordingConfig
from kvtrace_cli.dumps import abi
from kvtrace_cli.errors import ConfigError

CONFIG_VARIABLE = "KVTRACE_CONFIG"
INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"
PRELOAD_VARIABLE = "LD_PRELOAD"
# The emulator's: a module may be patched from a launch's callback, where a GPU's driver hangs.
LATE_PATCHING_VARIABLE = "KVTRACE_EMULATOR_LATE_PATCHING"

_BIND_MODES = {
    Bind.EVERY_FUNCTION: "KVTRACE_BIND_EVERY_FUNCTION",
    Bind.TARGET_ONLY: "KVTRACE_BIND_TARGET_ONLY",
}


_RECORD_FLAGS = {
    Record.NONE: ("KVTRACE_CONFIG_NO_PATCH",),
    Record.BLOCKS: (),
    Record.WRITES: ("KVTRACE_CONFIG_WRITES",),
    Record.ALL_WRITES: ("KVTRACE_CONFIG_WRITES", "KVTRACE_CONFIG_ALL_WRITES"),
}


def write_injector_config(
    path: Path,
    recording: RecordingConfig,
    *,
    raw_dir: Path,
    sanitizer_library: Path,
    emulated: bool = False,
) -> None:
    """Write the `kvtrace_config` that KVTRACE_CONFIG names.

    Args:
        path: the file to write.
        recording: what to record.
        raw_dir: absolute directory that the injector writes to.
        sanitizer_library: absolute path of libsanitizer-public.so, or of its stand-in.
        emulated: whether the engine is the emulator; every file will say so.

    Raises:
        ConfigError: a path or a name is too long for the structure, or there are too many kernels.
    """
    most = abi.constant("KVTRACE_MAX_TARGETS")
    if len(recording.kernels) > most:
        raise ConfigError(
            f"--kernel: found {len(recording.kernels)} names, expected {most} or less"
        )
    config = abi.ffi().new(f"{abi.CONFIG_STRUCT} *")
    config.magic = abi.constant("KVTRACE_CONFIG_MAGIC")
    config.abi_version = abi.constant("KVTRACE_ABI_VERSION")
    config.struct_size = abi.size_of(abi.CONFIG_STRUCT)
    config.ring_events = recording.ring_events
    config.launch_records = recording.launch_records
    config.flags = _flags(recording, emulated=emulated)
    config.bind_mode = abi.constant(_BIND_MODES[recording.bind])
    config.drain_interval_us = recording.drain_interval_us
    config.target_count = len(recording.kernels)
    _set_text(config.output_dir, str(raw_dir), "--out")
    _set_text(config.sanitizer_library, str(sanitizer_library), "--sanitizer-library")
    for slot, kernel in enumerate(recording.kernels):
        _set_text(config.targets[slot], kernel, "--kernel")
    path.write_bytes(bytes(abi.ffi().buffer(config)))


def write_activity_config(
    path: Path, recording: RecordingConfig, *, raw_dir: Path, cupti_library: Path
) -> None:
    """Write the `kvtrace_activity_config` that KVTRACE_CONFIG names, for the CUPTI observer.

    Args:
        path: the file to write.
        recording: what to record.
        raw_dir: absolute directory that the observer writes to.
        cupti_library: absolute path of libcupti.

    Raises:
        ConfigError: a path is too long for the structure.
    """
    config = abi.ffi().new(f"{abi.ACTIVITY_CONFIG_STRUCT} *")
    config.magic = abi.constant("KVTRACE_ACTIVITY_CONFIG_MAGIC")
    config.abi_version = abi.constant("KVTRACE_ABI_VERSION")
    config.struct_size = abi.size_of(abi.ACTIVITY_CONFIG_STRUCT)
    config.buffer_count = recording.activity_buffers
    config.buffer_bytes = recording.activity_buffer_bytes
    config.flush_period_ms = recording.activity_flush_ms
    _set_text(config.output_dir, str(raw_dir), "--out")
    _set_text(config.cupti_library, str(cupti_library), "--cupti-library")
    path.write_bytes(bytes(abi.ffi().buffer(config)))


def check_environment(base: Mapping[str, str], recording: RecordingConfig, injector: Path) -> None:
    """Refuse an environment in which our injector would not be the one that is loaded.

    Raises:
        ConfigError: another tool claims the injection variable, or the preload list cannot hold
            the path of the injector.
    """
    other = base.get(INJECTION_VARIABLE)
    if recording.injection and other and other != str(injector):
        raise ConfigError(
            f"{INJECTION_VARIABLE}: already set to {other}, and the driver loads one library only; "
            "unset it, or keep it and load kvtrace with --no-injection --preload"
        )
    if recording.preload and set(" :\t").intersection(str(injector)):
        raise ConfigError(
            f"--preload: {injector} has a space or a colon in its path, which {PRELOAD_VARIABLE} "
            "cannot express; move it, or leave --preload out"
        )


def compose_environment(
    base: Mapping[str, str], recording: RecordingConfig, *, injector: Path, config_path: Path
) -> dict[str, str]:
    """Return `base` with what loads the injector into the engine.

    Raises:
        ConfigError: see `check_environment`.
    """
    check_environment(base, recording, injector)
    environment = dict(base)
    environment[CONFIG_VARIABLE] = str(config_path)
    if recording.injection:
        environment[INJECTION_VARIABLE] = str(injector)
    if recording.preload:
        theirs = base.get(PRELOAD_VARIABLE)
        environment[PRELOAD_VARIABLE] = f"{injector}:{theirs}" if theirs else str(injector)
    if recording.patch_at is PatchAt.FIRST_LAUNCH_END:
        # Only ever an emulated engine, see the preflight: there it is allowed to be shown.
        environment[LATE_PATCHING_VARIABLE] = "1"
    return environment


def _flags(recording: RecordingConfig, *, emulated: bool) -> int:
    flags = abi.constant("KVTRACE_CONFIG_EMULATED") if emulated else 0
    if recording.one_shot:
        flags |= abi.constant("KVTRACE_CONFIG_ONE_SHOT")
    if not recording.stamps:
        flags |= abi.constant("KVTRACE_CONFIG_NO_STAMPS")
    if recording.patch_at is PatchAt.FIRST_LAUNCH_END:
        flags |= abi.constant("KVTRACE_CONFIG_PATCH_AT_FIRST_LAUNCH_END")
    if recording.patch is Patch.NO_OP:
        flags |= abi.constant("KVTRACE_CONFIG_NO_OP_PATCH")
    if recording.switched:
        flags |= abi.constant("KVTRACE_CONFIG_SWITCHED")
    for name in _RECORD_FLAGS[recording.record]:
        flags |= abi.constant(name)
    return flags


def _set_text(field: Any, text: str, option: str) -> None:
    """Fill a NUL-terminated text field."""
    encoded = text.encode()
    room = len(field) - 1
    if len(encoded) > room:
        raise ConfigError(
            f"{option}: {text[:40]}... is {len(encoded)} bytes long, expected {room} or less"
        )
    abi.ffi().memmove(field, encoded, len(encoded))
