"""Child processes of the engine as vLLM has them: forked, each with a pipe to its parent."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

# A fork has no exit handlers, so an injector in it is ended by the plug-in alone, as in vLLM.
_FORK = multiprocessing.get_context("fork")
# Our ends of the pipes. A child that kept one would keep a sibling from seeing that we are gone.
_OUR_ENDS: list[Connection] = []


class ChildLostError(Exception):
    """A child ended that was needed; the text says which and how."""


class Link:
    """One end of a pipe; any thread may send."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, *message: Any) -> None:
        """Send a message; one to a process that is gone is lost."""
        with self._sending, suppress(OSError):
            self._connection.send(message)

    def receive(self) -> tuple[Any, ...]:
        """Wait for a message.

        Raises:
            EOFError: the other side is gone.
        """
        try:
            message: tuple[Any, ...] = self._connection.recv()
        except OSError as error:
            raise EOFError from error
        return message

    def messages(self) -> Iterator[tuple[Any, ...]]:
        """Yield messages until the other side is gone."""
        with suppress(EOFError):
            while True:
                yield self.receive()


class Child:
    """A process that runs `main(link, *arguments)`; it must end when its parent is gone."""

    def __init__(self, name: str, main: Callable[..., None], *arguments: Any) -> None:
        self.name = name
        ours, theirs = _FORK.Pipe()
        _OUR_ENDS.append(ours)
        self._process = _FORK.Process(
            target=_run, args=(name, theirs, main, arguments), name=name, daemon=False
        )
        self._process.start()
        theirs.close()
        self.link = Link(ours)

    def join(self, within_s: float) -> None:
        """Wait until it has ended, as it was asked to; kill it if it does not."""
        self._process.join(within_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def receive(self) -> tuple[Any, ...]:
        """Wait for a message of a child that is needed.

        Raises:
            ChildLostError: it has ended.
        """
        try:
            return self.link.receive()
        except EOFError as error:
            raise self._lost() from error

    def _lost(self) -> ChildLostError:
        self._process.join()
        status = self._process.exitcode or 0
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return ChildLostError(f"{self.name} (process {self._process.pid}) died, {how}")


def _run(
    name: str, connection: Connection, main: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    for other in _OUR_ENDS:
        other.close()
    _OUR_ENDS.clear()
    # A handler of ours, and no mask: neither is inherited by programs that a child starts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    prefix = f"({name} pid={os.getpid()})"
    form = f"{prefix} %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format=form, force=True)
    main(Link(connection), *arguments)
