"""What GPUs and which driver this machine has; never creates a CUDA context."""

import ctypes
import shutil
import subprocess
from dataclasses import dataclass

_QUERY = "name,driver_version,memory.total,memory.free,compute_cap"
_QUERY_TIMEOUT_S = 30


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi names it; null where it does not know, as of unified memory."""

    name: str
    driver_version: str
    memory_total_mib: int | None
    memory_free_mib: int | None
    compute_capability: str


def list_gpus() -> list[Gpu]:
    """Ask nvidia-smi; an empty list if there is none or it fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_gpus(answer.stdout)


def parse_gpus(text: str) -> list[Gpu]:
    """Read nvidia-smi's CSV, memory in MiB; lines of another shape are left out."""
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    width = len(_QUERY.split(","))
    return [
        Gpu(row[0], row[1], _number(row[2]), _number(row[3]), row[4])
        for row in rows
        if len(row) == width
    ]


def cuda_driver_version() -> str | None:
    """Return the CUDA version of libcuda.so.1, such as 13.0; null if it cannot be loaded."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int(0)
    # The one call of the driver API that needs no cuInit.
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
