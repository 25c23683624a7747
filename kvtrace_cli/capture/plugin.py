"""Put the engine plug-in into the engine's environment, wherever the engine is installed."""

import os
from collections.abc import Mapping
from pathlib import Path

from kvtrace_cli.errors import ConfigError

PLUGIN_NAME = "kvtrace"
STEPS_VARIABLE = "KVTRACE_STEPS"
INJECTOR_VARIABLE = "KVTRACE_INJECTOR"

# Holds the plug-in's package and the dist-info with its entry point, and nothing else: the engine
# sees none of kvtrace's own modules.
ENGINE_SITE = Path(__file__).resolve().parents[1] / "engine_site"

_PYTHON_PATH = "PYTHONPATH"
_VLLM_PLUGINS = "VLLM_PLUGINS"


def with_engine_plugin(base: Mapping[str, str], *, raw_dir: Path, injector: Path) -> dict[str, str]:
    """Return `base` with what makes a vLLM load the engine plug-in and record its steps.

    Args:
        base: the engine's environment.
        raw_dir: the run's raw directory, which exists when the engine starts.
        injector: the injector's library, which the plug-in hands its step stamps to.

    Raises:
        ConfigError: kvtrace is installed where PYTHONPATH cannot point to.
    """
    if os.pathsep in str(ENGINE_SITE):
        raise ConfigError(
            f"{ENGINE_SITE}: found '{os.pathsep}' in the path, which {_PYTHON_PATH} cannot "
            "express; install kvtrace elsewhere"
        )
    environment = dict(base)
    theirs = base.get(_PYTHON_PATH)
    environment[_PYTHON_PATH] = f"{ENGINE_SITE}{os.pathsep}{theirs}" if theirs else str(ENGINE_SITE)
    # vLLM loads every plug-in unless the user names those to load.
    allowed = base.get(_VLLM_PLUGINS)
    if allowed is not None:
        names = [name for name in allowed.split(",") if name]
        environment[_VLLM_PLUGINS] = ",".join(dict.fromkeys([*names, PLUGIN_NAME]))
    environment[STEPS_VARIABLE] = str(raw_dir.absolute())
    environment[INJECTOR_VARIABLE] = str(injector.absolute())
    return environment
