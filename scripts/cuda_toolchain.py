#!/usr/bin/env python3
"""Find what the injectors are built with, and print it as make variables.

    python3 scripts/cuda_toolchain.py            NVCC=... CUDA_INCLUDE=... and so on
    python3 scripts/cuda_toolchain.py --install  first install what the machine lacks from packages

The machine's CUDA toolkit comes first ($CUDA_HOME, nvcc on PATH, /usr/local/cuda); then NVIDIA's
Python packages in this interpreter's environment. Headers of one origin are enough: the injector
links against nothing of CUDA.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# CUDA 13.0 builds for every architecture we name and its PTX runs on every CUDA 13 driver.
COMPILER_PACKAGES = (
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-nvvm==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
)
SANITIZER_PACKAGES = ("nvidia-cuda-sanitizer-api==13.0.85",)
# Records differ from release to release, and this is the one that engines bring.
CUPTI_PACKAGES = ("nvidia-cuda-cupti==13.0.*",)


def toolkit_roots() -> list[Path]:
    """Return the folders that may be a CUDA toolkit, most explicit first."""
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    nvcc = shutil.which("nvcc")
    if nvcc:
        roots.append(Path(nvcc).resolve().parents[1])
    roots += sorted(Path("/usr/local").glob("cuda*"), reverse=True)
    roots += [Path(sysconfig.get_path("platlib")) / "nvidia" / "cu13"]
    return roots


def first_file(*candidates: Path) -> Path | None:
    """Return the first of these that is a file."""
    return next((path for path in candidates if path.is_file()), None)


def find_nvcc() -> Path | None:
    """Return a compiler that has its front end and headers beside it."""
    for root in toolkit_roots():
        if first_file(root / "bin" / "nvcc") and first_file(root / "include" / "cuda_runtime.h"):
            return root / "bin" / "nvcc"
    return None


def find_header(name: str) -> Path | None:
    """Return the folder that holds a header."""
    below = (
        "include",
        "compute-sanitizer/include",
        "extras/compute-sanitizer/include",
        "extras/CUPTI/include",
    )
    for root in toolkit_roots():
        found = first_file(*(root / folder / name for folder in below))
        if found:
            return found.parent
    return None


def install(packages: tuple[str, ...]) -> None:
    """Install packages into this interpreter's environment."""
    print(f"installing {' '.join(packages)}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *packages], check=True)


def main() -> int:
    """Print the variables; 1 with a sentence if something is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--install", action="store_true", help="install what is missing")
    args = parser.parse_args()
    if args.install and (not find_nvcc() or not find_header("cuda.h")):
        install(COMPILER_PACKAGES)
    if args.install and not find_header("sanitizer.h"):
        install(SANITIZER_PACKAGES)
    if args.install and not find_header("cupti.h"):
        install(CUPTI_PACKAGES)
    found = {
        "NVCC": find_nvcc(),
        "CUDA_INCLUDE": find_header("cuda.h"),
        "SANITIZER_INCLUDE": find_header("sanitizer.h"),
        "CUPTI_INCLUDE": find_header("cupti.h"),
    }
    missing = [name for name, path in found.items() if path is None]
    if missing:
        print(
            f"not found: {', '.join(missing)}; install the CUDA 13 toolkit, or run this with "
            "--install to take NVIDIA's packages",
            file=sys.stderr,
        )
        return 1
    print(" ".join(f"{name}={path}" for name, path in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
