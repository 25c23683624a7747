"""Two runs of the same requests, one seen by the Sanitizer, one by CUPTI -> where the time went."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from kvtrace_cli.analysis.gap_courses import Item, grids_text, launched_courses, seen_courses
from kvtrace_cli.analysis.gap_doubts import doubts
from kvtrace_cli.analysis.gap_model import (
    LONG_FROM,
    Gap,
    GapVerdict,
    GraphGap,
    LongSpans,
    Part,
    Span,
)
from kvtrace_cli.analysis.gap_pairing import (
    Pair,
    first_difference,
    is_replay_of,
    paired_replays,
    unlike_processes,
)
from kvtrace_cli.analysis.gap_split import Activities, PartKey, Split
from kvtrace_cli.analysis.model import Durations, Reconciliation
from kvtrace_cli.dumps.schema import Recording

_NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class _Process:
    """One process of both runs: what each saw in it, and which items belong together."""

    number: int
    launched: list[Item]
    seen: list[Item]
    pairs: list[Pair]
    activities: Activities


def gap(
    result: Reconciliation,
    blocks: Recording,
    activities: Recording,
    runs: tuple[str, str],
    *,
    allow_unequal: bool = False,
) -> Gap:
    """Split the time of replays into what ran in it.

    The runs are paired by structure alone: item k of a process's life, a replay or a plain launch
    of a target kernel, is item k of the same process in the other run, and all must be alike. Times
    of the two runs are never held against each other; each is on its own clock.

    Args:
        result: of `blocks`.
        blocks: a run that the Sanitizer observed; its requests say which replays are measured. If
            none are, all are taken.
        activities: a run of the same requests that CUPTI observed.
        runs: how to name the two.
        allow_unequal: pair the k-th measured replay of a shape with the k-th even if one run
            replayed it more often, or in another order.

    Units: ms; `sanitizer` on the GPU globaltimer, `cupti` and parts on CUPTI's clock.
    """
    reasons = list(doubts(result, blocks, activities))
    notes: list[str] = []
    graphs: tuple[GraphGap, ...] = ()
    launched, seen = launched_courses(result.launches), seen_courses(activities)
    if not reasons:
        reasons += unlike_processes(len(launched), len(seen))
    if not reasons:
        processes, differences = _processes(launched, seen, activities)
        (notes if allow_unequal else reasons).extend(differences)
        reasons += _unmeasured(processes)
    if not reasons:
        graphs = tuple(one for each in processes for one in _graphs(each))
        notes += _of_long_spans(graphs)
        reasons += [] if graphs else ["No measured replay of a target graph is in both runs."]
    return Gap(
        verdict=GapVerdict.INCONCLUSIVE if reasons else GapVerdict.PAIRED,
        reasons=tuple(reasons),
        notes=tuple(notes),
        graphs=graphs,
        runs=runs,
        emulated=result.emulated,
    )


def _processes(
    launched: list[list[Item]], seen: list[tuple[int, list[Item]]], activities: Recording
) -> tuple[list[_Process], list[str]]:
    """Return the processes that both runs have, and where their courses differ."""
    processes, differences = [], []
    for number, (first, (place, second)) in enumerate(zip(launched, seen, strict=True)):
        difference = first_difference(first, second)
        if difference is not None:
            differences.append(f"Process {number}: {difference}")
        pairs = paired_replays(first, second, alike=difference is None)
        ran = Activities(activities.activities[place], second[0].device)
        processes.append(_Process(number, first, second, pairs, ran))
    return processes, differences


def _unmeasured(processes: list[_Process]) -> list[str]:
    return [
        f"Process {one.number}: CUPTI could not measure {one.activities.without_times} of what ran."
        for one in processes
        if one.activities.without_times
    ]


def _graphs(process: _Process) -> Iterator[GraphGap]:
    shapes = dict.fromkeys(process.launched[index].shape for index, _ in process.pairs)
    for shape in shapes:
        pairs = [pair for pair in process.pairs if process.launched[pair[0]].shape == shape]
        inside = _span(process, [(pair, pair) for pair in pairs], between=False)
        if inside is None:
            continue
        following = [
            (pair, after) for pair in pairs if (after := _next(process, pair, shape)) is not None
        ]
        yield GraphGap(
            process=process.number,
            nodes=len(shape),
            grids=grids_text(shape),
            replays=len(pairs),
            inside=inside,
            between=_span(process, following, between=True),
        )


def _next(process: _Process, pair: Pair, shape: tuple[str, ...]) -> Pair | None:
    """Return the pair that follows in both runs with nothing between, if it is of the same sort."""
    after = (pair[0] + 1, pair[1] + 1)
    if after[0] >= len(process.launched) or after[1] >= len(process.seen):
        return None
    one, other = process.launched[after[0]], process.seen[after[1]]
    same_stretch = one.stretch == process.launched[pair[0]].stretch
    alike = is_replay_of(one, shape) and is_replay_of(other, shape)
    return after if same_stretch and alike else None


def _span(process: _Process, ends: list[tuple[Pair, Pair]], *, between: bool) -> Span | None:
    """Return the stretches from one replay to the same or the next one.

    Inside: from the first of a replay to the last of it. Between: from its last to the first of
    the next.
    """
    entered: list[int] = []
    lengths: list[int] = []
    splits: list[Split] = []
    for (launched, seen), (next_launched, next_seen) in ends:
        one, other = process.launched[launched], process.launched[next_launched]
        begin, end = (one.ended, other.began) if between else (one.began, one.ended)
        if begin is not None and end is not None:
            entered.append(end - begin)
        one, other = process.seen[seen], process.seen[next_seen]
        begin, end = (one.ended, other.began) if between else (one.began, one.ended)
        if begin is not None and end is not None and end > begin:
            lengths.append(end - begin)
            splits.append(process.activities.split(begin, end))
    if not lengths:
        return None
    return Span(
        sanitizer=_durations(entered) if entered else None,
        cupti=_durations(lengths),
        long_spans=_long_spans(lengths),
        parts=tuple(_parts(splits, lengths)),
    )


def _longest_usual(lengths: Sequence[int]) -> float:
    return LONG_FROM * median(lengths)


def _long_spans(lengths: Sequence[int]) -> LongSpans:
    limit = _longest_usual(lengths)
    found = [length for length in lengths if length > limit]
    return LongSpans(len(found), limit / _NS_PER_MS, 100 * sum(found) / sum(lengths))


def _durations(values: Sequence[int]) -> Durations:
    low, middle, high = min(values), median(values), max(values)
    return Durations(len(values), low / _NS_PER_MS, middle / _NS_PER_MS, high / _NS_PER_MS)


def _parts(splits: Sequence[Split], lengths: Sequence[int]) -> Iterator[Part]:
    """Yield the parts of all stretches, what took most first, idle last."""
    limit = _longest_usual(lengths)
    usual = [at for at, length in enumerate(lengths) if length <= limit]
    usual_length = sum(lengths[at] for at in usual)
    sums, usual_sums = _sums(splits), _sums([splits[at] for at in usual])
    total = sum(lengths)
    kinds = sorted(sums, key=lambda key: (key[1].value == "idle", -sums[key], key[0]))
    for key in kinds:
        name, kind = key
        yield Part(
            name=name,
            kind=kind,
            share_ms=median(split.shares.get(key, 0.0) for split in splits) / _NS_PER_MS,
            percent=100 * sums[key] / total,
            usual_percent=100 * usual_sums.get(key, 0.0) / usual_length,
            run_ms=median(split.ran.get(key, 0) for split in splits) / _NS_PER_MS,
            runs=float(median(split.runs.get(key, 0) for split in splits)),
        )


def _sums(splits: Sequence[Split]) -> dict[PartKey, float]:
    sums: dict[PartKey, float] = {}
    for split in splits:
        for key, share in split.shares.items():
            sums[key] = sums.get(key, 0.0) + share
    return sums


def _of_long_spans(graphs: Sequence[GraphGap]) -> Iterator[str]:
    """Yield a note for each sort of span of which a few long ones move the shares."""
    for graph in graphs:
        which = f" ({graph.grids}, process {graph.process})" if len(graphs) > 1 else ""
        for name, span in (("Inside replays", graph.inside), ("Between replays", graph.between)):
            if span is not None and span.long_spans.count:
                yield f"{name}{which}, {_in_words(span)}"


def _in_words(span: Span) -> str:
    found, idle = span.long_spans, span.idle
    said = (
        f"{found.count} of {span.cupti.count} spans are long: more than {LONG_FROM:g} x the "
        f"median, {found.over_ms:.3f} ms. They are {found.percent:.1f} % of the time of all"
    )
    if idle is None:
        return f"{said}."
    return (
        f"{said}; idle is {idle.percent:.1f} % of all spans and {idle.usual_percent:.1f} % of the "
        "others."
    )
