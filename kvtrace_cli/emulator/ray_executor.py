"""The workers of a replica as actors of Ray, treated as vLLM's Ray executors treat theirs.

An actor's process is Ray's: it was started by a daemon of the cluster, gets the variables of its
environment late and by name, and is killed at the end.
"""

import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kvtrace_cli.emulator.children import ChildLostError
from kvtrace_cli.emulator.driver import DeviceFaultError
from kvtrace_cli.emulator.rank_worker import RankWorker, WorkerSettings
from kvtrace_cli.emulator.scheduler import PassShape, SchedulerOutput
from kvtrace_cli.engine_site.kvtrace_engine_plugin.executor_hooks import end_recording_of

_PREFIXES = ("VLLM_", "NCCL_", "HF_")
_MORE_NAMES = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
_MORE_PREFIXES = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
_NO_FAULT = 0
_STOP_S = 15


class _RankActor:
    """A worker in an actor's process."""

    def start(self, settings: WorkerSettings, copied: Mapping[str, str]) -> None:
        """Take in the driver's variables, then open the device."""
        logging.basicConfig(
            level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s"
        )
        os.environ.update(copied)
        self._worker = RankWorker(settings)

    def execute(self, output: SchedulerOutput, shape: PassShape | None) -> int:
        """Run a pass; return the code of the fault that it met."""
        try:
            self._worker.execute(output, shape)
        except DeviceFaultError as error:
            return error.code
        return _NO_FAULT

    def end(self) -> None:
        """Do what has to be done before the actor is killed."""
        self._worker.stop()
        end_recording_of(self._worker)


class RayExecutor:
    """An actor for each rank, in the cluster that RAY_ADDRESS names, or in a new one.

    They go to its nodes in turn, as if each node had a GPU for some of them.
    """

    def __init__(self, settings: Sequence[WorkerSettings]) -> None:
        """Start the actors, and wait until all have captured their graphs.

        Raises:
            ChildLostError: one ended instead.
        """
        ray.init(include_dashboard=False, logging_level=logging.WARNING)
        actor_class = ray.remote(num_cpus=0)(_RankActor)
        self._names = [f"Worker{one.parallel.name(one.rank)}" for one in settings]
        nodes = cycle(node["NodeID"] for node in ray.nodes() if node["Alive"])
        self._actors = [
            actor_class.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            ).remote()
            for _, node in zip(settings, nodes, strict=False)
        ]
        copied = variables_to_copy(os.environ)
        self._wait(
            actor.start.remote(one, copied)
            for actor, one in zip(self._actors, settings, strict=True)
        )

    def execute(self, output: SchedulerOutput, shape: PassShape | None = None) -> None:
        """Let all actors run a pass at once, and wait for all."""
        codes = self._wait(actor.execute.remote(output, shape) for actor in self._actors)
        for code in codes:
            if code != _NO_FAULT:
                raise DeviceFaultError(code)

    def stop(self) -> None:
        """End the recordings, then kill the actors: Ray lets them do nothing more."""
        ray.wait(
            [actor.end.remote() for actor in self._actors],
            num_returns=len(self._actors),
            timeout=_STOP_S,
        )
        for actor in self._actors:
            ray.kill(actor)
        ray.shutdown()

    def _wait(self, calls: "Iterable[ray.ObjectRef[int]]") -> list[int]:
        return [_result(name, call) for name, call in zip(self._names, list(calls), strict=True)]


def _result(name: str, call: "ray.ObjectRef[int]") -> int:
    try:
        return int(ray.get(call) or _NO_FAULT)
    except RayActorError as error:
        raise ChildLostError(f"{name} died: {error}") from error


def variables_to_copy(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that reach an actor: those named by vLLM or by the user, no others."""
    names = set(environment.get(_MORE_NAMES, "").split(","))
    prefixes = (*_PREFIXES, *filter(None, environment.get(_MORE_PREFIXES, "").split(",")))
    return {
        name: text
        for name, text in environment.items()
        if name in names or name.startswith(prefixes)
    }
