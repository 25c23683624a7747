"""The emulated CUDA driver, by cffi: calls that return a result raise it instead."""

from pathlib import Path
from typing import Any

import cffi

from kvtrace_cli.dumps import abi

_HEADER_NAME = "kvtrace_emulator_decl.h"
_BLOCK_DIM = (128, 1, 1)


class DeviceFaultError(Exception):
    """A CUDA error; the context is of no more use."""

    def __init__(self, code: int) -> None:
        text = "misaligned address" if code == MISALIGNED_ADDRESS else f"error {code}"
        super().__init__(f"CUDA error: {text}")
        self.code = code


MISALIGNED_ADDRESS = 716


class Driver:
    """One context with one stream, as an engine's worker has them. Handles are opaque."""

    def __init__(self, library: Path) -> None:
        ffi = cffi.FFI()
        ffi.cdef(abi.header_text(_HEADER_NAME, "emulator"))
        self._ffi = ffi
        self._lib = ffi.dlopen(str(library))
        self._context = self._lib.kvtrace_emu_context_create(0)
        self._stream = self._lib.kvtrace_emu_stream_create(self._context)

    def load_module(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Load a module that holds these kernels; return its functions by name."""
        texts = [self._ffi.new("char[]", name.encode()) for name in names]
        module = self._lib.kvtrace_emu_module_load(self._context, texts, len(texts), 0)
        return {
            name: self._lib.kvtrace_emu_get_function(module, text)
            for name, text in zip(names, texts, strict=True)
        }

    def launch(self, function: Any, blocks: int, block_ns: int = 0) -> None:
        """Queue a kernel, or capture it.

        Raises:
            DeviceFaultError: an earlier kernel faulted.
        """
        grid = (blocks, 1, 1)
        self._check(
            self._lib.kvtrace_emu_launch(self._stream, function, grid, _BLOCK_DIM, block_ns)
        )

    def begin_capture(self) -> None:
        """Capture what is launched from here on."""
        self._check(self._lib.kvtrace_emu_begin_capture(self._stream))

    def end_capture(self) -> Any:
        """Return what was captured as a graph exec."""
        graph = self._lib.kvtrace_emu_end_capture(self._stream)
        return self._lib.kvtrace_emu_instantiate(self._context, graph)

    def replay(self, graph_exec: Any) -> None:
        """Queue one launch of a graph exec.

        Raises:
            DeviceFaultError: an earlier kernel faulted.
        """
        self._check(self._lib.kvtrace_emu_graph_launch(graph_exec, self._stream))

    def synchronize(self) -> None:
        """Wait until all that was queued has run.

        Raises:
            DeviceFaultError: a kernel faulted.
        """
        self._check(self._lib.kvtrace_emu_stream_synchronize(self._stream))

    def blocks_run(self, function: Any) -> int:
        """Return how many thread blocks of a function have run: the truth to compare with."""
        return int(self._lib.kvtrace_emu_blocks_run(function))

    def _check(self, result: int) -> None:
        if result:
            raise DeviceFaultError(result)
