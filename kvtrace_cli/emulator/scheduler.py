"""Continuous batching: which request has which rows in the next pass, and in which KV blocks."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrace_cli.emulator.kv_blocks import KvBlockManager
from kvtrace_cli.emulator.request import Request


@dataclass(frozen=True)
class ScheduledRequest:
    """A request's part of a pass: `rows` positions from `first_position` on.

    `kv_block_ids` is its block table, which lives on and grows after the pass.
    """

    request: Request
    first_position: int
    rows: int
    kv_block_ids: Sequence[int]

    @property
    def makes_token(self) -> bool:
        """Whether the pass computes its last known token, and so yields the next one."""
        return self.first_position + self.rows == len(self.request.token_ids)


@dataclass
class Changes:
    """What the scheduler did to block tables since its output before, as docs/format.md has it."""

    finished: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    admitted: list[tuple[str, int, list[list[int]]]] = field(default_factory=list)
    resumed: list[tuple[str, int, list[list[int]]]] = field(default_factory=list)
    grown: list[tuple[str, list[list[int]]]] = field(default_factory=list)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a line; who writes it leaves out the empty ones."""
        return vars(self)


@dataclass(frozen=True)
class PassShape:
    """What decides how a pass is launched: its rows, and whether each request has one."""

    rows: int
    is_decode: bool

    @classmethod
    def largest(cls, shapes: Iterable["PassShape"]) -> "PassShape":
        """Return the shape that holds all of these; replicas without rows have no say in it."""
        held = [shape for shape in shapes if shape.rows]
        return cls(
            max((shape.rows for shape in held), default=0),
            all(shape.is_decode for shape in held),
        )


@dataclass(frozen=True)
class SchedulerOutput:
    """One pass, in row order, and what changed before it; a pass without rows runs nothing."""

    scheduled: tuple[ScheduledRequest, ...]
    changes: Changes

    @property
    def rows(self) -> int:
        """Rows that requests own."""
        return sum(one.rows for one in self.scheduled)

    @property
    def is_decode(self) -> bool:
        """Whether each request has one row."""
        return all(one.rows == 1 for one in self.scheduled)

    @property
    def shape(self) -> PassShape:
        """How it is launched if nobody else has a say."""
        return PassShape(self.rows, self.is_decode)

    @property
    def is_measured(self) -> bool:
        """Whether a request is in it that asks for more tokens than a warm-up."""
        return any(one.request.max_tokens > 1 for one in self.scheduled)


class Scheduler:
    """First come, first served, in vLLM's order. Used by one thread, but for `add`.

    Running requests go first. If their blocks run out, the newest one is preempted: it loses its
    blocks, goes to the front of those that wait, and computes all over when there is room again.
    """

    def __init__(
        self,
        blocks: KvBlockManager,
        *,
        max_num_seqs: int,
        max_batched_tokens: int,
        choose_shared: Callable[[Sequence[ScheduledRequest], Sequence[int]], Sequence[int]],
    ) -> None:
        """Begin without requests.

        Args:
            blocks: where tables are kept.
            max_num_seqs: requests that may run at once.
            max_batched_tokens: rows that a pass may have.
            choose_shared: given what is in the pass so far and the cached blocks that were found
                for a new request, returns the blocks of others that its table begins with.
        """
        self._blocks = blocks
        self._max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens
        self._choose_shared = choose_shared
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._finished: list[str] = []

    def add(self, request: Request) -> None:
        """Let a request wait for its turn."""
        self._waiting.append(request)

    @property
    def has_work(self) -> bool:
        """Whether there is a request, or an end that no output has told yet."""
        return bool(self._waiting or self._running or self._finished)

    @property
    def is_ending(self) -> bool:
        """Whether the next output runs nothing, and only tells that requests have ended."""
        return bool(self._finished) and not self._running and not self._waiting

    @property
    def unfinished(self) -> list[Request]:
        """All requests whose tokens are not all made."""
        return [*self._running, *self._waiting]

    def schedule(self) -> SchedulerOutput:
        """Decide what the next pass runs."""
        changes = Changes(finished=self._finished)
        self._finished = []
        scheduled = self._schedule_running(changes)
        if not changes.preempted:
            self._schedule_waiting(scheduled, changes)
        # Rows of one token first, then the shorter chunks, as vLLM's second runner sorts.
        scheduled.sort(key=lambda one: one.rows)
        return SchedulerOutput(tuple(scheduled), changes)

    def finish_pass(self, scheduled: Iterable[ScheduledRequest]) -> None:
        """Take in that a pass has run: make tokens, and free the blocks of who has them all."""
        for one in scheduled:
            request = one.request
            makes_token = one.makes_token
            request.computed += one.rows
            if makes_token:
                request.produce()
            if request.is_finished:
                self._running.remove(request)
                self._blocks.free(request.request_id)
                self._finished.append(request.request_id)

    def _schedule_running(self, changes: Changes) -> list[ScheduledRequest]:
        scheduled: list[ScheduledRequest] = []
        budget = self._max_batched_tokens
        # Preempting takes from the end of what is iterated over.
        index = 0
        while index < len(self._running) and budget:
            request = self._running[index]
            index += 1
            rows = min(len(request.token_ids) - request.computed, budget)
            added = self._allocate_or_preempt(request, rows, changes)
            if added is None:
                break
            if added:
                changes.grown.append((request.request_id, [added]))
            scheduled.append(self._part(request, rows))
            budget -= rows
        return scheduled

    def _allocate_or_preempt(
        self, request: Request, rows: int, changes: Changes
    ) -> list[int] | None:
        """Return the blocks that a running request got, or None if it was preempted itself."""
        while True:
            added = self._allocate(request, rows)
            if added is not None:
                return added
            victim = self._running.pop()
            self._blocks.free(victim.request_id)
            changes.preempted.append(victim.request_id)
            victim.was_preempted = True
            self._waiting.appendleft(victim)
            if victim is request:
                return None

    def _schedule_waiting(self, scheduled: list[ScheduledRequest], changes: Changes) -> None:
        budget = self._max_batched_tokens - sum(one.rows for one in scheduled)
        while self._waiting and budget and len(self._running) < self._max_num_seqs:
            request = self._waiting[0]
            cached = self._blocks.find_prefix(request.request_id, request.token_ids)
            shared = self._choose_shared(scheduled, cached)
            request.computed = self._blocks.positions(len(cached))
            rows = min(len(request.token_ids) - request.computed, budget)
            added = self._allocate(request, rows, shared)
            if added is None:
                break
            self._waiting.popleft()
            self._running.append(request)
            told = changes.resumed if request.was_preempted else changes.admitted
            told.append((request.request_id, request.computed, [added]))
            scheduled.append(self._part(request, rows))
            budget -= rows

    def _allocate(
        self, request: Request, rows: int, shared: Sequence[int] = ()
    ) -> list[int] | None:
        count = request.computed + rows
        return self._blocks.allocate(request.request_id, request.token_ids, count, shared)

    def _part(self, request: Request, rows: int) -> ScheduledRequest:
        table = self._blocks.table(request.request_id)
        return ScheduledRequest(request, request.computed, rows, table)
