"""A `kvtrace run` of a real `vllm serve` on the CPU, watched from outside through /proc."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ENGINE_TITLE = "VLLM::EngineCore"
WITHIN_S = 200.0
# The driver is the one check that a machine without GPU cannot pass.
GPU_LINE = "none (tests/vllm), 0, 0, 0, 0.0"
# Given last, so they override what `kvtrace run` asks of a GPU.
CPU_ARGUMENTS = (
    *("--enforce-eager", "--no-async-scheduling", "--attention-backend", "CPU_ATTN"),
    # The process tree of one GPU: the worker inside the engine's process.
    *("--distributed-executor-backend", "uni"),
    *("--kv-cache-memory-bytes", str(64 * 1024**2), "--block-size", "32"),
    "--skip-tokenizer-init",
)
TINY_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Setup:
    """What all runs of a test session share: the interpreter, the model, vLLM's cache."""

    python: Path
    model: Path
    environment: dict[str, str]


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it; the start time tells it from a later one of that number."""

    pid: int
    start_ticks: int
    parent: int
    session: int
    title: str


def make_setup(python: Path, directory: Path) -> Setup:
    model = directory / "tiny-qwen3"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(TINY_QWEN3))
    tool = directory / "bin/nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho '{GPU_LINE}'\n")
    tool.chmod(0o755)
    ours = ("CUDA_INJECTION64_PATH", "LD_PRELOAD", "VLLM_CPU_KVCACHE_SPACE")
    environment = {name: text for name, text in os.environ.items() if name not in ours}
    environment |= {
        "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
        "VLLM_CACHE_ROOT": str(directory / "cache"),
        # Keeps the CPU platform from turning "uni" into "mp"; the engine stays a child process.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    return Setup(python, model, environment)


class RealRun:
    """A `kvtrace run` in progress, and each process that its engine was seen to have."""

    def __init__(
        self, setup: Setup, directory: Path, *options: str, arguments: tuple[str, ...] = ()
    ) -> None:
        self.out = directory / "run"
        self._stdout, self._stderr = directory / "stdout", directory / "stderr"
        self._seen: set[Process] = set()
        command = [sys.executable, "-m", "kvtrace_cli", "run", "--out", str(self.out)]
        command += ["--model", str(setup.model), "--weights", "dummy"]
        command += ["--python", str(setup.python), *options]
        command += ["--", *CPU_ARGUMENTS, *arguments]
        with self._stdout.open("w") as out, self._stderr.open("w") as err:
            self._process = subprocess.Popen(
                command,
                env=setup.environment | {"PYTHONPATH": str(REPOSITORY)},
                cwd=directory,
                stdout=out,
                stderr=err,
            )

    @property
    def stdout(self) -> str:
        return self._stdout.read_text()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    @property
    def log(self) -> str:
        path = self.out / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def outcome(self) -> dict:
        return json.loads((self.out / "manifest.json").read_text())["outcome"]

    @property
    def requests(self) -> list[dict]:
        lines = (self.out / "requests.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def interrupt(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for something of the run, noting its processes; fail if the run ends first."""
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert self._process.poll() is None, f"ended early\n{self.stderr}"
            assert time.monotonic() < deadline, f"never happened\n{self.stderr}\n{self.log[-3000:]}"
            self.look()
            time.sleep(0.05)

    def wait(self) -> int:
        """Wait for its end, noting its processes; return the exit code."""
        deadline = time.monotonic() + WITHIN_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"never ended\n{self.stderr}"
            self.look()
            time.sleep(0.05)
        return self._process.returncode

    def end(self) -> None:
        """End it, in order if it can be: for a test that failed half-way."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=WITHIN_S)

    def look(self) -> list[Process]:
        """Return the engine's processes: its session, which no process of vLLM leaves."""
        processes = list(_processes())
        leaders = {
            one.pid
            for one in processes
            if one.parent == self._process.pid and one.session == one.pid
        }
        found = [one for one in processes if one.session in leaders]
        self._seen.update(found)
        return found

    def leader(self) -> Process | None:
        """Return vLLM's first process, which answers the requests."""
        return next((one for one in self.look() if one.pid == one.session), None)

    def engine_core(self) -> Process | None:
        """Return the process with the model, once vLLM has given it its name."""
        return next((one for one in self.look() if one.title.startswith(ENGINE_TITLE)), None)

    def seen_titles(self) -> set[str]:
        return {one.title for one in self._seen}

    def left_behind(self) -> list[str]:
        """Return what lives on: processes seen before, of the same session, or with our mark."""
        seen = {(one.pid, one.start_ticks) for one in self._seen}
        sessions = {one.session for one in self._seen}
        mark = f"KVTRACE_RUN_DIR={self.out}".encode()
        return [
            f"{one.pid} {one.title}"
            for one in _processes()
            if (one.pid, one.start_ticks) in seen
            or one.session in sessions
            or mark in _read(one.pid, "environ").split(b"\0")
        ]


def loads(process: Process, library: str) -> bool:
    """Say whether a process has a library mapped."""
    return library.encode() in _read(process.pid, "maps")


def _processes() -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        fields = _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()
        if fields and fields[0] != "Z":
            title = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
            yield Process(pid, int(fields[19]), int(fields[1]), int(fields[3]), title)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
