"""Signals of our own process while an engine runs: every polite one ends in an orderly stop."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ORDERLY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def orderly_termination() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into KeyboardInterrupt, so that every `finally` runs.

    SIGINT is named too: a shell that starts us in the background has it ignored, and an engine
    would inherit that and not hear our own interrupt.
    """
    with _handled_by(_interrupt):
        yield


@contextmanager
def deferred_termination() -> Iterator[None]:
    """Hold SIGINT, SIGTERM and SIGHUP back until the block is done; for what must not be torn."""
    pending: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    with _handled_by(remember):
        yield
    if pending:
        signal.raise_signal(pending[0])


@contextmanager
def forwarded_termination(forward: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Give SIGINT, SIGTERM and SIGHUP to `forward` while another program does the work."""
    with _handled_by(lambda number, _frame: forward(signal.Signals(number))):
        yield


@contextmanager
def _handled_by(handler: "signal._HANDLER") -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it is interrupted
        return
    previous = {number: signal.signal(number, handler) for number in _ORDERLY}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
