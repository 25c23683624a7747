"""How an engine is started: its command and environment. One object for each engine."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvtrace_cli.capture.libraries import find_emulator_library
from kvtrace_cli.capture.model import Model
from kvtrace_cli.config import EngineConfig, RunConfig, Weights
from kvtrace_cli.errors import ConfigError


class Engine(Protocol):
    """What the launcher needs to know of an engine."""

    @property
    def name(self) -> str:
        """The value of `--engine` that stands for it."""

    @property
    def is_emulated(self) -> bool:
        """Whether it plays a GPU instead of using one."""

    def command(self, config: RunConfig, model: Model, port: int) -> list[str]:
        """Return the command line of a server on 127.0.0.1:port."""

    def environment(self, base: Mapping[str, str], model: Model) -> dict[str, str]:
        """Return the environment to start it in; the user's own values win."""


@dataclass(frozen=True)
class VllmEngine:
    """vLLM's own server, in the set-up whose counts are known by hand."""

    name: str = "vllm"
    is_emulated: bool = False

    def command(self, config: RunConfig, model: Model, port: int) -> list[str]:
        """Return `python -m vllm... serve` with every setting spelled out, the user's last."""
        engine = config.engine
        compilation = {
            "cudagraph_mode": engine.cudagraph_mode,
            "cudagraph_capture_sizes": list(engine.capture_sizes),
        }
        command = [str(engine.python), "-m", "vllm.entrypoints.cli.main", "serve", model.source]
        command += ["--served-model-name", model.served_name]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--dtype", engine.dtype]
        if model.weights is Weights.DUMMY:
            command += ["--load-format", "dummy"]
        command += ["--generation-config", "vllm"]
        command += ["--max-model-len", str(config.max_model_len)]
        command += ["--max-num-seqs", str(engine.max_num_seqs)]
        command += ["--max-num-batched-tokens", str(engine.max_num_batched_tokens)]
        command += ["--kv-cache-memory-bytes", str(engine.kv_cache_memory_bytes)]
        caching = "enable" if engine.prefix_caching else "no-enable"
        command += [f"--{caching}-prefix-caching", "--async-scheduling"]
        command += ["--attention-backend", engine.attention_backend]
        command += _flash_attention(engine)
        command += ["--compilation-config", json.dumps(compilation, separators=(",", ":"))]
        # Autotune is a large step before anything else: events that answer no question.
        command += ["--no-enable-flashinfer-autotune"]
        # The default of 0 s kills the engine before it ends in order.
        command += ["--shutdown-timeout", str(config.limits.shutdown_s)]
        return [*command, *engine.arguments]

    def environment(self, base: Mapping[str, str], model: Model) -> dict[str, str]:
        """Return `base` with vLLM's settings where the user made none."""
        environment = dict(base)
        environment.setdefault("VLLM_NO_USAGE_STATS", "1")
        environment.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        let_engine_end(environment)
        environment.setdefault("PYTHONUNBUFFERED", "1")
        if model.weights is Weights.DUMMY:
            environment.setdefault("HF_HUB_OFFLINE", "1")
        return _with_absolute_python_path(environment)


@dataclass(frozen=True)
class EmulatorEngine:
    """kvtrace's own stand-in: it needs no GPU, and launches what vLLM would launch."""

    name: str = "emulator"
    is_emulated: bool = True

    def command(self, config: RunConfig, model: Model, port: int) -> list[str]:
        """Return `python -m kvtrace_cli.emulator serve`; that interpreter has kvtrace then."""
        engine = config.engine
        command = [str(engine.python), "-m", "kvtrace_cli.emulator", "serve", model.source]
        command += ["--served-model-name", model.served_name]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--max-model-len", str(config.max_model_len)]
        command += ["--max-num-seqs", str(engine.max_num_seqs)]
        command += ["--max-num-batched-tokens", str(engine.max_num_batched_tokens)]
        command += ["--capture-sizes", ",".join(map(str, engine.capture_sizes))]
        if engine.prefix_caching:
            command += ["--enable-prefix-caching"]
        command += _flash_attention(engine)
        if config.recording.sanitizer_library is not None:
            library = find_emulator_library(config.recording.sanitizer_library)
            command += ["--library", str(library)]
        return [*command, *engine.arguments]

    def environment(self, base: Mapping[str, str], model: Model) -> dict[str, str]:  # noqa: ARG002  the protocol's
        """Return `base`; the emulated engine has no settings there."""
        environment = dict(base)
        environment.setdefault("PYTHONUNBUFFERED", "1")
        return _with_absolute_python_path(environment)


ENGINES: dict[str, Engine] = {engine.name: engine for engine in (VllmEngine(), EmulatorEngine())}


def find_engine(name: str) -> Engine:
    """Return the engine that `--engine` names.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in ENGINES:
        raise ConfigError(f"--engine: found {name}, expected one of {', '.join(ENGINES)}")
    return ENGINES[name]


def let_engine_end(environment: dict[str, str]) -> None:
    """Give vLLM's processes time to end in order, unless the user said how much.

    Its front end waits so long for its engine, and its engine for its workers, before it kills
    them, and what a process that is killed did last may not be recorded.
    """
    environment.setdefault("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", "20")


def _flash_attention(engine: EngineConfig) -> list[str]:
    version = engine.flash_attention
    return [] if version is None else [f"--attention-config.flash_attn_version={version}"]


def _with_absolute_python_path(environment: dict[str, str]) -> dict[str, str]:
    """Resolve PYTHONPATH: the engine does not run in the user's working directory."""
    entries = environment.get("PYTHONPATH")
    if entries:
        absolute = [str(Path(entry).absolute()) for entry in entries.split(os.pathsep) if entry]
        environment["PYTHONPATH"] = os.pathsep.join(absolute)
    return environment
