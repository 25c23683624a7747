"""The HTTP side: /health, /v1/models and /v1/completions, as vLLM answers them."""

import json
import os
import signal
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from kvtrace_cli.emulator.completions import BadRequestError, Completion, ServedModel
from kvtrace_cli.emulator.faults import Fault
from kvtrace_cli.emulator.request import EngineDeadError, Request

_SLOW_START_S = 2.0
_FOREVER_S = 24 * 3600.0
# Bytes that a truncated answer lacks.
_TRUNCATED_BYTES = 20


class Engine(Protocol):
    """What serves the requests: an engine core, or a front end of several."""

    @property
    def is_well(self) -> bool:
        """Whether it still takes requests."""

    def start(self) -> None:
        """Begin to serve."""

    def stop(self) -> None:
        """End it in order."""

    def submit(self, request: Request) -> None:
        """Take a request in.

        Raises:
            EngineDeadError: the engine is gone.
        """

    def fault_next_decode(self) -> None:
        """Let the device fault in the next decode step."""


@dataclass
class Service:
    """What the handlers of one server share."""

    core: Engine
    model: ServedModel
    fault: Fault
    began: float = field(default_factory=time.monotonic)

    @property
    def is_well(self) -> bool:
        """What /health says."""
        is_slow = self.fault is Fault.SLOW_START
        return self.core.is_well and not (is_slow and time.monotonic() - self.began < _SLOW_START_S)

    def strike(self, request: Request) -> None:
        """Let the fault happen, if this is the request for it."""
        if request.max_tokens == 1:
            return
        if self.fault is Fault.HANG:
            time.sleep(_FOREVER_S)
        if self.fault is Fault.CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault in (Fault.DEVICE_FAULT, Fault.EXIT_ZERO):
            self.core.fault_next_decode()


class EmulatorServer(ThreadingHTTPServer):
    """A thread for each connection; many may come at once."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], service: Service) -> None:
        self.service = service
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: EmulatorServer

    def do_GET(self) -> None:
        service = self.server.service
        if self.path == "/health":
            self._reply(200 if service.is_well else 503, b"")
        elif self.path == "/v1/models":
            self._reply_json(200, service.model.listing())
        else:
            self._reply_error(404, "Not Found")

    def do_POST(self) -> None:
        if self.path != "/v1/completions":
            self._reply_error(404, "Not Found")
            return
        service = self.server.service
        try:
            asked = self._read_json()
            request = service.model.read_request(asked, self.headers.get("X-Request-Id"))
            service.strike(request)
            service.core.submit(request)
            self._answer(request, asked)
        except BadRequestError as error:
            self._reply_error(error.status, str(error))
        except EngineDeadError as error:
            self._reply_error(500, str(error))
            if service.fault is Fault.EXIT_ZERO:
                os.kill(os.getpid(), signal.SIGTERM)

    def _read_json(self) -> Any:
        length = int(self.headers.get("Content-Length", 0))
        try:
            return json.loads(self.rfile.read(length))
        except ValueError as error:
            raise BadRequestError(400, f"not JSON: {error}") from error

    def _answer(self, request: Request, asked: dict[str, Any]) -> None:
        completion = Completion(self.server.service.model, request)
        if asked.get("stream"):
            self._stream(completion, request, asked.get("stream_options") or {})
            return
        is_truncated = self.server.service.fault is Fault.TRUNCATED_BODY
        tokens = list(request.tokens())
        body = json.dumps(completion.whole(tokens)).encode()
        cut = _TRUNCATED_BYTES if is_truncated and len(tokens) > 1 else 0
        self._reply(200, body, missing=cut)

    def _stream(self, completion: Completion, request: Request, options: dict[str, Any]) -> None:
        tokens = request.tokens()
        first = next(tokens)  # a fault before it is still an HTTP status
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        self._event(completion.chunk(first, is_last=request.max_tokens == 1))
        for count, token in enumerate(tokens, start=2):
            self._event(completion.chunk(token, is_last=count == request.max_tokens))
        if options.get("include_usage"):
            self._event(completion.usage_chunk(request.max_tokens))
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, document: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())

    def _reply_error(self, status: int, text: str) -> None:
        self._reply_json(status, {"error": {"message": text, "code": status}})

    def _reply_json(self, status: int, document: dict[str, Any]) -> None:
        self._reply(status, json.dumps(document).encode())

    def _reply(self, status: int, body: bytes, missing: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) - missing])

    def log_message(self, *_arguments: object) -> None:
        """Keep the log for what an engine says; requests.jsonl has the requests."""
