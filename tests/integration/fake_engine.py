"""Stands in for a vLLM server: its health and completions routes, its signals, and its faults.

KVTRACE_TEST_FAULT names what goes wrong, KVTRACE_TEST_PIDS a file to write process ids to. Unless
KVTRACE_TEST_RECORD is 0, it writes the recording that an injector would leave. Where
KVTRACE_TEST_TOGETHER is above 1, requests of several tokens are answered only once so many are
there, and take PACE_S a token.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]

from builders import Trace, flags, journal, write_lines  # noqa: E402

from kvtrace_cli.dumps import abi  # noqa: E402

FAULT = os.environ.get("KVTRACE_TEST_FAULT", "")
LAYERS = 4
SLOW_START_S = 1.0
PACE_S = 0.05
TOGETHER = int(os.environ.get("KVTRACE_TEST_TOGETHER", "1"))
FAILING_TOKENS = 3


class Recorder:
    """Writes what the injector would: plain launches in prefill, a graph replay a decode step.

    Unless `close` is called, its files are those of a process that was killed.
    """

    def __init__(self, raw: Path) -> None:
        self._raw = raw
        self._trace = Trace(process_id=os.getpid(), changes={"flags": flags("PATCHED")})
        self._replays = 0
        self._lock = threading.Lock()

    def answer(self, prompt_tokens: int, tokens: int) -> None:
        """Record one request; requests come at once, and the recording is one."""
        with self._lock:
            self.step("plain", rows=prompt_tokens)
            for _ in range(tokens - 1):
                self.step("replay")
            self.publish()

    def step(self, kind: str, rows: int = 1) -> None:
        self._replays += kind == "replay"
        for layer in range(LAYERS):
            now = {"host_monotonic_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC)}
            if kind == "replay":
                launch = self._trace.node(layer, self._replays, (1, 1, 1), **now)
            else:
                launch = self._trace.plain((rows, 1, 1), **now)
            self._trace.enter_all(launch)

    def publish(self) -> None:
        pid = os.getpid()
        self._replace(f"{pid}-0.events.kvt", self._trace.event_file())
        self._replace(f"{pid}.launches.kvt", self._trace.launch_file())
        write_lines(self._raw / f"{pid}.journal.jsonl", journal())

    def close(self) -> None:
        """End in order."""
        with self._lock:
            self._trace.changes = {}
            self.publish()

    def _replace(self, name: str, data: bytes) -> None:
        temporary = self._raw / f"{name}.new"
        temporary.write_bytes(data)
        temporary.replace(self._raw / name)


def recorder() -> Recorder | None:
    path = os.environ.get("KVTRACE_CONFIG")
    if path is None or os.environ.get("KVTRACE_TEST_RECORD") == "0":
        return None
    config = abi.ffi().from_buffer("kvtrace_config *", Path(path).read_bytes())
    made = Recorder(Path(abi.ffi().string(config.output_dir).decode()))
    made.step("plain", rows=8)
    made.publish()
    return made


class Handler(BaseHTTPRequestHandler):
    recorder: Recorder | None = None
    meeting = threading.Barrier(TOGETHER)
    ready_at = 0.0
    answered = 0

    def do_GET(self) -> None:
        well = time.monotonic() >= self.ready_at and FAULT != "never_healthy"
        if FAULT == "unhealthy_after" and Handler.answered > 1:
            well = False
        self._reply(200 if well else 503, b"")

    def do_POST(self) -> None:
        if self.path in ("/start_profile", "/stop_profile"):
            self._profile()
            return
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = asked["max_tokens"]
        if tokens > 1:
            self._fault()
        if TOGETHER > 1 and tokens > 1:
            self.meeting.wait(timeout=10)
            time.sleep(tokens * PACE_S)
        if self.recorder is not None:
            self.recorder.answer(len(asked["prompt"]), tokens)
        Handler.answered += 1
        if asked.get("stream"):
            self._stream(tokens)
        else:
            self._answer(tokens)

    def _profile(self) -> None:
        """As vLLM does where --profiler-config was given; else it has no such route."""
        if "--profiler-config" not in sys.argv or FAULT == "no_profiler":
            self._reply(404, b"")
            return
        if self.path == "/stop_profile" and FAULT != "no_trace":
            config = json.loads(sys.argv[sys.argv.index("--profiler-config") + 1])
            traces = Path(config["torch_profiler_dir"])
            traces.mkdir(exist_ok=True)
            (traces / "rank0.pt.trace.json").write_text("{}")
        log(f"INFO {self.path}")
        self._reply(200, b"")

    def _fault(self) -> None:
        if FAULT == "hang":
            time.sleep(600)
        if FAULT == "dies":
            log("EngineCore encountered a fatal error")
            os._exit(0)
        if FAULT == "fatal_500":
            log("RuntimeError: CUDA error: misaligned address" + "\n  frame of a traceback" * 40)
        if FAULT == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "fatal_log":
            log("RuntimeError: CUDA error: misaligned address")

    def _answer(self, tokens: int) -> None:
        one_fails = FAULT == "one_fails" and tokens == FAILING_TOKENS
        if one_fails or FAULT == "http_500" or (FAULT == "fatal_500" and tokens > 1):
            self._reply(500, b'{"error":"EngineCore died"}')
            return
        returned = tokens - 1 if FAULT == "too_few" and tokens > 1 else tokens
        body = {
            "choices": [{"text": "", "token_ids": list(range(returned))}],
            "usage": {"completion_tokens": returned},
        }
        data = json.dumps(body).encode()
        if FAULT == "not_json":
            data = b"<html>proxy</html>"
        self._reply(200, data, missing=20 if FAULT == "truncated" else 0)

    def _stream(self, tokens: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for token in range(tokens):
            self._event({"choices": [{"token_ids": [token]}]})
        if FAULT != "stream_stops":
            self._event({"choices": [], "usage": {"completion_tokens": tokens}})
            self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, document: dict) -> None:
        self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())

    def _reply(self, status: int, data: bytes, missing: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) - missing])
        self.close_connection = True

    def log_message(self, *_arguments: object) -> None:
        pass


def log(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def note_pid(pid: int) -> None:
    with Path(os.environ["KVTRACE_TEST_PIDS"]).open("a") as file:
        file.write(f"{pid}\n")


def end(_number: int, _frame: object) -> None:
    if Handler.recorder is not None:
        Handler.recorder.close()
    os._exit(0)


def set_signals() -> None:
    ignored = {
        "ignores_sigint": (signal.SIGINT,),
        "ignores_both": (signal.SIGINT, signal.SIGTERM),
        "never_healthy": (signal.SIGTERM,),  # as vLLM does while it starts
    }
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.SIG_IGN if number in ignored.get(FAULT, ()) else end
        signal.signal(number, handler)


def start_children() -> None:
    """One in our group, and one in a session of its own whose parent is gone."""
    note_pid(subprocess.Popen(["sleep", "600"]).pid)
    script = (
        "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True,"
        "stdout=subprocess.DEVNULL).pid)"
    )
    answer = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    note_pid(int(answer.stdout))


def main() -> None:
    note_pid(os.getpid())
    set_signals()
    log("INFO Starting to load model")
    if FAULT == "exits_at_start":
        log("RuntimeError: Failed to infer device type")
        sys.exit(7)
    if FAULT == "children":
        start_children()
    arguments = sys.argv
    port = int(arguments[arguments.index("--port") + 1])
    Handler.recorder = recorder()
    Handler.ready_at = time.monotonic() + (SLOW_START_S if FAULT == "slow_start" else 0)
    for rank in ("TP0", "TP1"):
        log(f"(Worker_{rank} pid=1) INFO Using AttentionBackendEnum.FLASH_ATTN backend.")
        log(f"(Worker_{rank} pid=1) INFO Using FlashAttention version 3")
    log("INFO Capturing CUDA graphs")
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
