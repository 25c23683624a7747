"""Send requests in their order, several at once, and hand the answers over as they end."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from kvtrace_cli.capture.client import EngineClient, RequestRecord
from kvtrace_cli.config import RequestSpec


@dataclass
class Sending:
    """Some requests of one run on their way, each from a thread of its own.

    So the caller's thread shows live counters and hears a Ctrl-C.

    Args:
        client: the engine.
        requests: (request_index, what is asked), in the order in which they are sent.
        concurrency: how many at once.
        poll_s: seconds between two calls of `on_look`.
    """

    client: EngineClient
    requests: Sequence[tuple[int, RequestSpec]]
    concurrency: int
    poll_s: float
    _ended: "SimpleQueue[RequestRecord | BaseException]" = field(default_factory=SimpleQueue)

    def __post_init__(self) -> None:
        self._waiting = deque(self.requests)
        self._in_flight = 0
        self._begin = time.monotonic()

    @property
    def unsent(self) -> int:
        """How many were not sent, because one before them failed."""
        return len(self._waiting)

    def answers(
        self, on_send: Callable[[int, RequestSpec], None], on_look: Callable[[], None]
    ) -> Iterator[RequestRecord]:
        """Yield each answer when it ends, so not in the order of the requests.

        After a failed one nothing more is sent, and those in flight are awaited.

        Args:
            on_send: called with index and request just before one is sent.
            on_look: called now and then while nothing ends.
        """
        failed = False
        while self._in_flight or (self._waiting and not failed):
            if not failed:
                self._send_what_may_go(on_send)
            try:
                record = self._ended.get(timeout=self._pause_s())
            except Empty:
                on_look()
                continue
            if isinstance(record, BaseException):
                raise record
            self._in_flight -= 1
            failed = failed or record.error is not None
            yield record

    def _send_what_may_go(self, on_send: Callable[[int, RequestSpec], None]) -> None:
        while self._waiting and self._in_flight < self.concurrency and self._wait_s() <= 0:
            index, spec = self._waiting.popleft()
            on_send(index, spec)
            self._in_flight += 1
            thread = threading.Thread(target=self._send, args=(index, spec), daemon=True)
            thread.start()

    def _send(self, index: int, spec: RequestSpec) -> None:
        try:
            self._ended.put(self.client.send(index, spec))
        except BaseException as error:  # noqa: BLE001  raised again where it is waited for
            self._ended.put(error)

    def _wait_s(self) -> float:
        """Return the time until the next request may be sent, as far as its own wish goes."""
        return self._begin + self._waiting[0][1].start_after_s - time.monotonic()

    def _pause_s(self) -> float:
        if self._waiting and self._in_flight < self.concurrency:
            return min(self.poll_s, max(self._wait_s(), 0.0))
        return self.poll_s
