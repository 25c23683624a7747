"""The front end of an engine whose cores are processes: hands requests out, and answers back."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from kvtrace_cli.emulator.children import Child, ChildLostError
from kvtrace_cli.emulator.core_process import CoreSettings, serve_core
from kvtrace_cli.emulator.lockstep import LockstepHost
from kvtrace_cli.emulator.request import EngineDeadError, Request

_STOP_S = 20


@dataclass
class _Pending:
    """A request whose tokens are not all here."""

    request: Request
    replica: int
    tokens_left: int


class EngineFront:
    """All replicas of the engine; a new request goes to the one with the fewest."""

    def __init__(self, names: Sequence[str], settings: Sequence[CoreSettings]) -> None:
        """Start a core for each settings, and wait until all are ready.

        Raises:
            ChildLostError: one ended instead.
        """
        self._cores = [
            Child(name, serve_core, one) for name, one in zip(names, settings, strict=True)
        ]
        self._lockstep = LockstepHost([core.link for core in self._cores])
        self._changed = threading.Lock()
        self._pending: dict[str, _Pending] = {}
        self._dead: EngineDeadError | None = None
        try:
            for core in self._cores:
                core.receive()
        except ChildLostError:
            self.stop()  # the others would be waited for without end
            raise
        self._readers = [
            threading.Thread(target=self._read, args=(replica,), daemon=True)
            for replica in range(len(self._cores))
        ]

    def start(self) -> None:
        """Begin to serve."""
        for reader in self._readers:
            reader.start()

    def stop(self) -> None:
        """Let the cores finish the pass that runs, and end them."""
        for core in self._cores:
            core.link.send("stop")
        for core in self._cores:
            core.join(_STOP_S)

    def submit(self, request: Request) -> None:
        """Take a request in.

        Raises:
            EngineDeadError: the engine is gone.
        """
        with self._changed:
            if self._dead is not None:
                raise self._dead
            loads = [one.replica for one in self._pending.values()]
            replica = min(range(len(self._cores)), key=loads.count)
            self._pending[request.request_id] = _Pending(request, replica, request.max_tokens)
        self._cores[replica].link.send("add", request.order())

    def fault_next_decode(self) -> None:
        """Let the device fault in the next decode step of each replica."""
        for core in self._cores:
            core.link.send("fault")

    @property
    def is_well(self) -> bool:
        """Whether it still takes requests."""
        return self._dead is None

    def _read(self, replica: int) -> None:
        """Take in what one core sends, until it is gone."""
        core = self._cores[replica]
        for kind, *arguments in core.link.messages():
            if kind == "shape":
                self._lockstep.take(replica, *arguments)
            elif kind == "token":
                self._hand_on(*arguments)
            elif kind == "dead":
                self._die(EngineDeadError(*arguments))
        self._die(EngineDeadError(f"EngineCore encountered an issue: {core.name} is gone"))

    def _hand_on(self, request_id: str, token: int) -> None:
        with self._changed:
            pending = self._pending.get(request_id)
            if pending is None:  # another replica has ended the engine
                return
            pending.tokens_left -= 1
            if not pending.tokens_left:
                del self._pending[request_id]
        pending.request.give(token)

    def _die(self, reason: EngineDeadError) -> None:
        """Take no more requests, and end those that are left; the first reason stands."""
        with self._changed:
            self._dead = self._dead or reason
            left = list(self._pending.values())
            self._pending = {}
        for pending in left:
            pending.request.fail(reason)
