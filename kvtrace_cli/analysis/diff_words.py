"""How launches, graphs and numbers are put into words where two runs differ."""

import re
from collections.abc import Sequence
from typing import Final

from kvtrace_cli.analysis.kernel_families import kernel_family
from kvtrace_cli.analysis.run_facts import CourseRun, GraphOutline, LaunchRun

_TRAILING_ONES: Final = re.compile(r"(?<=\d)(?:x1)+$")


def counted(count: int, noun: str) -> str:
    """Write `1 replay`, `7 replays`."""
    plural = f"{noun}es" if noun.endswith(("h", "ss")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def dims(three: Sequence[int]) -> str:
    """Write a grid or block without its trailing ones."""
    shown = list(three)
    while len(shown) > 1 and shown[-1] == 1:
        shown.pop()
    return "x".join(f"{size:,}" for size in shown)


def passes_in_words(of: str) -> str:
    """Write the sort of a figure's passes, its grid without trailing ones as elsewhere."""
    return _TRAILING_ONES.sub("", of)


def kernel_in_words(kernel: str) -> str:
    """Write a kernel with its family."""
    return f"{kernel} (family {kernel_family(kernel)})"


def plain_in_words(run: LaunchRun) -> str:
    """Write a run of plain launches."""
    launches = "launch" if run.launches == 1 else "launches"
    return f"{run.launches:,} plain {launches} of grid {dims(run.grid)}"


def replays_in_words(replays: int, graph: GraphOutline) -> str:
    """Write replays of a graph."""
    return f"{counted(replays, 'replay')} of a {graph.nodes:,}-node graph"


def run_in_words(run: CourseRun | None, graphs: Sequence[GraphOutline]) -> str:
    """Write one stretch of a request; `nothing` where it has ended."""
    if run is None:
        return "nothing"
    if run.plain:
        return plain_in_words(run.plain)
    return replays_in_words(run.replays, graphs[run.graph or 0])


def listed(names: Sequence[str]) -> str:
    """Join names with commas; `nothing` for none."""
    return ", ".join(names) or "nothing"
