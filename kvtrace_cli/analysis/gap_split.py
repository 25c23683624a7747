"""What a stretch of GPU time was spent on: a sweep over everything that ran in it."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import polars as pl

from kvtrace_cli.analysis.gap_model import PartKind
from kvtrace_cli.analysis.kernel_names import kernel_base_name
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.schema import ActivityDump

# Of a part: its name, and what kind of work it is.
PartKey = tuple[str, PartKind]
IDLE: PartKey = ("idle", PartKind.IDLE)
_COPY: PartKey = ("copies", PartKind.COPY)
_MEMSET: PartKey = ("memsets", PartKind.MEMSET)
_NAMELESS = "(a kernel without a name)"


@dataclass
class Split:
    """One stretch of time in ns: `shares` add up to its length; see `Part` for `ran` and `runs`."""

    shares: dict[PartKey, float] = field(default_factory=lambda: defaultdict(float))
    ran: dict[PartKey, int] = field(default_factory=lambda: defaultdict(int))
    runs: Counter[PartKey] = field(default_factory=Counter)


class Activities:
    """Everything that ran in one process on one device, ready to be asked for stretches of it."""

    def __init__(self, activity: ActivityDump, device: int) -> None:
        records = activity.dump.records.filter(pl.col("device_ordinal") == device)
        self.without_times = int((records["gpu_cupti_begin_ns"] == 0).sum())
        ordered = records.sort("gpu_cupti_begin_ns", maintain_order=True)
        self._begins = ordered["gpu_cupti_begin_ns"]
        self._ends = ordered["gpu_cupti_end_ns"]
        # Nothing before the first that ends later than an instant still runs in it.
        self._latest_end = self._ends.cum_max()
        self._keys = _keys(ordered, activity.names)

    def split(self, begin: int, end: int) -> Split:
        """Return what ran from `begin` to `end`, ns on CUPTI's clock.

        An instant in which n run counts 1/n for each; one in which nothing runs is idle.
        """
        found = Split()
        first = int(self._latest_end.search_sorted(begin, side="right"))
        last = max(first, int(self._begins.search_sorted(end, side="left")))
        edges: list[tuple[int, int, PartKey]] = []
        begins, ends = (
            column.slice(first, last - first).to_list() for column in (self._begins, self._ends)
        )
        for key, at, until in zip(self._keys[first:last], begins, ends, strict=True):
            began, ended = max(at, begin), min(until, end)
            if began < ended:
                edges += [(began, 1, key), (ended, -1, key)]
                found.ran[key] += ended - began
                found.runs[key] += 1
        _sweep(sorted(edges, key=lambda edge: edge[0]), begin, end, found.shares)
        return found


def _sweep(
    edges: list[tuple[int, int, PartKey]], begin: int, end: int, shares: dict[PartKey, float]
) -> None:
    running: Counter[PartKey] = Counter()
    total, now = 0, begin
    for at, step, key in [*edges, (end, 0, IDLE)]:
        if at > now:
            for one, count in running.items():
                shares[one] += (at - now) * count / total
            if total == 0:
                shares[IDLE] += at - now
            now = at
        running[key] += step
        total += step
        if running[key] == 0:
            del running[key]


def _keys(records: pl.DataFrame, names: tuple[str, ...]) -> list[PartKey]:
    of_name = [(kernel_base_name(name) or _NAMELESS, PartKind.KERNEL) for name in names]
    copy = abi.constant("KVTRACE_ACTIVITY_COPY")
    memset = abi.constant("KVTRACE_ACTIVITY_MEMSET")
    others = {copy: _COPY, memset: _MEMSET}
    return [
        others[kind] if kind in others else of_name[line]
        for kind, line in records.select("activity_kind", "name_id").iter_rows()
    ]
