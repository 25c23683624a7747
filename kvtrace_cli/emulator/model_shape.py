"""What of a model's config.json decides its launches, its KV cache and its answers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtrace_cli.errors import ConfigError

_ELEMENT_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class ModelShape:
    """Sizes as config.json has them; `element_size` in bytes, of the `dtype`."""

    layers: int
    vocabulary: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def element_size(self) -> int:
        """Bytes of one number in the KV cache."""
        return _ELEMENT_SIZES[self.dtype]


def read_shape(model: Path) -> ModelShape:
    """Read the shape from a model's config.json.

    Raises:
        ConfigError: there is none, or it lacks a size, or its dtype is not known here.
    """
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return ModelShape(
            layers=int(config["num_hidden_layers"]),
            vocabulary=int(config["vocab_size"]),
            kv_heads=int(config["num_key_value_heads"]),
            head_dim=_head_dim(config),
            dtype=_dtype(config),
        )
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise ConfigError(
            f"{path}: cannot be used ({error!r}); expected a model's config.json with "
            "num_hidden_layers, vocab_size, num_key_value_heads and head_dim"
        ) from error


def _head_dim(config: dict[str, Any]) -> int:
    """Return the size of a head, which older models leave to be computed."""
    if config.get("head_dim"):
        return int(config["head_dim"])
    return int(config["hidden_size"]) // int(config["num_attention_heads"])


def _dtype(config: dict[str, Any]) -> str:
    dtype = config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    if dtype not in _ELEMENT_SIZES:
        raise ValueError(f"torch_dtype: found {dtype!r}, expected {', '.join(_ELEMENT_SIZES)}")
    return str(dtype)
