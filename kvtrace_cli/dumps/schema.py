"""What a recording looks like in memory; column names and types come from the ABI header."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from kvtrace_cli.dumps import abi

if TYPE_CHECKING:
    from kvtrace_cli.dumps.event_source import EventDump

PROCESS_ID: Final = "process_id"
CONTEXT_INDEX: Final = "context_index"
# Derived by the reader: the full sequence of an event, from the 16 bits that each event repeats.
SEQUENCE: Final = "sequence"
# Derived by the analysis, so never recorded: see analysis/launches.py.
LAUNCH_INDEX: Final = "launch_index"
REQUEST_INDEX: Final = "request_index"
LAYER_INDEX: Final = "layer_index"
DECODE_STEP: Final = "decode_step"

SEQUENCE_MODULUS: Final = 1 << 16

_UNSIGNED: Final[dict[int, type[pl.DataType]]] = {
    1: pl.UInt8,
    2: pl.UInt16,
    4: pl.UInt32,
    8: pl.UInt64,
}


@dataclass(frozen=True)
class FileHeader:
    """The header fields of a dump file that Python uses; meanings are in the ABI header."""

    record_count: int
    dropped_count: int
    host_monotonic_ns: int
    capacity: int
    process_id: int
    context_index: int
    flags: int
    first_failure_site: int
    first_failure_result: int

    def has(self, flag: str) -> bool:
        """Say whether a `kvtrace_file_flag` such as KVTRACE_FILE_CLOSED is set."""
        return bool(self.flags & abi.constant(flag))


@dataclass(frozen=True)
class Dump:
    """One dump file: its name without directory, its header, and its records as a frame."""

    name: str
    header: FileHeader
    records: pl.DataFrame


@dataclass(frozen=True)
class ActivityDump:
    """What CUPTI saw run in one process, and the mangled names that `name_id` counts."""

    dump: Dump
    names: tuple[str, ...]


@dataclass(frozen=True)
class KvGroup:
    """A KV-cache group: tokens of the scheduler's and of the tensors' KV blocks, and its layers.

    `sliding_window` and `attention_chunk_size` in tokens, None: there is none; `unknown_window`:
    the engine takes KV blocks back early by another rule.
    """

    block_size: int
    kernel_block_size: int
    layer_names: tuple[str, ...]
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    unknown_window: bool = False


@dataclass(frozen=True)
class KvTensor:
    """One view that kernels write; `shape` and `stride` in elements, `axes` as docs/format.md."""

    layer_name: str
    layer_index: int
    group: int
    role: str
    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    axes: tuple[str, ...] | None
    dtype: str
    element_size: int


@dataclass(frozen=True)
class Layout:
    """Where the KV tensors of a process are; `num_blocks` counts the KV blocks of a group."""

    num_blocks: int
    null_block: int | None
    groups: tuple[KvGroup, ...]
    tensors: tuple[KvTensor, ...]


@dataclass(frozen=True)
class ProcessSteps:
    """What the engine plug-in wrote in one process, checked.

    `started` is None if the process was killed before its first line; `lines` are the later ones
    whose event is `step`, `idle` or `failed`, in order.
    """

    process_id: int
    started: dict[str, Any] | None
    lines: tuple[dict[str, Any], ...]
    layout: Layout | None


@dataclass(frozen=True)
class Recording:
    """Everything a run directory holds.

    `requests` and `journal` have one dict a line, with the fields of docs/format.md; each line of
    `journal` also has the `process_id` that its file's name gives. `steps` has the processes in
    which the engine plug-in ran. `activities` is what CUPTI saw, in a run that it observed.
    """

    incomplete: bool
    manifest: dict[str, Any]
    requests: tuple[dict[str, Any], ...]
    journal: tuple[dict[str, Any], ...]
    events: tuple["EventDump", ...]
    launches: tuple[Dump, ...]
    steps: tuple[ProcessSteps, ...] = ()
    activities: tuple[ActivityDump, ...] = ()


def record_schema(struct: str) -> dict[str, type[pl.DataType]]:
    """Return column name -> polars type of a record structure of the ABI header."""
    return {field.name: _UNSIGNED[field.size] for field in abi.fields(struct)}


@lru_cache
def record_dtype(struct: str) -> np.dtype[np.void]:
    """Return a record structure of the ABI header as numpy reads it from a file's bytes."""
    fields = abi.fields(struct)
    return np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": [f"<u{field.size}" for field in fields],
            "offsets": [field.offset for field in fields],
            "itemsize": abi.size_of(struct),
        }
    )


def event_schema() -> dict[str, type[pl.DataType]]:
    """Return the columns of a frame of block events: the ABI's, and the full sequence.

    The tags and the sequence's low bits are left out: the reader has checked them.
    """
    columns = {
        name: dtype
        for name, dtype in record_schema(abi.EVENTS_STRUCT).items()
        if not name.startswith(("tag", "sequence"))
    }
    return columns | {SEQUENCE: pl.UInt64}


def flag_names(enum: str, flags: int) -> tuple[str, ...]:
    """Return the names of the bits set in `flags`, such as `closed` of `kvtrace_file_flag`.

    The common prefix of the enum's names is left out; a bit without a name is shown as a number.
    """
    names = abi.enumerators(enum)
    bits = (1 << position for position in range(flags.bit_length()) if flags >> position & 1)
    return tuple(short_name(names[bit]) if bit in names else str(bit) for bit in bits)


def failure_site_name(site: int) -> str:
    """Return the short name of a `kvtrace_failure_site`, such as `patch_module`."""
    names = abi.enumerators("kvtrace_failure_site")
    return short_name(names[site]) if site in names else str(site)


def short_name(enumerator: str) -> str:
    """Turn KVTRACE_FILE_CLOSED into `closed`: drop project and group, lower the rest."""
    return enumerator.split("_", 2)[2].lower()


def unbound_functions(journal: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Return the functions of patched modules that were left without callback data.

    They are the first suspects after a fault: each once, in the order in which they were loaded.
    """
    unbound = (line for line in journal if line.get("bound") is False)
    return tuple(dict.fromkeys(str(line.get("name")) for line in unbound))
