"""Find the shared libraries: our injectors, and NVIDIA's Sanitizer and CUPTI."""

import glob
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvtrace_cli.errors import ConfigError

INJECTOR_NAME = "libkvtrace_injector.so"
SANITIZER_NAME = "libsanitizer-public.so"
EMULATOR_NAME = "libkvtrace_emulator.so"
CUPTI_INJECTOR_NAME = "libkvtrace_cupti.so"
# The names that a package and a toolkit have for it.
CUPTI_NAMES = ("libcupti.so.13", "libcupti.so")
# Where releases of the nvidia-cuda-sanitizer-api package put it: 13.0, 13.5.
_PACKAGE_LAYOUTS = ("nvidia/cu13/lib", "nvidia/cu13/compute-sanitizer")
_CUPTI_PACKAGE_LAYOUTS = ("nvidia/cu13/lib", "nvidia/cuda_cupti/lib")
_CUPTI_TOOLKIT_LAYOUTS = ("extras/CUPTI/lib64", "lib64")
_TOOLKIT_LAYOUTS = ("compute-sanitizer", "extras/compute-sanitizer")
_BUILD_STAMP = re.compile(rb"kvtrace-(?:injector|cupti) abi=(\d+)[ -~]*")


@dataclass(frozen=True)
class Injector:
    """The injector's file and the build stamp in it; null where the file carries none."""

    path: Path
    abi_version: int | None
    build: str | None


def find_injector(
    given: Path | None, name: str = INJECTOR_NAME, target: str = "injector"
) -> Injector:
    """Find an injector: the one given, else the one of the installed package.

    Args:
        given: the user's choice.
        name: of its file.
        target: of `make`, that builds it.

    The working directory and the environment have no say: what is loaded into an engine must not
    depend on where kvtrace was started.

    Raises:
        ConfigError: there is none.
    """
    if given is not None:
        path = given.expanduser().absolute()
        if not path.is_file():
            raise ConfigError(f"--injector {given}: no such file; expected {name}")
    else:
        path = Path(__file__).parents[1] / "native" / name
        if not path.is_file():
            raise ConfigError(
                f"{name}: not found in {path.parent}; build it with `make {target}`, "
                "or name one with --injector"
            )
    stamp = _BUILD_STAMP.search(path.read_bytes())
    if stamp is None:
        return Injector(path, None, None)
    return Injector(path, int(stamp.group(1)), stamp.group(0).decode("ascii"))


def find_emulator_library(given: Path | None) -> Path:
    """Find the emulator, which is driver and Sanitizer library in one: the one given, else ours.

    Raises:
        ConfigError: there is none.
    """
    if given is not None:
        path = given.expanduser().absolute()
    else:
        path = Path(__file__).parents[1] / "native" / EMULATOR_NAME
    if not path.is_file():
        raise ConfigError(
            f"{EMULATOR_NAME}: not found at {path}; build it with `make emulator`, "
            "or name one with --sanitizer-library"
        )
    return path


def find_sanitizer_library(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Find libsanitizer-public.so: the one given, the Python package, then the CUDA toolkit.

    Raises:
        ConfigError: there is none; the message says how to get one.
    """
    if given is not None:
        path = given.expanduser().absolute()
        if not path.is_file():
            raise ConfigError(
                f"--sanitizer-library {given}: no such file; expected {SANITIZER_NAME}"
            )
        return path
    for directory in sanitizer_directories(sys.path, environment):
        if (directory / SANITIZER_NAME).is_file():
            return (directory / SANITIZER_NAME).absolute()
    raise ConfigError(
        f"{SANITIZER_NAME}: neither the nvidia-cuda-sanitizer-api package nor a CUDA toolkit has "
        "it; install `kvtrace[gpu]`, or name the file with --sanitizer-library"
    )


def sanitizer_directories(
    import_paths: Iterable[str], environment: Mapping[str, str]
) -> Iterator[Path]:
    """Yield every directory that may hold the library, best first."""
    for entry in import_paths:
        if entry:
            yield from (Path(entry) / layout for layout in _PACKAGE_LAYOUTS)
    for toolkit in _toolkits(environment):
        yield from (toolkit / layout for layout in _TOOLKIT_LAYOUTS)
    tool = shutil.which("compute-sanitizer", path=environment.get("PATH"))
    if tool:
        # In a toolkit's bin directory this is a link or a script beside the real one.
        yield Path(tool).resolve().parent
        yield from (Path(tool).resolve().parents[1] / layout for layout in _TOOLKIT_LAYOUTS)


def find_cupti_library(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Find libcupti: the one given, the Python package, then the CUDA toolkit.

    Raises:
        ConfigError: there is none; the message says how to get one.
    """
    if given is not None:
        path = given.expanduser().absolute()
        if not path.is_file():
            raise ConfigError(f"--cupti-library {given}: no such file; expected {CUPTI_NAMES[0]}")
        return path
    for directory in _cupti_directories(environment):
        for name in CUPTI_NAMES:
            if (directory / name).is_file():
                return (directory / name).absolute()
    raise ConfigError(
        f"{CUPTI_NAMES[0]}: neither the nvidia-cuda-cupti package nor a CUDA toolkit has it; "
        "install nvidia-cuda-cupti==13.0.*, or name the file with --cupti-library"
    )


def _cupti_directories(environment: Mapping[str, str]) -> Iterator[Path]:
    for entry in filter(None, sys.path):
        yield from (Path(entry) / layout for layout in _CUPTI_PACKAGE_LAYOUTS)
    for toolkit in _toolkits(environment):
        yield from (toolkit / layout for layout in _CUPTI_TOOLKIT_LAYOUTS)


def _toolkits(environment: Mapping[str, str]) -> list[Path]:
    home = [environment["CUDA_HOME"]] if environment.get("CUDA_HOME") else []
    installed = sorted(glob.glob("/usr/local/cuda-*"), reverse=True)  # noqa: PTH207
    return [Path(toolkit) for toolkit in (*home, "/usr/local/cuda", *installed)]
