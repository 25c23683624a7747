"""The emulated CUDA driver, by cffi: calls that return a result raise it instead."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cffi

from kvtrace_cli.dumps import abi

_HEADER_NAME = "kvtrace_emulator_decl.h"
_BLOCK_DIM = (128, 1, 1)
_PLAN_FIELDS = (
    "key_address",
    "value_address",
    "block_stride",
    "offset_stride",
    "block_size",
    "access_size",
)


class DeviceFaultError(Exception):
    """A CUDA error; the context is of no more use."""

    def __init__(self, code: int) -> None:
        text = "misaligned address" if code == MISALIGNED_ADDRESS else f"error {code}"
        super().__init__(f"CUDA error: {text}")
        self.code = code


MISALIGNED_ADDRESS = 716


class SlotMapping:
    """Device memory for the KV slot of each row; kernels read it when their blocks run.

    So a captured graph that is replayed sees what was set last, as on a GPU.
    """

    def __init__(self, driver: "Driver", capacity: int) -> None:
        """Make a mapping of `capacity` rows, all -1; it lives as long as the driver."""
        self._driver = driver
        self.capacity = capacity
        self.handle = driver.create_slots(capacity)

    def set(self, kv_slots: Sequence[int]) -> None:
        """Queue the slots of the first rows, for what is launched from here on; the rest is -1.

        Raises:
            ValueError: there are more slots than rows.
            DeviceFaultError: an earlier kernel faulted.
        """
        if len(kv_slots) > self.capacity:
            raise ValueError(f"{len(kv_slots)} KV slots for a mapping of {self.capacity} rows")
        self._driver.set_slots(self.handle, kv_slots)


@dataclass(frozen=True)
class CacheWrites:
    """Where a kernel stores K and V: thread block x at the slot that `slots` has for row x.

    Eight threads store `access_size` bytes each, side by side, once for K and once for V; in a row
    without a slot (-1), none does.
    """

    slots: SlotMapping
    key_address: int
    value_address: int
    # Bytes from one KV block to the next, and from one of its tokens to the next.
    block_stride: int
    offset_stride: int
    # Tokens of a KV block.
    block_size: int
    access_size: int = 16


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

    def launch(
        self, function: Any, blocks: int, block_ns: int = 0, writes: CacheWrites | None = None
    ) -> None:
        """Queue a kernel, or capture it.

        Raises:
            ValueError: more blocks than `writes` has rows.
            DeviceFaultError: an earlier kernel faulted.
        """
        kernel = (self._stream, function, (blocks, 1, 1), _BLOCK_DIM, block_ns)
        if writes is None:
            self._check(self._lib.kvtrace_emu_launch(*kernel))
            return
        if blocks > writes.slots.capacity:
            raise ValueError(f"{blocks} blocks for {writes.slots.capacity} rows of KV slots")
        self._check(self._lib.kvtrace_emu_launch_writing(*kernel, self._plan(writes)))

    def create_slots(self, capacity: int) -> Any:
        """Return memory for `capacity` KV slots; see `SlotMapping`."""
        return self._lib.kvtrace_emu_slots_create(self._context, capacity)

    def set_slots(self, slots: Any, kv_slots: Sequence[int]) -> None:
        """Queue a copy into KV slots; see `SlotMapping`.

        Raises:
            DeviceFaultError: an earlier kernel faulted.
        """
        numbers = self._ffi.new("int64_t[]", list(kv_slots))
        self._check(self._lib.kvtrace_emu_slots_set(self._stream, slots, numbers, len(numbers)))

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

    def _plan(self, writes: CacheWrites) -> Any:
        """Return the struct of these writes; the call that gets it copies it."""
        plan = self._ffi.new("kvtrace_emu_cache_writes *")
        plan.slots = writes.slots.handle
        for name in _PLAN_FIELDS:
            setattr(plan, name, getattr(writes, name))
        return plan

    def _check(self, result: int) -> None:
        if result:
            raise DeviceFaultError(result)
