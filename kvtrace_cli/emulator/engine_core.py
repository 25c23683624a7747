"""Continuous batching: which request has how many rows in the next forward pass."""

import logging
import queue
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvtrace_cli.emulator.driver import MISALIGNED_ADDRESS, DeviceFaultError
from kvtrace_cli.emulator.model_runner import ModelRunner

_LOG = logging.getLogger(__name__)


class EngineDeadError(Exception):
    """The engine cannot go on; the text says why."""


@dataclass
class Request:
    """One completion on its way; its tokens come out of a queue, an exception ends it."""

    prompt: tuple[int, ...]
    max_tokens: int
    vocabulary: int
    prompt_done: int = 0
    produced: int = 0
    _out: "queue.SimpleQueue[int | Exception]" = field(default_factory=queue.SimpleQueue)

    def tokens(self) -> Iterator[int]:
        """Yield the tokens as they are made.

        Raises:
            EngineDeadError: the engine ended first.
        """
        for _ in range(self.max_tokens):
            token = self._out.get()
            if isinstance(token, Exception):
                raise token
            yield token

    @property
    def is_finished(self) -> bool:
        """Whether all its tokens are made."""
        return self.produced == self.max_tokens

    def produce(self) -> None:
        """Make the next token: the same for the same prompt and place, whatever else runs."""
        place = self.produced
        self.produced += 1
        self._out.put((sum(self.prompt) * 31 + place * 7919) % self.vocabulary)

    def fail(self, error: Exception) -> None:
        """End it without its tokens."""
        self._out.put(error)


class EngineCore:
    """Runs passes in a thread of its own as long as there are requests."""

    def __init__(self, runner: ModelRunner, *, max_num_seqs: int, max_batched_tokens: int) -> None:
        self._runner = runner
        self._max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
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
            self._waiting.append(request)
            self._changed.notify_all()

    def fault_next_decode(self) -> None:
        """Let the device fault in the next decode step."""
        with self._changed:
            self._faults_next = True

    @property
    def is_well(self) -> bool:
        """Whether it still takes requests."""
        return self._dead is None

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._step()
        except DeviceFaultError as error:
            _LOG.exception("EngineCore encountered a fatal error.")
            self._end(EngineDeadError(f"EngineCore encountered an issue: {error}"))
        else:
            self._end(EngineDeadError("the engine was stopped"))

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._is_stopping)
            return not self._is_stopping

    def _step(self) -> None:
        """Schedule and run one pass: a row for each running request, then prompts that fit."""
        decoding = [one for one in self._running if one.prompt_done == len(one.prompt)]
        prompt_rows = self._take_prompts(self._max_batched_tokens - len(decoding))
        if prompt_rows:
            self._runner.prefill(len(decoding) + prompt_rows)
        else:
            self._decode(len(decoding))
        fresh = [
            one for one in self._running if not one.produced and one.prompt_done == len(one.prompt)
        ]
        for request in {id(one): one for one in (*decoding, *fresh)}.values():
            request.produce()
        self._running = [one for one in self._running if not one.is_finished]

    def _decode(self, rows: int) -> None:
        if self._faults_next:
            raise DeviceFaultError(MISALIGNED_ADDRESS)
        self._runner.decode(rows)

    def _take_prompts(self, budget: int) -> int:
        """Give prompt rows to requests, oldest first, in chunks if need be; return how many."""
        with self._changed:
            while self._waiting and len(self._running) < self._max_num_seqs:
                self._running.append(self._waiting.popleft())
        given = 0
        for request in self._running:
            rows = max(0, min(len(request.prompt) - request.prompt_done, budget - given))
            request.prompt_done += rows
            given += rows
        return given

    def _end(self, reason: EngineDeadError) -> None:
        with self._changed:
            self._dead = reason
            left = [*self._running, *self._waiting]
        for request in left:
            request.fail(reason)
