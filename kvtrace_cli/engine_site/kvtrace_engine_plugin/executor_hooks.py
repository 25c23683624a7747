"""End the recordings of Ray's workers before the engine kills them.

`ray.kill` ends an actor as SIGKILL would: no exit handler and no finalizer of it runs.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from .injector_calls import end_recording, injector_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# Where versions of vLLM have their executors, and the class.
EXECUTORS = {
    "vllm.v1.executor.ray_executor": "RayDistributedExecutor",
    "vllm.v1.executor.ray_distributed_executor": "RayDistributedExecutor",
    "vllm.v1.executor.ray_executor_v2": "RayExecutorV2",
}
_WAIT_S = 15
_MARK = "_kvtrace_hook"


def end_recording_of(_worker: Any) -> None:
    """End the recording of the process that this runs in: a call that executors send to workers."""
    path = injector_path()
    if path is not None:
        end_recording(os.getpid(), path)


def actions() -> dict[str, Callable[[ModuleType], None]]:
    """Return what to do when the module of an executor was imported. The actions never raise."""
    return {
        module: functools.partial(_hook_shutdown, name=name) for module, name in EXECUTORS.items()
    }


def _hook_shutdown(module: ModuleType, *, name: str) -> None:
    executor_class: Any = getattr(module, name, None)
    original = getattr(executor_class, "shutdown", None)
    if original is None or hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def shutdown(executor: Any, *args: Any, **kwargs: Any) -> Any:
        _end_recordings(executor)
        return original(executor, *args, **kwargs)

    setattr(shutdown, _MARK, True)
    executor_class.shutdown = shutdown


def _end_recordings(executor: Any) -> None:
    """Have every worker end its recording; one that cannot is killed with it as it is."""
    # Called again from finalizers, and after a worker has died: then nobody answers.
    if getattr(executor, "shutting_down", False) or getattr(executor, "is_failed", False):
        return
    try:
        executor.collective_rpc(end_recording_of, timeout=_WAIT_S)
    except Exception as error:  # noqa: BLE001  the engine has to end
        print(f"kvtrace: recordings of Ray workers may lack their end: {error!r}", file=sys.stderr)  # noqa: T201
