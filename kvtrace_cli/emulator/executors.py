"""How a pass reaches the workers of one replica: in this process, or in processes of their own."""

from collections.abc import Sequence
from typing import Protocol

from kvtrace_cli.emulator.children import Child, ChildLostError
from kvtrace_cli.emulator.driver import DeviceFaultError
from kvtrace_cli.emulator.rank_worker import WorkerSettings, serve_rank
from kvtrace_cli.emulator.scheduler import PassShape, SchedulerOutput

_STOP_S = 15


class Executor(Protocol):
    """What the engine core needs: every worker runs what `execute` is given."""

    def execute(self, output: SchedulerOutput, shape: PassShape | None = None) -> None:
        """Run a pass on all workers; see `ModelRunner.execute`.

        Raises:
            DeviceFaultError: a kernel faulted.
            ChildLostError: a worker has gone.
        """

    def stop(self) -> None:
        """End the workers in order."""


class ProcessExecutor:
    """A process for each rank, forked by the engine core."""

    def __init__(self, settings: Sequence[WorkerSettings]) -> None:
        """Start the workers, and wait until all have captured their graphs.

        Raises:
            ChildLostError: one ended instead.
        """
        self._workers = [
            Child(f"Worker{one.parallel.name(one.rank)}", serve_rank, one) for one in settings
        ]
        try:
            self._receive_all()
        except ChildLostError:
            self.stop()  # the others would be waited for without end
            raise

    def execute(self, output: SchedulerOutput, shape: PassShape | None = None) -> None:
        """Let all workers run a pass at once, and wait for all."""
        for worker in self._workers:
            worker.link.send("execute", output, shape)
        self._receive_all()

    def stop(self) -> None:
        """End the workers in order."""
        for worker in self._workers:
            worker.link.send("stop")
        for worker in self._workers:
            worker.join(_STOP_S)

    def _receive_all(self) -> None:
        faults = []
        for worker in self._workers:
            kind, *details = worker.receive()
            if kind == "fault":
                faults.append(DeviceFaultError(details[0]))
        if faults:
            raise faults[0]
