"""Runs passes in a thread of its own as long as there are requests."""

import logging
import threading
import time
from collections.abc import Callable

from kvtrace_cli.emulator.children import ChildLostError
from kvtrace_cli.emulator.driver import MISALIGNED_ADDRESS, DeviceFaultError
from kvtrace_cli.emulator.executors import Executor
from kvtrace_cli.emulator.lockstep import Agree
from kvtrace_cli.emulator.request import EngineDeadError, Request
from kvtrace_cli.emulator.scheduler import Scheduler, SchedulerOutput

_LOG = logging.getLogger(__name__)


class EngineCore:
    """Takes requests in, and lets scheduler and runner do one pass after the other."""

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        *,
        pass_s: float = 0,
        agree: Agree | None = None,
        on_death: Callable[[EngineDeadError], None] | None = None,
    ) -> None:
        """Begin without requests.

        Args:
            executor: runs the passes.
            scheduler: decides what they run.
            pass_s: seconds that a pass lasts at least.
            agree: asks the other data-parallel replicas, if there are any, for a pass's shape.
            on_death: called when it cannot go on, or was stopped.
        """
        self._pass_s = pass_s
        self._executor = executor
        self._scheduler = scheduler
        self._agree = agree
        self._on_death = on_death
        self._passes_agreed = 0
        self._called = -1
        self._changed = threading.Condition()
        self._faults_next = False
        self._is_stopping = False
        self._dead: EngineDeadError | None = None
        self._thread = threading.Thread(target=self._run, name="engine-core", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the pass that runs, fail what is left, and end the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.join()

    def submit(self, request: Request) -> None:
        """Take a request in.

        Raises:
            EngineDeadError: the engine is gone.
        """
        with self._changed:
            if self._dead is not None:
                raise self._dead
            self._scheduler.add(request)
            self._changed.notify_all()

    def join(self, pass_number: int) -> None:
        """Take part in a pass of the other replicas, unless that has been done."""
        with self._changed:
            self._called = pass_number
            self._changed.notify_all()

    def fault_next_decode(self) -> None:
        """Let the device fault in the next decode step."""
        with self._changed:
            self._faults_next = True

    @property
    def is_well(self) -> bool:
        """Whether it still takes requests."""
        return self._dead is None

    def step(self) -> None:
        """Schedule one pass, run it, and take in what it made.

        Raises:
            DeviceFaultError: a kernel faulted.
            ChildLostError: a worker has gone.
        """
        with self._changed:
            output = self._scheduler.schedule()
            is_called = self._is_called
        self._fault_if_asked(output)
        begin = time.monotonic()
        shape = None
        if self._agree is not None and (output.scheduled or is_called):
            with self._changed:
                self._passes_agreed += 1
            shape = self._agree(output.shape)
        self._executor.execute(output, shape)
        if output.scheduled and self._pass_s:
            time.sleep(max(0.0, self._pass_s - (time.monotonic() - begin)))
        self._scheduler.finish_pass(output.scheduled)

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self.step()
        except (DeviceFaultError, ChildLostError) as error:
            _LOG.exception("EngineCore encountered a fatal error.")
            self._end(EngineDeadError(f"EngineCore encountered an issue: {error}"))
        else:
            self._end(EngineDeadError("the engine was stopped"))

    def _wait_for_work(self) -> bool:
        """Wait for a request; when stopping, only an end that is not told yet is work."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._scheduler.has_work or self._is_stopping or self._is_called
            )
            return self._scheduler.is_ending or not self._is_stopping

    @property
    def _is_called(self) -> bool:
        """Whether the other replicas wait for a pass that was not agreed on here."""
        return self._called >= self._passes_agreed

    def _fault_if_asked(self, output: SchedulerOutput) -> None:
        if self._faults_next and output.scheduled and output.is_decode:
            raise DeviceFaultError(MISALIGNED_ADDRESS)

    def _end(self, reason: EngineDeadError) -> None:
        with self._changed:
            self._dead = reason
            left = self._scheduler.unfinished
        for request in left:
            request.fail(reason)
        if self._on_death is not None:
            self._on_death(reason)
