"""vLLM's own torch profiler: how a server is told of it, and asked to begin and to end."""

import json
import shutil
from pathlib import Path
from typing import Final

from kvtrace_cli.capture.client import EngineClient
from kvtrace_cli.errors import RunFailedError

_OK: Final = 200
_NOT_FOUND: Final = 404


class TorchProfiler:
    """The profiler of one server on this machine."""

    def __init__(self, client: EngineClient, traces: Path) -> None:
        """Take a server's client, and the absolute directory that it writes traces to."""
        self._client = client
        self._traces = traces

    def arguments(self) -> tuple[str, ...]:
        """Return what `vllm serve` needs to have it: kernels and operators, no stacks."""
        config = {
            "profiler": "torch",
            "torch_profiler_dir": str(self._traces),
            "torch_profiler_with_stack": False,
            # Both only make the end of a profile longer.
            "torch_profiler_use_gzip": False,
            "torch_profiler_dump_cuda_time_total": False,
        }
        return ("--profiler-config", json.dumps(config, separators=(",", ":")))

    def begin(self, patience_s: float) -> None:
        """Have the server profile what it runs from here on.

        Raises:
            RunFailedError: it does not.
        """
        self._ask("/start_profile", patience_s)

    def end(self, patience_s: float) -> None:
        """Have it write its traces, which may take minutes, and remove them: only cost is wanted.

        Raises:
            RunFailedError: it does not, or there is no trace: then nothing was profiled.
        """
        self._ask("/stop_profile", patience_s)
        if not any(path.is_file() for path in self._traces.rglob("*")):
            raise RunFailedError(
                f"{self._traces}: the profiler left no trace, so what it costs was not measured; "
                "see the server's log"
            )
        shutil.rmtree(self._traces)

    def _ask(self, route: str, patience_s: float) -> None:
        status = self._client.post(route, patience_s)
        if status == _NOT_FOUND:
            raise RunFailedError(
                f"{route}: HTTP {status}; this vLLM has no profiler, or is asked for it in another "
                "way than 0.13 and later are"
            )
        if status != _OK:
            found = f"no answer within {patience_s:g} s" if status is None else f"HTTP {status}"
            raise RunFailedError(f"{route}: {found}, expected HTTP {_OK}")
