"""The lifetime matrix: which callback data survives graph replay, cell by cell."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final


class Callback(Enum):
    """What the device callback does with the pointer that it is given."""

    NO_OP = "no_op"
    # Keeps the pointer's value, and never follows it.
    POINTER_READ = "pointer_read"
    COUNTER = "counter"
    FULL_EVENT = "full_event"


class Binding(Enum):
    """What callback data is bound to."""

    TARGET_ONLY = "target-only"
    PER_LAUNCH = "per-launch"
    EVERY_FUNCTION = "every-function"
    # Every function, and the target again before each replay.
    RE_BOUND = "re-bound"
    NEVER = "never"


class Neighbours(Enum):
    """Where the other kernels of the graph are."""

    SAME_MODULE = "same-module"
    OTHER_MODULE = "other-module"


class GraphKind(Enum):
    """What the graph consists of."""

    KERNELS = "kernels"
    MEMSETS = "memsets"


class Heap(Enum):
    """What new memory of the cell's host process holds."""

    # Bytes of HEAP_MARK, as it would hold something in a process that has run for a while.
    USED = "used"
    # Mostly zeros, as in any process that has just begun.
    FRESH = "fresh"


# What a pointer reads as in memory that malloc gave and nobody wrote to, of a used heap.
HEAP_MARK_BYTE: Final = 0x5A
HEAP_MARK: Final = int.from_bytes(bytes([HEAP_MARK_BYTE] * 8), "little")


class Status(Enum):
    """What a cell came to."""

    OK = "ok"
    # A CUDA error ended the context.
    FAULT = "fault"
    HANG = "hang"
    LOST = "events lost"
    # Nothing was learned of the callback.
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Cell:
    """One combination, run in a process of its own."""

    callback: Callback
    binding: Binding
    neighbours: Neighbours
    graph: GraphKind


@dataclass(frozen=True)
class Received:
    """What calls of the callback were given, against what was bound to their launch."""

    as_bound: int = 0
    null: int = 0
    of_another: int = 0
    unknown: int = 0
    first_unknown: int = 0


@dataclass(frozen=True)
class CellResult:
    """What one cell came to.

    `error` is the CUDA error's name, or why the cell could not be run. `events` of
    `expected` left a trace; without a trace by nature (no-op) `events` is None. `own_data` counts
    whole events that carry what was bound to their launch. `received` is what the pointer-read
    callback was given, by kernel and sort of launch, such as `target_node`.
    """

    cell: Cell
    status: Status
    error: str = ""
    replays: int = 0
    expected: int = 0
    events: int | None = None
    own_data: int | None = None
    received: Mapping[str, Received] = field(default_factory=dict)


def all_cells() -> tuple[Cell, ...]:
    """Return the whole matrix, in the order of its table."""
    return tuple(
        Cell(callback, binding, neighbours, graph)
        for binding in Binding
        for neighbours in Neighbours
        for graph in GraphKind
        for callback in Callback
    )
