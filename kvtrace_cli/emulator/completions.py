"""vLLM's completions: a request's JSON -> Request, tokens -> the answer's JSON."""

import time
import uuid
from dataclasses import dataclass
from typing import Any

from kvtrace_cli.emulator.request import Request

_DEFAULT_MAX_TOKENS = 16


class BadRequestError(Exception):
    """The request cannot be served; status and text are the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class ServedModel:
    """The model as requests see it."""

    name: str
    max_model_len: int
    vocabulary: int

    def listing(self) -> dict[str, Any]:
        """Return the document of /v1/models."""
        card = {"id": self.name, "object": "model", "owned_by": "kvtrace"}
        return {"object": "list", "data": [card | {"max_model_len": self.max_model_len}]}

    def read_request(self, asked: Any, header_id: str | None) -> Request:
        """Check a request; `header_id` is its X-Request-Id, which becomes part of its ids.

        Raises:
            BadRequestError: it asks for another model, has no token ids, or is too long.
        """
        if not isinstance(asked, dict):
            raise BadRequestError(400, "expected a JSON object")
        if asked.get("model", self.name) != self.name:
            raise BadRequestError(404, f"The model {asked['model']!r} does not exist.")
        prompt, most = asked.get("prompt"), asked.get("max_tokens", _DEFAULT_MAX_TOKENS)
        if not isinstance(prompt, list) or not prompt or not all(map(self._is_token, prompt)):
            raise BadRequestError(400, "prompt: expected a list of token ids: no tokenizer here")
        if type(most) is not int or most < 1:
            raise BadRequestError(400, f"max_tokens: found {most!r}, expected 1 or more")
        if len(prompt) + most > self.max_model_len:
            raise BadRequestError(
                400,
                f"maximum context length is {self.max_model_len} tokens, "
                f"found {len(prompt)} + {most}",
            )
        completion_id = f"cmpl-{header_id or uuid.uuid4().hex}"
        return Request(completion_id, tuple(prompt), most, self.vocabulary)

    def _is_token(self, value: Any) -> bool:
        return type(value) is int and 0 <= value < self.vocabulary


class Completion:
    """The documents of one answer."""

    def __init__(self, model: ServedModel, request: Request) -> None:
        self._prompt_tokens = len(request.prompt)
        self._head = {
            "id": request.completion_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }

    def whole(self, tokens: list[int]) -> dict[str, Any]:
        """Return the answer that is not streamed."""
        choice = self._choice(tokens, "length")
        return self._head | {"choices": [choice], "usage": self._usage(len(tokens))}

    def chunk(self, token: int, *, is_last: bool) -> dict[str, Any]:
        """Return one event of a stream."""
        return self._head | {"choices": [self._choice([token], "length" if is_last else None)]}

    def usage_chunk(self, count: int) -> dict[str, Any]:
        """Return the event that ends a stream with the usage."""
        return self._head | {"choices": [], "usage": self._usage(count)}

    def _usage(self, count: int) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": count,
            "total_tokens": self._prompt_tokens + count,
        }

    @staticmethod
    def _choice(tokens: list[int], finish_reason: str | None) -> dict[str, Any]:
        text = "".join(f" {token}" for token in tokens)
        return {"index": 0, "text": text, "token_ids": tokens, "finish_reason": finish_reason}
