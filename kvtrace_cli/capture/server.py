"""One engine server as a child: start it, wait until it answers, and leave no process behind."""

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvtrace_cli.capture.processes import RUN_VARIABLE, ProcessTree
from kvtrace_cli.capture.server_log import ServerLog
from kvtrace_cli.capture.signals import deferred_termination
from kvtrace_cli.config import TimeLimits
from kvtrace_cli.errors import RunFailedError

_POLL_S = 0.1


@dataclass(frozen=True)
class StopResult:
    """How the engine ended: exit status, the last signal sent, and pids that did not end."""

    exit_status: int | None
    last_signal: str | None
    left: tuple[int, ...]


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A running engine in a session of its own; its output goes to a file."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", tree: ProcessTree, log: ServerLog
    ) -> None:
        self._process = process
        self._tree = tree
        self.log = log

    @classmethod
    def start(
        cls, command: list[str], environment: Mapping[str, str], *, run_dir: Path, log_path: Path
    ) -> "Server":
        """Start the engine in `run_dir`, where no stray file can shadow one of its modules.

        Raises:
            RunFailedError: its program cannot be started.
        """
        mark = str(run_dir)
        with log_path.open("wb") as log:
            try:
                process = subprocess.Popen(
                    command,
                    env={**environment, RUN_VARIABLE: mark},
                    cwd=run_dir,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise RunFailedError(
                    f"{command[0]}: the engine cannot be started: {error.strerror}; "
                    "name the Python interpreter that has vLLM with --python"
                ) from error
        tree = ProcessTree(process.pid, f"{RUN_VARIABLE}={mark}")
        return cls(process, tree, ServerLog(log_path))

    @property
    def pid(self) -> int:
        """Process id of the engine's first process; its session has the same number."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status, negative for a signal; null while it runs."""
        return self._process.poll()

    def wait_ready(
        self, is_healthy: Callable[[], bool], limits: TimeLimits, on_wait: Callable[[], None]
    ) -> None:
        """Wait until the engine answers; `on_wait` is called between looks.

        Raises:
            RunFailedError: it ended first, or the time is over; the message has the log's end.
        """
        deadline = time.monotonic() + limits.ready_s
        while not is_healthy():
            self.log.follow()
            self.demand_alive("before it was ready")
            if time.monotonic() >= deadline:
                raise RunFailedError(
                    f"the engine was not ready within {limits.ready_s:g} s "
                    f"(last seen: {self.log.phase or 'starting'}); raise --ready-timeout if it "
                    f"was still busy; {self.log.tail()}"
                )
            on_wait()
            time.sleep(limits.poll_s)
        # Something else may answer on the port of an engine that is gone.
        self.demand_alive("before it was ready")

    def demand_alive(self, when: str) -> None:
        """Check that the engine's first process runs.

        Raises:
            RunFailedError: it does not; the message has the log's end.
        """
        self.log.follow()
        status = self.exit_status
        if status is not None:
            raise RunFailedError(f"the engine ended {when}, {describe(status)}; {self.log.tail()}")

    def stop(self, limits: TimeLimits, *, ready: bool) -> StopResult:
        """End the engine and all it started: SIGINT to it, SIGTERM to all, SIGKILL to all.

        SIGINT comes first because a SIGTERM during start-up leaves vLLM waiting for ever. An
        interrupt while we wait for the orderly end cuts the wait short; the rest is always done.
        """
        wait_s = limits.shutdown_s + limits.shutdown_margin_s if ready else limits.startup_stop_s
        last = None
        try:
            if self._process.poll() is None:
                self._tree.look()  # before orphans lose their trace
                last = signal.SIGINT.name
                self._process.send_signal(signal.SIGINT)
                self.wait_exit(wait_s)
            self._tree.wait_empty(limits.settle_s)
        finally:
            with deferred_termination():
                last = self._tree.end_survivors(limits) or last
        left = tuple(sorted(process.pid for process in self._tree.look()))
        return StopResult(self._process.poll(), last, left)

    def wait_exit(self, within_s: float) -> None:
        """Give the first process this long to end by itself."""
        deadline = time.monotonic() + within_s
        while self._process.poll() is None and time.monotonic() < deadline:
            self._tree.look()
            time.sleep(_POLL_S)


def describe(status: int) -> str:
    """Say an exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    return f"killed by {signal.Signals(-status).name}"
