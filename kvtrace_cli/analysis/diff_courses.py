"""Where the courses of one request part in two runs: the first place, and no cascade."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from kvtrace_cli.analysis.diff_words import (
    counted,
    dims,
    kernel_in_words,
    plain_in_words,
    replays_in_words,
    run_in_words,
)
from kvtrace_cli.analysis.run_facts import Course, CourseRun, GraphOutline, LaunchRun


@dataclass(frozen=True)
class Parting:
    """The first place where something parts: `place` within it, and both sides in words."""

    place: str
    before: str
    after: str


class Courses:
    """Compares two sides of one process, with kernels of the first side under their new names."""

    def __init__(
        self,
        before: Sequence[GraphOutline],
        after: Sequence[GraphOutline],
        replaced: Mapping[str, str],
    ) -> None:
        """Take the graphs of both sides; `replaced` has kernels that another took the place of."""
        self._before = before
        self._after = after
        self._replaced = replaced

    def parting(self, before: Course, after: Course) -> Parting | None:
        """Return where a request's courses part; None if they do not."""
        if before.digest == after.digest:
            return None
        for one, other in zip_longest(before.runs, after.runs):
            found = self._run_parting(one, other)
            if found:
                return found
        if before.runs_total != after.runs_total or not self._replaced:
            kept = min(len(before.runs), len(after.runs))
            return Parting(
                f"after the first {kept}",
                counted(before.runs_total, "stretch"),
                counted(after.runs_total, "stretch"),
            )
        return None

    def _run_parting(self, one: CourseRun | None, other: CourseRun | None) -> Parting | None:
        if one and other and one.plain and other.plain:
            return self._plain_parting(one.plain, other.plain)
        if one and other and one.graph is not None and other.graph is not None:
            graphs = self._before[one.graph], self._after[other.graph]
            if graphs[0].nodes == graphs[1].nodes:
                found = self.node_parting(*graphs)
                if found or one.replays == other.replays:
                    return found
            return Parting(
                "",
                replays_in_words(one.replays, graphs[0]),
                replays_in_words(other.replays, graphs[1]),
            )
        return Parting("", run_in_words(one, self._before), run_in_words(other, self._after))

    def _plain_parting(self, one: LaunchRun, other: LaunchRun) -> Parting | None:
        if self.same_sort(one, other) and one.launches == other.launches:
            return None
        if one.grid != other.grid or self.same_sort(one, other):
            return Parting("", plain_in_words(one), plain_in_words(other))
        before, after = self._sorts_in_words(one, other)
        return Parting(plain_in_words(one), before, after)

    def node_parting(self, before: GraphOutline, after: GraphOutline) -> Parting | None:
        """Return where two graphs of as many nodes part; None if their nodes are the same."""
        if before.digest == after.digest:
            return None
        first = last = -1
        found: tuple[str, str] | None = None
        pairs = zip(_nodes_of(before), _nodes_of(after), strict=False)
        for number, (one, other) in enumerate(pairs, start=1):
            differ = None if self.same_sort(one, other) else self._sorts_in_words(one, other)
            if found is None and differ:
                found, first, last = differ, number, number
            elif found and differ == found and last == number - 1:
                last = number
            elif found:
                break
        if found is None:
            return None if self._replaced else _beyond(before, after)
        nodes = f"node {first}" if first == last else f"nodes {first} to {last}"
        return Parting(f"{nodes} of the graph", *found)

    def same_sort(self, one: LaunchRun, other: LaunchRun) -> bool:
        """Say whether kernel and geometry are the same; a replaced kernel was named already."""
        return (self._name(one), one.grid, one.block) == (other.kernel, other.grid, other.block)

    def _name(self, launch: LaunchRun) -> str:
        return self._replaced.get(launch.kernel, launch.kernel)

    def _sorts_in_words(self, one: LaunchRun, other: LaunchRun) -> tuple[str, str]:
        """Write what differs first of kernel, grid and block."""
        if self._name(one) != other.kernel:
            return kernel_in_words(one.kernel), kernel_in_words(other.kernel)
        if one.grid != other.grid:
            return f"grid {dims(one.grid)}", f"grid {dims(other.grid)}"
        return f"{dims(one.block)} threads a block", f"{dims(other.block)} threads a block"


def _nodes_of(graph: GraphOutline) -> Iterator[LaunchRun]:
    for _ in range(graph.repeats):
        for run in graph.node_runs:
            for _ in range(run.launches):
                yield run


def _beyond(before: GraphOutline, after: GraphOutline) -> Parting:
    kept = sum(run.launches for run in before.node_runs)
    return Parting(
        f"the graph beyond node {kept}",
        counted(before.node_runs_total, "stretch"),
        counted(after.node_runs_total, "stretch"),
    )
