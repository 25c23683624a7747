"""One completion on its way through the engine."""

import queue
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_SUFFIX_BYTES = 4


class EngineDeadError(Exception):
    """The engine cannot go on; the text says why."""


@dataclass(frozen=True)
class RequestFacts:
    """What a worker knows of a request."""

    request_id: str
    max_tokens: int


@dataclass(frozen=True)
class RequestOrder:
    """What makes the same request in another process."""

    completion_id: str
    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    vocabulary: int

    def request(self, tell: Callable[[int | Exception], None]) -> "Request":
        """Return the request; `tell` gets its tokens."""
        return Request(**vars(self), tell=tell)


@dataclass(eq=False)
class Request:
    """Its tokens come out of a queue, an exception ends it.

    `completion_id` is the answer's id; `request_id` is the one inside the engine, made of it as
    vLLM does: the number of the prompt and eight random hexadecimal digits behind it.
    """

    completion_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    vocabulary: int
    request_id: str = ""
    # Gets the tokens in place of the queue, in another process than the one that answers.
    tell: Callable[[int | Exception], None] | None = None
    # The prompt, and what was made of it so far.
    token_ids: list[int] = field(init=False)
    # Positions from 0 whose K and V are in its blocks; of no meaning while it waits.
    computed: int = 0
    was_preempted: bool = False
    _out: "queue.SimpleQueue[int | Exception]" = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        if not self.request_id:
            self.request_id = f"{self.completion_id}-0-{secrets.token_hex(_SUFFIX_BYTES)}"
        self.token_ids = list(self.prompt)
        self._seed = sum(self.prompt) * 31

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
    def produced(self) -> int:
        """How many tokens are made."""
        return len(self.token_ids) - len(self.prompt)

    @property
    def is_finished(self) -> bool:
        """Whether all its tokens are made."""
        return self.produced == self.max_tokens

    def produce(self) -> None:
        """Make the next token: the same for the same prompt and place, whatever else runs."""
        token = (self._seed + self.produced * 7919) % self.vocabulary
        self.token_ids.append(token)
        self.give(token)

    def fail(self, error: Exception) -> None:
        """End it without its tokens."""
        self.give(error)

    def order(self) -> RequestOrder:
        """Return what makes it in another process."""
        return RequestOrder(
            self.completion_id, self.request_id, self.prompt, self.max_tokens, self.vocabulary
        )

    def give(self, token: int | Exception) -> None:
        """Hand a token on, or what ended it."""
        (self.tell or self._out.put)(token)

    def __reduce__(self) -> tuple[type[RequestFacts], tuple[str, int]]:
        """Go to a worker as what that may know."""
        return RequestFacts, (self.request_id, self.max_tokens)
