"""Follow the engine's log: its phase, what it chose, and the lines that say it died inside."""

import re
from dataclasses import dataclass
from pathlib import Path

TAIL_LINES = 20
_TAIL_BYTES = 64 * 1024

# Texts of vLLM 0.20 to 0.33, in the order in which they appear.
_PHASES = (
    (re.compile(r"Starting to load model|Loading (safetensors|weights)"), "loading weights"),
    (
        # Not every "torch.compile": "Enforce eager set, disabling torch.compile" is one too.
        re.compile(
            r"Starting torch\.compile|torch\.compile (takes|took)|for vLLM's torch\.compile"
            r"|Dynamo bytecode|Compiling a graph|Cache the graph"
        ),
        "compiling",
    ),
    (re.compile(r"Capturing CUDA graph|Graph capturing"), "capturing graphs"),
    (re.compile(r"Starting vLLM (API )?server|Application startup complete"), "opening the port"),
)
_FATAL = re.compile(
    r"CUDA error|misaligned address|illegal memory access|EngineDeadError"
    r"|EngineCore (encountered a fatal error|failed to start)"
)
# The engine's or a worker's own exception; a long traceback of the API server comes below it.
_EXCEPTION = re.compile(r"^\((?:EngineCore|Worker)[^)]*\) ERROR [^]]*\] ((?:\w+\.)*\w+Error: .+)")
# With --attention-backend vLLM says the first, without it the second. Image encoders, the prefill
# of MLA and kernels other than attention's have lines of another form.
_ATTENTION_BACKEND = re.compile(
    r"Using (?:AttentionBackendEnum\.(\w+) backend\.|(\w+) attention backend out of)"
)
_FLASH_ATTENTION = re.compile(r"Using FlashAttention version (\d+)")


@dataclass(frozen=True)
class EngineAttention:
    """Which attention the engine says it uses, in order of names and numbers.

    Several of a sort: its processes, or layers of one model, do not use the same.
    """

    backends: tuple[str, ...] = ()
    flash_attention_versions: tuple[int, ...] = ()


class ServerLog:
    """Reads a log that another process appends to; every call reads only what is new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._partial = ""
        self._phase: str | None = None
        self._fatal_line: str | None = None
        self._exception: str | None = None
        self._backends: set[str] = set()
        self._flash_attention: set[int] = set()

    def follow(self) -> None:
        """Read the lines that came since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._partial = (self._partial + data.decode(errors="replace")).split("\n")
        for line in lines:
            self._look_at(line)

    @property
    def phase(self) -> str | None:
        """The last phase of the start that the log named."""
        return self._phase

    @property
    def fatal_line(self) -> str | None:
        """The first line that says the engine cannot go on."""
        return self._fatal_line

    @property
    def attention(self) -> EngineAttention | None:
        """What the lines up to now say of the attention; null if they say nothing."""
        if not (self._backends or self._flash_attention):
            return None
        return EngineAttention(tuple(sorted(self._backends)), tuple(sorted(self._flash_attention)))

    def tail(self) -> str:
        """Return why the engine failed, if the log says it, its last lines, and where it is."""
        self.follow()
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        shown = "\n".join(f"  | {line}" for line in lines) or "  | (empty)"
        cause = self._exception or self._fatal_line
        said = "" if cause is None else f"its log says: {cause}; "
        return f"{said}the end of its log (all of it: {self.path}):\n{shown}"

    def _look_at(self, line: str) -> None:
        for pattern, phase in _PHASES:
            if pattern.search(line):
                self._phase = phase
        if backend := _ATTENTION_BACKEND.search(line):
            self._backends.add(backend.group(1) or backend.group(2))
        if version := _FLASH_ATTENTION.search(line):
            self._flash_attention.add(int(version.group(1)))
        if self._fatal_line is None and _FATAL.search(line):
            self._fatal_line = line.strip()
        exception = _EXCEPTION.search(line)
        if self._exception is None and exception is not None:
            self._exception = exception.group(1).strip()
