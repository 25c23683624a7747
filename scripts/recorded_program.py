"""What the scripts that measure the injector share: a program that is started under it."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from kvtrace_cli.capture.injection import write_injector_config
from kvtrace_cli.capture.libraries import find_injector, find_sanitizer_library
from kvtrace_cli.config import RecordingConfig
from kvtrace_cli.dumps.run_dir import RunDir

KERNELS = ("probe_target",)
VARIABLES = ("CUDA_INJECTION64_PATH", "KVTRACE_CONFIG", "LD_PRELOAD")


def clean_environment() -> dict[str, str]:
    """Return this process's variables without those of a recording."""
    return {name: text for name, text in os.environ.items() if name not in VARIABLES}


def recorded_environment(
    directory: Path, recording: RecordingConfig, *, emulated: bool = False
) -> dict[str, str]:
    """Make a directory for a recording; return the variables that record into it.

    Args:
        directory: does not exist yet; its folder raw takes the files.
        recording: what to record, and of which injector and Sanitizer library.
        emulated: whether the library is the emulator's.

    Raises:
        ConfigError: a library is not found.
    """
    run_dir = RunDir(directory.absolute())
    run_dir.raw.mkdir(parents=True)
    write_injector_config(
        run_dir.injector_config,
        recording,
        raw_dir=run_dir.raw,
        sanitizer_library=find_sanitizer_library(recording.sanitizer_library),
        emulated=emulated,
    )
    return clean_environment() | {
        "KVTRACE_CONFIG": str(run_dir.injector_config),
        "CUDA_INJECTION64_PATH": str(find_injector(recording.injector).path),
    }
