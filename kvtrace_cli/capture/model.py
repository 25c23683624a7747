"""Turn `--model NAME` into what the engine is given."""

import json
from dataclasses import dataclass
from pathlib import Path

from kvtrace_cli.config import Weights
from kvtrace_cli.errors import ConfigError

_PACKAGED = {"Qwen/Qwen3-14B": "qwen3-14b"}


@dataclass(frozen=True)
class Model:
    """A resolved model: what the engine loads, and the name the requests use."""

    source: str
    served_name: str
    weights: Weights

    @property
    def is_local(self) -> bool:
        """Whether the engine needs no hub for it."""
        return Path(self.source).is_absolute()


def resolve_model(name: str, weights: Weights) -> Model:
    """Resolve a model by its name.

    A directory of that name comes first; else the name of a model on the hub, where `Qwen3-14B`
    stands for `Qwen/Qwen3-14B`. Dummy weights need a config.json at hand: of a directory, or the
    one of Qwen3-14B, which kvtrace ships.

    Raises:
        ConfigError: the name is empty or ambiguous, or dummy weights have no config.json to go by.
    """
    if not name.strip():
        raise ConfigError("--model: found an empty name, expected Qwen3-14B or a directory")
    directory = Path(name).expanduser()
    if directory.is_dir():
        return _local(directory.resolve(), weights)
    hub_name = _hub_name(name)
    if weights is Weights.AUTO:
        return Model(hub_name, hub_name.rsplit("/", 1)[-1], weights)
    if hub_name not in _PACKAGED:
        raise ConfigError(
            f"--model {name}: no directory of that name, and where no weights are loaded kvtrace "
            "knows Qwen3-14B only; give a directory that holds the model's config.json"
        )
    packaged = Path(__file__).parents[1] / "data" / _PACKAGED[hub_name]
    return Model(str(packaged), hub_name.rsplit("/", 1)[-1], weights)


def _hub_name(name: str) -> str:
    if "/" not in name and name.startswith("Qwen"):
        return f"Qwen/{name}"
    parts = name.split("/")
    if len(parts) == 2 and all(parts) and not name.startswith((".", "~")):  # noqa: PLR2004
        return name
    raise ConfigError(
        f"--model {name}: no such directory, and not a hub name; "
        "expected a directory or OWNER/NAME such as Qwen/Qwen3-14B"
    )


def _local(directory: Path, weights: Weights) -> Model:
    config = directory / "config.json"
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--model {directory}: config.json cannot be read ({error}); "
            "expected the directory of a model with its config.json"
        ) from error
    return Model(str(directory), directory.name, weights)
