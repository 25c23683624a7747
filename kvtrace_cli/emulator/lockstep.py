"""Data-parallel replicas take their passes together: without requests, they run nobody's rows."""

import threading
from collections.abc import Callable, Sequence

from kvtrace_cli.emulator.children import Link
from kvtrace_cli.emulator.scheduler import PassShape


class LockstepMember:
    """A replica's side: says how large its pass is, and waits for what all have agreed on."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._changed = threading.Condition()
        self._agreed: PassShape | None = None
        self._is_over = False

    def agree(self, shape: PassShape) -> PassShape:
        """Return the shape that the pass has on all replicas; that of its own when all is over."""
        self._link.send("shape", shape)
        with self._changed:
            self._changed.wait_for(lambda: self._agreed is not None or self._is_over)
            agreed, self._agreed = self._agreed, None
        return agreed or shape

    def take(self, agreed: PassShape) -> None:
        """Take in what was agreed on."""
        with self._changed:
            self._agreed = agreed
            self._changed.notify_all()

    def end(self) -> None:
        """Wait for nobody any more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


class LockstepHost:
    """The front's side: collects a shape of each replica, and tells all the largest."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._pass_number = 0
        self._shapes: dict[int, PassShape] = {}
        self._lock = threading.Lock()

    def take(self, replica: int, shape: PassShape) -> None:
        """Take in one replica's shape; the first of a pass calls the others to it."""
        with self._lock:
            is_first = not self._shapes
            self._shapes[replica] = shape
            if is_first:
                for other, link in enumerate(self._links):
                    if other != replica:
                        link.send("join", self._pass_number)
            if len(self._shapes) == len(self._links):
                agreed = PassShape.largest(self._shapes.values())
                self._shapes = {}
                self._pass_number += 1
                for link in self._links:
                    link.send("agreed", agreed)


Agree = Callable[[PassShape], PassShape]
