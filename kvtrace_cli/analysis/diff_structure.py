"""Where the structures of two runs part: the first place first, each difference once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvtrace_cli.analysis.diff_courses import Courses, Parting
from kvtrace_cli.analysis.diff_model import Aspect, Difference
from kvtrace_cli.analysis.diff_words import (
    counted,
    dims,
    kernel_in_words,
    listed,
    plain_in_words,
    replays_in_words,
)
from kvtrace_cli.analysis.run_facts import (
    DumpCounts,
    GraphOutline,
    KvView,
    LaunchRun,
    Phase,
    ProcessFacts,
    RequestFacts,
    SlotCoverage,
    Structure,
)
from kvtrace_cli.analysis.structure import BETWEEN, MEASURED, START_UP, WARM_UP, WHOLE_LIFE

# What counts of a request, in the order in which one follows from the other.
_REQUEST_COUNTS: Final = (
    ("returned-tokens", "returned_tokens", "returned token"),
    ("positions", "cached_positions", "position found in the prefix cache"),
    ("positions", "positions", "computed position"),
    ("layers", "layers", "layer"),
    ("writes", "entered", "pair of position and layer that entered"),
    ("writes", "k_written", "pair of position and layer with K"),
    ("writes", "v_written", "pair of position and layer with V"),
)
_MOST_NAMED: Final = 3


@dataclass
class Findings:
    """Collects differences: alike ones of several requests are one, in the order of the first."""

    rules: list[str] = field(default_factory=list)
    # The ranks that are looked at, if not all of them are at once.
    ranks: str = ""
    _found: dict[tuple[str, str, str, str, str, bool], list[int]] = field(default_factory=dict)

    def look(self, rule: str) -> None:
        """Note that a rule was looked at."""
        self.rules.append(rule)

    def add(self, rule: str, parting: Parting, *, decides: bool = True, request: int = 0) -> None:
        """Add a difference; `request` counts measured requests from 1, 0 for none."""
        key = (rule, self.ranks, parting.place, parting.before, parting.after, decides)
        self._found.setdefault(key, []).append(request)

    @property
    def differences(self) -> list[Difference]:
        """The differences, each once."""
        return [
            Difference(
                Aspect.STRUCTURE,
                rule,
                ", ".join(filter(None, (ranks, _where(place, requests)))),
                before,
                after,
                decides=decides,
            )
            for (rule, ranks, place, before, after, decides), requests in self._found.items()
        ]

    @property
    def equal_rules(self) -> tuple[str, ...]:
        """The rules that were looked at and found nothing, each once."""
        differing = {key[0] for key in self._found}
        return tuple(rule for rule in dict.fromkeys(self.rules) if rule not in differing)


def compare_structure(
    before: Structure, after: Structure, *, strict: bool, has_idle_ranks: bool = False
) -> Findings:
    """Compare how two runs wrote the cache.

    Args:
        before: of the first side.
        after: of the second side.
        strict: what was launched outside of measured requests decides too, and so does how
            requests that ran at once were batched.
        has_idle_ranks: data ranks without a request run along, how long hangs on timing.

    Returns:
        The findings. What decides: kernels, KV layout and what measured requests did. How
        requests that ran at once were batched hangs on their timing, so it is listed only. A run
        without measured requests is judged by its whole life.
    """
    return _Comparison(before, after, strict=strict, has_idle_ranks=has_idle_ranks).findings()


def compare_drops(before: DumpCounts, after: DumpCounts) -> Iterator[Difference]:
    """Yield a difference if other numbers of records were dropped."""
    for what in ("events", "launches"):
        counts = [int(getattr(side, f"{what}_dropped")) for side in (before, after)]
        if counts[0] != counts[1]:
            one, other = (f"{count:,}" for count in counts)
            yield Difference(Aspect.STRUCTURE, "drops", f"dropped {what}", one, other, decides=True)


class _Comparison:
    def __init__(
        self, before: Structure, after: Structure, *, strict: bool, has_idle_ranks: bool
    ) -> None:
        self._before = before
        self._after = after
        self._strict = strict
        self._has_idle_ranks = has_idle_ranks
        self._all_alone = before.all_alone and after.all_alone
        self._pairs = list(zip(before.requests, after.requests, strict=False))
        self._found = Findings()
        self._replaced: dict[str, str] = {}
        self._parted: set[int] = set()

    def findings(self) -> Findings:
        by_rank = _paired_by_rank(*(side.processes for side in self._sides))
        self._kernels()
        self._processes(are_paired=by_rank is not None)
        pairs = by_rank or [
            ("", one, other)
            for one, other in zip(*(side.processes for side in self._sides), strict=False)
        ]
        for ranks, one, other in pairs:
            self._found.ranks = ranks
            self._courses(one, other)
            self._graphs(one, other)
        self._found.ranks = ""
        self._requests()
        self._rows()
        for ranks, one, other in pairs:
            self._found.ranks = ranks
            self._layers(one, other)
            self._phases(one, other)
        return self._found

    def _kernels(self) -> None:
        has_measured = any(kernel.measured_launches for kernel in self._before.kernels)
        sides = [
            [one for one in side.kernels if one.measured_launches or not has_measured]
            for side in (self._before, self._after)
        ]
        names = [[kernel.kernel for kernel in side] for side in sides]
        self._found.look("kernels")
        gone = [name for name in names[0] if name not in names[1]]
        new = [name for name in names[1] if name not in names[0]]
        if gone or new:
            where = "kernels that write the cache"
            one, other = (listed(list(map(kernel_in_words, side))) for side in (gone, new))
            self._found.add("kernels", Parting(where, one, other))
        if len(gone) == len(new) == 1:
            self._replaced[gone[0]] = new[0]
        self._found.look("kernel-names")
        full = {kernel.kernel: kernel.names for kernel in sides[1]}
        for kernel in sides[0]:
            if kernel.names != full.get(kernel.kernel, kernel.names):
                self._found.add(
                    "kernel-names",
                    Parting(
                        f"full names of {kernel.kernel}",
                        listed(kernel.names),
                        listed(full[kernel.kernel]),
                    ),
                    decides=self._strict,
                )

    def _processes(self, *, are_paired: bool) -> None:
        self._found.look("processes")
        counts = [sum(one.processes for one in side.processes) for side in self._sides]
        if counts[0] != counts[1]:
            one, other = (counted(count, "process") for count in counts)
            self._found.add("processes", Parting("who writes the cache", one, other))
        elif not are_paired and len(self._before.processes) != len(self._after.processes):
            one, other = (
                f"{len(side.processes)} sorts of processes, told by what they launch"
                for side in self._sides
            )
            self._found.add("processes", Parting("who writes the cache", one, other))

    @property
    def _sides(self) -> tuple[Structure, Structure]:
        return self._before, self._after

    def _courses(self, one: ProcessFacts, other: ProcessFacts) -> None:
        courses = Courses(one.graphs, other.graphs, self._replaced)
        before = {course.request_index: course for course in one.courses}
        after = {course.request_index: course for course in other.courses}
        has_found = False
        for number, pair in enumerate(self._pairs, start=1):
            sides = before.get(pair[0].request_index), after.get(pair[1].request_index)
            if not (sides[0] and sides[1]):
                continue
            self._found.look("course")
            parting = courses.parting(sides[0], sides[1])
            if parting:
                has_found = True
                self._parted.add(number)
                self._found.add("course", parting, request=number)
        if (
            one.courses_digest != other.courses_digest
            and not has_found
            and self._all_alone
            and not self._replaced
        ):
            parting = Parting(
                f"measured requests beyond the first {len(one.courses)}",
                f"digest {one.courses_digest}",
                f"digest {other.courses_digest}",
            )
            self._parted.add(0)
            self._found.add("course", parting)

    def _graphs(self, one: ProcessFacts, other: ProcessFacts) -> None:
        """Compare graphs that no course has told of: of requests at once, or of no request."""
        courses = Courses(one.graphs, other.graphs, self._replaced)
        before, after = (
            [graph for graph in side.graphs if _counts(graph)] for side in (one, other)
        )
        if before and after:
            self._found.look("same-nodes")
            sides = [all(g.same_nodes_in_every_replay for g in side) for side in (before, after)]
            if sides[0] != sides[1]:
                place = "nodes of a graph exec from replay to replay"
                texts = ["the same" if same else "not the same" for same in sides]
                self._found.add("same-nodes", Parting(place, *texts))
        if self._parted or (self._all_alone and self._pairs):
            return
        digests = ({graph.digest for graph in side} for side in (before, after))
        has_common = bool(set.intersection(*digests))
        # How often each was replayed hangs on timing; that none is left in common does not.
        decides = self._strict or not self._pairs or not has_common
        unmatched = _by_rows(after)
        for graph in before:
            self._found.look("graphs")
            found = unmatched.pop(_rows_of(graph), None)
            if found is None:
                self._found.add(
                    "graphs",
                    Parting(
                        f"graph of {graph.nodes:,} nodes, grid {dims(_rows_of(graph))}",
                        counted(_replays(graph), "replay"),
                        "none",
                    ),
                    decides=decides,
                )
            elif graph.nodes != found.nodes:
                sizes = [f"{side.nodes:,} nodes" for side in (graph, found)]
                place = f"graph of grid {dims(_rows_of(graph))}"
                self._found.add("graphs", Parting(place, *sizes))
            elif parting := courses.node_parting(graph, found):
                self._found.add("graphs", parting)
        for graph in unmatched.values():
            place = f"graph of {graph.nodes:,} nodes, grid {dims(_rows_of(graph))}"
            replays = counted(_replays(graph), "replay")
            self._found.add("graphs", Parting(place, "none", replays), decides=decides)

    def _requests(self) -> None:
        if len(self._before.requests) != len(self._after.requests):
            texts = [counted(side.requests_total, "request") for side in self._sides]
            self._found.add("measured-requests", Parting("measured requests", *texts))
        has_found = False
        for number, (one, other) in enumerate(self._pairs, start=1):
            has_found |= self._request(number, one, other)
        if (
            self._before.requests_digest != self._after.requests_digest
            and not has_found
            and self._before.requests == self._after.requests
        ):
            digests = [f"digest {side.requests_digest}" for side in self._sides]
            place = f"measured requests beyond the first {len(self._pairs)}"
            self._found.add("positions", Parting(place, *digests))

    def _request(self, number: int, one: RequestFacts, other: RequestFacts) -> bool:
        """Compare what became of one request; the first count that differs stands for the rest."""
        has_found = number in self._parted
        for rule, name, noun in _REQUEST_COUNTS:
            counts = getattr(one, name), getattr(other, name)
            if name == "returned_tokens":
                # None came back of a request that failed.
                counts = counts[0] or 0, counts[1] or 0
            if None in counts:
                continue
            self._found.look(rule)
            if counts[0] != counts[1] and not has_found:
                has_found = True
                texts = [counted(count, noun) for count in counts]
                # Whether a prefix was there already hangs on the timing of the others.
                decides = name != "cached_positions" or (one.alone and other.alone)
                self._found.add(
                    rule, Parting("", *texts), decides=decides or self._strict, request=number
                )
        self._found.look("lacks")
        if one.lacks != other.lacks and number not in self._parted:
            texts = [f"lacks {listed(side.lacks)}" for side in (one, other)]
            self._found.add("lacks", Parting("", *texts), request=number)
        if one.slots and other.slots:
            self._found.look("slots")
            sides = one.slots, other.slots
            if _astray(sides[0]) != _astray(sides[1]):
                parting = Parting("KV slots", *map(_slots_in_words, sides))
                self._found.add("slots", parting, request=number)
        return has_found

    def _rows(self) -> None:
        self._row_entries()
        self._row_stores("padding")
        self._row_stores("dummy")
        sides = [side.blocks_with_two_writers for side in self._sides]
        if None in sides:
            return
        self._found.look("two-writers")
        if sides[0] != sides[1]:
            one, other = (counted(count or 0, "KV block") for count in sides)
            self._found.add(
                "two-writers",
                Parting("two requests hold the same KV block, both to write it", one, other),
                decides=self._counts_decide(*sides),
            )

    def _row_entries(self) -> None:
        rows = self._before.measured_rows, self._after.measured_rows
        if not (rows[0] and rows[1]):
            return
        for kind in ("padding", "dummy"):
            self._found.look(f"{kind}-rows")
            counts = [int(getattr(side, kind)) for side in rows]
            if counts[0] != counts[1]:
                one, other = (f"{count:,}" for count in counts)
                self._found.add(
                    f"{kind}-rows",
                    Parting(f"{kind} rows that entered in measured requests", one, other),
                    decides=self._strict
                    or (self._all_alone and not (kind == "dummy" and self._has_idle_ranks)),
                )

    def _row_stores(self, kind: str) -> None:
        """Compare what rows without a request stored: first if at all, at any time."""
        whole = self._before.stores, self._after.stores
        measured = self._before.measured_stores, self._after.measured_stores
        if not (whole[0] and whole[1]):
            return
        self._found.look(f"{kind}-stores")
        for place, sides in (("in measured requests", measured), ("in the whole life", whole)):
            counts = [int(getattr(side, kind)) if side else 0 for side in sides]
            if counts[0] != counts[1]:
                one, other = (f"{count:,}" for count in counts)
                self._found.add(
                    f"{kind}-stores",
                    Parting(f"stores of {kind} rows {place}", one, other),
                    decides=self._counts_decide(*counts),
                )
                return

    def _counts_decide(self, before: int | None, after: int | None) -> bool:
        """Say whether counts of what should not be decide: that it is there, or not, always."""
        return bool(before) != bool(after) or self._all_alone or self._strict

    def _layers(self, one: ProcessFacts, other: ProcessFacts) -> None:
        # Without steps the layers of plain launches are not known.
        is_one_sided = (self._before.measured_rows is None) != (self._after.measured_rows is None)
        if self._parted or not self._all_alone or is_one_sided:
            return
        self._found.look("blocks-per-layer")
        if one.blocks_per_layer != other.blocks_per_layer:
            texts = [
                listed([f"{run.blocks:,} x {run.layers} layers" for run in side.blocks_per_layer])
                for side in (one, other)
            ]
            self._found.add("blocks-per-layer", Parting("blocks of each layer", *texts))

    def _phases(self, one: ProcessFacts, other: ProcessFacts) -> None:
        """Compare what no measured request did, and of no requests everything."""
        before, after = ({phase.name: phase for phase in side.phases} for side in (one, other))
        for name in (START_UP, WARM_UP, BETWEEN, WHOLE_LIFE, MEASURED):
            sides = before.get(name), after.get(name)
            if not any(sides) or (name == MEASURED and self._all_alone):
                continue
            self._found.look(_rule_of(name))
            parting = self._phase_parting(name, (one, other), sides)
            if parting:
                decides = self._strict or name == WHOLE_LIFE
                self._found.add(_rule_of(name), parting, decides=decides)

    def _phase_parting(
        self,
        name: str,
        processes: tuple[ProcessFacts, ProcessFacts],
        phases: tuple[Phase | None, Phase | None],
    ) -> Parting | None:
        before, after = (phase or Phase(name, 0, (), (), "") for phase in phases)
        if before.digest == after.digest:
            return None
        plain = [{self._sort(run): run.launches for run in side.plain} for side in (before, after)]
        for sort in dict.fromkeys([*plain[0], *plain[1]]):
            counts = [side.get(sort, 0) for side in plain]
            if counts[0] != counts[1]:
                return Parting(
                    name, *(plain_in_words(LaunchRun(*sort, launches=count)) for count in counts)
                )
        replays = [
            {process.graphs[run.graph].digest: run for run in side.replays}
            for process, side in zip(processes, (before, after), strict=True)
        ]
        if self._replaced:
            return None
        for digest in dict.fromkeys([*replays[0], *replays[1]]):
            counts = [side[digest].replays if digest in side else 0 for side in replays]
            if counts[0] != counts[1]:
                has_it = 0 if digest in replays[0] else 1
                graph = processes[has_it].graphs[replays[has_it][digest].graph]
                return Parting(name, *(replays_in_words(count, graph) for count in counts))
        totals = (counted(side.plain_launches, "plain launch") for side in (before, after))
        return Parting(f"{name}, beyond the most frequent launches", *totals)

    def _sort(self, run: LaunchRun) -> tuple[str, tuple[int, int, int], tuple[int, int, int]]:
        return self._replaced.get(run.kernel, run.kernel), run.grid, run.block


def _paired_by_rank(
    before: Sequence[ProcessFacts], after: Sequence[ProcessFacts]
) -> list[tuple[str, ProcessFacts, ProcessFacts]] | None:
    """Pair what each rank did with what the rank of the same name did.

    Returns:
        (ranks, before, after) of each pair, once for all ranks that share it; `ranks` is empty if
        there is but one. None unless the ranks of all processes are known on both sides.
    """
    if any(len(one.ranks) != one.processes for one in (*before, *after)):
        return None
    others = {rank: number for number, one in enumerate(after) for rank in one.ranks}
    found: dict[tuple[int, int], list[str]] = {}
    for number, one in enumerate(before):
        for rank in one.ranks:
            if rank in others:
                found.setdefault((number, others[rank]), []).append(rank)
    return [
        (listed(ranks) if len(found) > 1 else "", before[pair[0]], after[pair[1]])
        for pair, ranks in found.items()
    ]


def compare_layouts(
    before: Sequence[KvView] | None, after: Sequence[KvView] | None
) -> Difference | None:
    """Return where the layouts of the KV tensors part; None if they do not, or are not known."""
    if before is None or after is None or tuple(before) == tuple(after):
        return None
    gone = [view for view in before if view not in after]
    new = [view for view in after if view not in before]
    one, other = (listed(list(map(_view_in_words, views[:_MOST_NAMED]))) for views in (gone, new))
    where = "layout of the KV tensors"
    return Difference(Aspect.STRUCTURE, "kv-layout", where, one, other, decides=True)


def _view_in_words(view: KvView) -> str:
    return f"{view.layers} x {view.role} [{', '.join(view.axes)}] of {view.dtype}"


def _where(place: str, requests: Sequence[int]) -> str:
    numbers = sorted({number for number in requests if number})
    if not numbers:
        return place
    named = ", ".join(map(str, numbers[:_MOST_NAMED]))
    more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
    who = f"measured request{'s' if len(numbers) > 1 else ''} {named}{more}"
    return f"{who}, {place}" if place else who


def _rule_of(phase: str) -> str:
    return phase.replace(" ", "-")


def _counts(graph: GraphOutline) -> bool:
    """Say whether a graph was replayed in a measured request, or in a run without any."""
    return bool(graph.measured_replays) or graph.first_in == WHOLE_LIFE


def _replays(graph: GraphOutline) -> int:
    return graph.measured_replays or graph.replays


def _rows_of(graph: GraphOutline) -> tuple[int, int, int]:
    return graph.node_runs[0].grid


def _by_rows(graphs: Sequence[GraphOutline]) -> dict[tuple[int, int, int], GraphOutline]:
    found: dict[tuple[int, int, int], GraphOutline] = {}
    for graph in graphs:
        found.setdefault(_rows_of(graph), graph)
    return found


def _astray(slots: SlotCoverage) -> tuple[int, int, str | None]:
    return slots.elsewhere, slots.unjudged, slots.first_elsewhere


def _slots_in_words(slots: SlotCoverage) -> str:
    total = slots.in_place + slots.elsewhere + slots.unjudged
    first = f", first {slots.first_elsewhere}" if slots.first_elsewhere else ""
    return f"{slots.in_place:,} of {total:,} writes in the request's own slots{first}"
