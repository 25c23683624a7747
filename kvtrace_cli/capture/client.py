"""Requests to the engine over HTTP; the one module that knows httpx."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import httpx

from kvtrace_cli.config import RequestSpec, TimeLimits

_OK = 200
_BODY_SHOWN = 300
_EVENT_PREFIX = "data: "
_STREAM_END = "[DONE]"


@dataclass(frozen=True)
class RequestRecord:
    """One line of requests.jsonl. Times are CLOCK_MONOTONIC, ns, of this process's host."""

    request_index: int
    role: str
    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    http_status: int | None
    returned_token_ids: tuple[int, ...] | None
    host_monotonic_begin_ns: int
    host_monotonic_end_ns: int
    token_host_monotonic_ns: tuple[int, ...] | None
    error: str | None

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @property
    def token_gaps_ms(self) -> list[float] | None:
        """Time between one token and the next as they arrived, ms; null if not streamed."""
        times = self.token_host_monotonic_ns
        if times is None:
            return None
        return [(late - early) / 1e6 for early, late in pairwise(times)]


@dataclass(frozen=True)
class _Answer:
    """What one request brought back, before it is judged."""

    http_status: int | None = None
    token_ids: tuple[int, ...] | None = None
    completion_tokens: int | None = None
    token_times: tuple[int, ...] | None = None
    error: str | None = None


class EngineClient:
    """Talks to one engine on this machine; proxies of the environment have no say."""

    def __init__(self, port: int, model: str, limits: TimeLimits) -> None:
        self._model = model
        self._health_s = limits.health_s
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            timeout=limits.request_s,
            # As many as are asked for at once: a request that waits here would be timed wrongly.
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def is_healthy(self) -> bool:
        """Ask /health; anything but HTTP 200 is no."""
        try:
            return self._http.get("/health", timeout=self._health_s).status_code == _OK
        except httpx.HTTPError:
            return False

    def post(self, route: str, timeout_s: float) -> int | None:
        """Post nothing to a route; return the HTTP status, null if none came in time."""
        try:
            return self._http.post(route, timeout=timeout_s).status_code
        except httpx.HTTPError:
            return None

    def send(self, request_index: int, spec: RequestSpec) -> RequestRecord:
        """Send one completion request and judge the answer.

        Never raises for what the engine did: `error` of the record says what was wrong.
        """
        request_id = f"kvtrace-{request_index}"
        body = self._body(spec)
        headers = {"X-Request-Id": request_id}
        begin = _host_monotonic_ns()
        answer = self._exchange(body, headers)
        end = _host_monotonic_ns()
        if answer.error is None:
            answer = replace(answer, error=_judge(answer, spec.max_tokens))
        return RequestRecord(
            request_index=request_index,
            role=spec.role.value,
            request_id=request_id,
            prompt_token_ids=spec.prompt_token_ids,
            max_tokens=spec.max_tokens,
            http_status=answer.http_status,
            returned_token_ids=answer.token_ids,
            host_monotonic_begin_ns=begin,
            host_monotonic_end_ns=end,
            token_host_monotonic_ns=answer.token_times,
            error=answer.error,
        )

    def _body(self, spec: RequestSpec) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(spec.prompt_token_ids),
            "max_tokens": spec.max_tokens,
            # An early end would leave a decode step in flight: more replays than tokens.
            "ignore_eos": True,
            "temperature": 0,
            "return_token_ids": True,
        }
        if spec.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def _exchange(self, body: dict[str, Any], headers: dict[str, str]) -> _Answer:
        try:
            with self._http.stream(
                "POST", "/v1/completions", json=body, headers=headers
            ) as response:
                return _read_answer(response, stream="stream" in body)
        except httpx.TimeoutException:
            return _Answer(error=f"no answer within {self._http.timeout.read:g} s")
        except httpx.HTTPError as error:
            return _Answer(error=f"connection failed: {error or type(error).__name__}")


def _read_answer(response: httpx.Response, *, stream: bool) -> _Answer:
    """Read to the end, keeping what came if the end never does."""
    answer, shown = _Answer(response.status_code), ""
    try:
        if response.status_code != _OK:
            shown = response.read().decode(errors="replace")
            return replace(answer, error=f"HTTP {response.status_code}: {shown[:_BODY_SHOWN]}")
        for text in _events(response) if stream else [_whole_body(response)]:
            shown = text
            chunk = json.loads(text)
            if isinstance(chunk, dict) and chunk.get("error"):
                reason = f"HTTP 200, then the engine says: {_message(chunk['error'])}"
                return replace(answer, error=reason)
            answer = _add_chunk(answer, chunk, timed=stream)
    except httpx.HTTPError as error:
        reason = f"HTTP {response.status_code}, then the connection failed: {error}"
        return replace(answer, error=reason)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        reason = f"HTTP 200 with an unreadable answer ({type(error).__name__}: {error})"
        return replace(answer, error=f"{reason}: {shown[:_BODY_SHOWN]}")
    return answer


def _add_chunk(answer: _Answer, chunk: dict[str, Any], *, timed: bool) -> _Answer:
    """Add the tokens of one chunk; an answer that is not streamed is its only chunk."""
    arrived = _host_monotonic_ns()
    tokens = [token for choice in chunk["choices"] for token in choice["token_ids"] or ()]
    usage = chunk.get("usage")
    return replace(
        answer,
        token_ids=(*(answer.token_ids or ()), *tokens),
        completion_tokens=usage["completion_tokens"] if usage else answer.completion_tokens,
        token_times=(*(answer.token_times or ()), *[arrived] * len(tokens)) if timed else None,
    )


def _message(error: Any) -> str:
    """Return the text of an error that came inside an answer, which is no answer then."""
    text = error.get("message") if isinstance(error, dict) else None
    return str(text or error)[:_BODY_SHOWN]


def _whole_body(response: httpx.Response) -> str:
    return response.read().decode(errors="replace")


def _events(response: httpx.Response) -> Iterator[str]:
    """Yield the data of each server-sent event up to the end mark."""
    for line in response.iter_lines():
        if line.startswith(_EVENT_PREFIX):
            data = line.removeprefix(_EVENT_PREFIX)
            if data == _STREAM_END:
                return
            yield data


def _judge(answer: _Answer, max_tokens: int) -> str | None:
    """Say what is wrong with an answer that came with HTTP 200, if anything is."""
    returned = len(answer.token_ids or ())
    if answer.completion_tokens != max_tokens:
        return f"usage says {answer.completion_tokens} tokens, expected {max_tokens}"
    if returned != max_tokens:
        return f"{returned} token ids came back, expected {max_tokens}"
    return None


def _host_monotonic_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
