"""Let what records reach workers that are actors of Ray.

Their processes are started by Ray's daemon on each node, not by the engine. Two ways lead there:
vLLM copies the variables that it is told of, but only once the actor runs; Ray itself starts the
workers of a job in the environment that the job asks for, early enough for PYTHONPATH and
LD_PRELOAD. Both are used: a user's engine may have its cluster, and its job, set up already.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kvtrace_cli.errors import ConfigError

COPIED_VARIABLE = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_PYTHON_PATH = "PYTHONPATH"
_PRELOAD = "LD_PRELOAD"
# Joined with what the node has, by Ray; nothing, where it has none.
_THEIRS = "${%s}"


def with_ray_workers(
    environment: Mapping[str, str], ours: Iterable[str], *, python_path: str | None
) -> dict[str, str]:
    """Return an environment whose variables `ours` reach the Ray workers of an engine.

    Args:
        environment: of the engine. What it says of these two ways itself is kept.
        ours: names of variables that were set to record.
        python_path: a directory that has to be first among those of the workers' PYTHONPATH.

    Raises:
        ConfigError: the user's description of the job is none.
    """
    # Late, so of no use for what is looked at when a process starts.
    late = [name for name in ours if name not in (_PYTHON_PATH, _PRELOAD)]
    copied = [name for name in environment.get(COPIED_VARIABLE, "").split(",") if name]
    job = _job(environment)
    variables = {name: environment[name] for name in late}
    if python_path is not None:
        variables[_PYTHON_PATH] = f"{python_path}:{_THEIRS % _PYTHON_PATH}"
    if _PRELOAD in ours:
        variables[_PRELOAD] = environment[_PRELOAD]
    runtime = job.setdefault("runtime_env", {})
    theirs = runtime.get("env_vars", {})
    if python_path is not None and _PYTHON_PATH in theirs:
        variables[_PYTHON_PATH] = f"{python_path}:{theirs[_PYTHON_PATH]}"
    runtime["env_vars"] = theirs | variables
    return {
        **environment,
        COPIED_VARIABLE: ",".join(dict.fromkeys([*copied, *late])),
        JOB_VARIABLE: json.dumps(job),
    }


def _job(environment: Mapping[str, str]) -> dict[str, Any]:
    text = environment.get(JOB_VARIABLE, "{}")
    try:
        job = json.loads(text)
        variables = job.get("runtime_env", {}).get("env_vars", {})
    except (ValueError, AttributeError):
        job = variables = None
    if not isinstance(job, dict) or not isinstance(variables, dict):
        raise ConfigError(
            f"{JOB_VARIABLE}: found {text[:40]!r}, expected the JSON object that Ray makes for a "
            "job, with its runtime_env and env_vars; unset it"
        )
    return job
