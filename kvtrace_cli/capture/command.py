"""A command of the user's as a child: start it, hand our signals on, see what it leaves behind."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kvtrace_cli.capture.processes import RUN_VARIABLE, ProcessTree
from kvtrace_cli.capture.signals import forwarded_termination
from kvtrace_cli.config import TimeLimits
from kvtrace_cli.errors import RunFailedError

# Of the signals that we are sent: to the first process, then to its group.
_HANDED_ON = 2


class TracedCommand:
    """A running command in a session of its own, with our input, output and working directory.

    In its own session a Ctrl-C on the terminal reaches us alone, and the command by our hand.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", tree: ProcessTree) -> None:
        self._process = process
        self._tree = tree
        self._signals: list[signal.Signals] = []

    @classmethod
    def start(
        cls, command: Sequence[str], environment: Mapping[str, str], run_dir: Path
    ) -> "TracedCommand":
        """Start the command; `run_dir`, absolute, marks its processes.

        Raises:
            RunFailedError: it cannot be started.
        """
        mark = {RUN_VARIABLE: str(run_dir)}
        try:
            process = subprocess.Popen(
                list(command), env={**environment, **mark}, start_new_session=True
            )
        except OSError as error:
            raise RunFailedError(
                f"{command[0]}: cannot be started: {error.strerror}; see that it runs by itself"
            ) from error
        return cls(process, ProcessTree(process.pid, f"{RUN_VARIABLE}={run_dir}"))

    @property
    def exit_status(self) -> int | None:
        """Exit status, negative for a signal; null while it runs."""
        return self._process.poll()

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that we were sent while it ran, in their order."""
        return tuple(number.name for number in self._signals)

    def wait(self, on_signal: Callable[[str, int], None]) -> int:
        """Wait until its first process ends, and return the exit status of that.

        The first SIGINT, SIGTERM or SIGHUP is handed on to the first process alone: a server then
        ends its engine in order, which the same signal would have cut short there. A second one
        goes to the whole process group, as from a terminal, for what does not tell its children.
        Nor does a first process that dies of the signal: then its group gets the first one too.

        Args:
            on_signal: called with the name of each signal that was handed on, and how many they
                were by then.

        Raises:
            KeyboardInterrupt: a third one came; the command may still run.
        """

        def forward(number: signal.Signals) -> None:
            self._forward(number)
            on_signal(number.name, len(self._signals))

        with forwarded_termination(forward):
            status = self._process.wait()
            if self._signals == [-status]:
                self._signal_group(self._signals[0])
        return status

    def left(self, limits: TimeLimits) -> tuple[int, ...]:
        """Return the pids of what it left behind, once helpers had time to end."""
        return tuple(sorted(one.pid for one in self._tree.wait_empty(limits.settle_s)))

    def end(self, limits: TimeLimits) -> str | None:
        """End all of it; return the last signal that was needed."""
        last = self._tree.end_survivors(limits)
        self._process.poll()
        return last

    def _forward(self, number: signal.Signals) -> None:
        self._signals.append(number)
        if len(self._signals) > _HANDED_ON:
            raise KeyboardInterrupt
        self._tree.look()  # before orphans lose their trace
        if len(self._signals) > 1:
            self._signal_group(number)
            return
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
