"""When a module can be patched: what a program came to that patched it at one point."""

from dataclasses import dataclass
from enum import Enum

from kvtrace_cli.analysis.lifetime_model import Status


class PatchPoint(Enum):
    """When the module with the target is patched."""

    # As kvtrace does.
    MODULE_LOAD = "module-load"
    FUNCTION_LOAD = "function-load"
    # In the callback of the target's first launch.
    LAUNCH_BEGIN = "launch-begin"
    LAUNCH_END = "launch-end"
    # After that launch: as the next module is loaded, or as the host has waited for it.
    NEXT_MODULE = "next-module"
    SYNCHRONIZE = "synchronize"
    # In a thread of its own, which that launch's end starts.
    OTHER_THREAD = "other-thread"


class Loading(Enum):
    """When the driver loads functions: `CUDA_MODULE_LOADING`."""

    LAZY = "lazy"
    EAGER = "eager"


@dataclass(frozen=True)
class PointResult:
    """What one program came to, that launched 2,048 blocks and then a graph of 40 nodes 7 times.

    `expected` blocks of the target ran, `events` left a trace, and `before` were launched before
    their module was patched. `error` is as in CellResult. OK: each block is one or the other, and
    some left a trace; LOST: some are neither, or none did.
    """

    point: PatchPoint
    loading: Loading
    status: Status
    error: str = ""
    expected: int = 0
    events: int = 0
    before: int = 0
