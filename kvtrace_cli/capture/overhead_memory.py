"""What a server takes of the card's memory: how many fit, and what each of them has taken."""

import json
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvtrace_cli.capture.gpus import Gpu
from kvtrace_cli.capture.model import Model, resolve_model
from kvtrace_cli.config import Weights
from kvtrace_cli.errors import ConfigError

_MIB: Final = 1024**2
_QUERY_TIMEOUT_S: Final = 30
# Context, graphs and what a step computes with. Four servers of Qwen3-14B with 2 GiB for the KV
# cache ran side by side on a card of 140 GiB.
_MARGIN_MIB: Final = 3072
# Of its part of the card a server asks that so much is free when it starts.
_ASKED_SHARE: Final = 0.8
_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class ModelSize:
    """Bytes of a model's weights, and of the KV cache for a token; null where not known."""

    weights: int | None = None
    kv_token: int | None = None


def model_size(model: Model, dtype: str) -> ModelSize:
    """Return the size of a dense decoder, from its config.json; of others nothing is known."""
    config = _config(model)
    width = _BYTES.get(dtype)
    if config is None or width is None or any("expert" in name for name in config):
        return ModelSize()
    try:
        hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
        heads = int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head = int(config.get("head_dim") or hidden // heads)
        matrices = 2 * hidden * head * (heads + kv_heads)
        matrices += 3 * hidden * int(config["intermediate_size"])
        embeddings = 1 if config.get("tie_word_embeddings") else 2
        weights = layers * matrices + embeddings * int(config["vocab_size"]) * hidden
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return ModelSize()
    return ModelSize(weights * width, 2 * layers * kv_heads * head * width)


def servers_that_fit(gpus: list[Gpu], size: ModelSize, kv_cache_bytes: int | None) -> int | None:
    """Return how many servers fit on the first card at once; null if that is not known."""
    free = gpus[0].memory_free_mib if gpus else None
    if free is None or size.weights is None or kv_cache_bytes is None:
        return None
    return max(1, free // ((size.weights + kv_cache_bytes) // _MIB + _MARGIN_MIB))


def asked_share(at_once: int) -> float | None:
    """Return the share of the card's memory that each of some servers may insist on.

    Null for one alone: the engine's own default is for such.
    """
    return None if at_once == 1 else _ASKED_SHARE / at_once


def used_gpu_mib(pids: Collection[int]) -> int | None:
    """Return the GPU memory that these processes use, MiB, as nvidia-smi says; null if not told."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_used_mib(answer.stdout, pids)


def parse_used_mib(text: str, pids: Collection[int]) -> int | None:
    """Add up the lines `pid, MiB` of these processes; null if there are none."""
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    used = [
        int(row[1])
        for row in rows
        if len(row) == 2 and all(part.isdigit() for part in row) and int(row[0]) in pids  # noqa: PLR2004  pid, memory
    ]
    return sum(used) if used else None


def _config(model: Model) -> dict[str, Any] | None:
    source = model.source
    if not model.is_local:
        try:
            source = resolve_model(source, Weights.DUMMY).source
        except ConfigError:
            return None
    try:
        found = json.loads((Path(source) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
