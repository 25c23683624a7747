"""A machine for `kvtrace run` without GPU and vLLM: stand-ins for all that it looks for."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
VERSIONS = '{"python": "3.12.0", "vllm": "0.26.0", "torch": "2.11.0"}'
GPU_LINE = "NVIDIA H200, 580.159.04, 143771, 143000, 9.0"


@dataclass(frozen=True)
class Machine:
    """Paths of the stand-ins, and the process ids the engine noted."""

    python: Path
    injector: Path
    sanitizer_library: Path
    pids: Path
    out: Path

    @property
    def options(self) -> list[str]:
        """The options of `kvtrace run` that name the stand-ins."""
        return [
            *("--model", "Qwen3-14B", "--weights", "dummy", "--out", str(self.out)),
            *("--python", str(self.python), "--injector", str(self.injector)),
            *("--sanitizer-library", str(self.sanitizer_library)),
        ]

    def left_behind(self) -> list[int]:
        """Return the engine's processes that still live; zombies do not."""
        noted = self.pids.read_text().split() if self.pids.exists() else []
        return [int(pid) for pid in noted if _is_alive(int(pid))]


def make_machine(directory: Path) -> tuple[Machine, dict[str, str]]:
    """Make the stand-ins; return them and the environment that goes with them."""
    machine = Machine(
        python=_script(directory / "python", _engine_script()),
        injector=directory / "libkvtrace_injector.so",
        sanitizer_library=directory / "libsanitizer-public.so",
        pids=directory / "pids",
        out=directory / "run",
    )
    machine.injector.write_bytes(b"\x7fELF\0kvtrace-injector abi=1 cuda=13.0 test\0")
    machine.sanitizer_library.touch()
    (directory / "bin").mkdir()
    _script(directory / "bin/nvidia-smi", f"#!/bin/sh\necho '{GPU_LINE}'\n")
    path = f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return machine, {"PATH": path, "KVTRACE_TEST_PIDS": str(machine.pids)}


def wait_until(condition, within_s: float = 20.0) -> None:
    """Wait for a condition of another process; fail if it never comes true."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)


def _engine_script() -> str:
    return (
        "#!/bin/sh\n"
        f"if [ \"$1\" = -c ]; then echo '{VERSIONS}'; exit; fi\n"
        f'exec {sys.executable} {FAKE_ENGINE} "$@"\n'
    )


def _script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
