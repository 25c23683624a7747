"""A front process whose child owns the GPU, as vLLM's API server and its EngineCore."""

import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_PIECE_BYTES = 4096
_ANSWER_S = 600
_STOP_S = 10


class WorkerFront(ThreadingHTTPServer):
    """Passes every request on to the child and its answer back, piece by piece."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], arguments: list[str]) -> None:
        """Start the child.

        Args:
            address: where to listen.
            arguments: of `serve`, without the port and this fault.
        """
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.child_port = int(probe.getsockname()[1])
        command = [sys.executable, "-m", "kvtrace_cli.emulator", "serve", *arguments]
        self._child = subprocess.Popen([*command, "--port", str(self.child_port)])
        super().__init__(address, _Relay)

    def stop_child(self) -> None:
        """End the child as it should be ended; kill it if it stays."""
        self._child.send_signal(signal.SIGINT)
        try:
            self._child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()


class _Relay(BaseHTTPRequestHandler):
    server: WorkerFront

    def do_GET(self) -> None:
        self._relay(b"")

    def do_POST(self) -> None:
        self._relay(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _relay(self, body: bytes) -> None:
        child = HTTPConnection("127.0.0.1", self.server.child_port, timeout=_ANSWER_S)
        try:
            request_id = self.headers.get("X-Request-Id")
            headers = {"X-Request-Id": request_id} if request_id else {}
            child.request(self.command, self.path, body, headers)
            answer = child.getresponse()
            self.send_response(answer.status)
            for name in ("Content-Type", "Content-Length"):
                if value := answer.getheader(name):
                    self.send_header(name, value)
            self.end_headers()
            while piece := answer.read1(_PIECE_BYTES):
                self.wfile.write(piece)
        except (OSError, HTTPException):
            # Before the child listens, and after its end.
            self.send_error(503)
        finally:
            child.close()

    def log_message(self, *_arguments: object) -> None:
        """Keep the log for what an engine says."""
