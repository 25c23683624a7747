"""Whether the ranks of one engine ran the same forward steps, from the plug-in's lines alone.

The k-th forward step of one rank is held against the k-th of another: how many dummy steps lie
between is each rank's own affair.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, Final

from kvtrace_cli.analysis.rank_model import Rank, RankDifference, RankRule
from kvtrace_cli.dumps.schema import ProcessSteps

# What the scheduler changed, in the order in which it is applied.
_CHANGES: Final = ("finished", "preempted", "admitted", "resumed", "grown", "copied_blocks")


@dataclass(frozen=True)
class _Step:
    """A forward step, with all that the scheduler changed since the one before."""

    stamp: int
    requests: Sequence[Any]
    changes: Mapping[str, Sequence[Any]]


def step_differences(
    ranks: Sequence[Rank], processes: Mapping[int, ProcessSteps], cut_off: set[int]
) -> Iterator[RankDifference]:
    """Yield where each rank first parts from the first one: in its rows, or in its KV blocks.

    Args:
        ranks: of one engine, each with a process.
        processes: the plug-in's lines by process.
        cut_off: processes whose last steps may be missing from the recording.
    """
    first, *others = ranks
    for rank in others:
        pair = first, rank
        of_pair = [processes[_pid(one)] for one in pair]
        are_exact = not any((process.started or {}).get("inexact") for process in of_pair)
        steps = [_forward_steps(process, with_positions=are_exact) for process in of_pair]
        may_end = [_pid(one) in cut_off for one in pair]
        has_parted: set[RankRule] = set()
        for one, other in zip_longest(*steps):
            if one is None or other is None:
                if not may_end[0 if one is None else 1] and not has_parted:
                    yield _ends(pair, one, other)
                break
            for difference in _compared(pair, one, other):
                if difference.rule not in has_parted:
                    has_parted.add(difference.rule)
                    yield difference
            if len(has_parted) > 1:
                break


def _pid(rank: Rank) -> int:
    return rank.process_id or 0


def _forward_steps(process: ProcessSteps, *, with_positions: bool) -> Iterator[_Step]:
    """Yield a process's forward steps; positions that are upper bounds are taken for 0.

    How far above the true ones they are may hang on each rank's own timing.
    """
    changes: dict[str, list[Any]] = {}
    for line in process.lines:
        for name in _CHANGES:
            if line.get(name):
                changes.setdefault(name, []).extend(line[name])
        if line["event"] == "step" and line["kind"] == "forward":
            requests = line.get("requests") or ()
            if not with_positions:
                requests = [[request_id, rows, 0] for request_id, rows, _ in requests]
            yield _Step(line["step_stamp"], requests, changes)
            changes = {}


def _compared(pair: tuple[Rank, Rank], one: _Step, other: _Step) -> Iterator[RankDifference]:
    if one.requests != other.requests:
        yield from _rows_part(pair, one, other)
    for name in _CHANGES:
        before, after = one.changes.get(name, ()), other.changes.get(name, ())
        if before != after:
            yield _blocks_part(pair, other, name, (before, after))
            return


def _rows_part(pair: tuple[Rank, Rank], one: _Step, other: _Step) -> Iterator[RankDifference]:
    sides = enumerate(zip_longest(_rows(one), _rows(other)))
    parted = ((row, *tokens) for row, tokens in sides if tokens[0] != tokens[1])
    for row, before, after in islice(parted, 1):
        request_id, position = after or before or ("", 0)
        yield RankDifference(
            rule=RankRule.STEPS,
            rank=pair[1].name,
            other=pair[0].name,
            text=(
                f"In step {other.stamp} row {row} of {pair[1].name} is {_token(after)}; of "
                f"{pair[0].name} (its step {one.stamp}) it is {_token(before)}."
            ),
            step_stamp=other.stamp,
            row=row,
            request_id=request_id,
            position=position,
        )


def _rows(step: _Step) -> Iterator[tuple[str, int]]:
    for request_id, rows, position in step.requests:
        for offset in range(rows):
            yield request_id, position + offset


def _token(token: tuple[str, int] | None) -> str:
    return "no row" if token is None else f"token {token[1]} of request {token[0]}"


def _blocks_part(
    pair: tuple[Rank, Rank], step: _Step, name: str, sides: tuple[Sequence[Any], Sequence[Any]]
) -> RankDifference:
    before, after = next(two for two in zip_longest(*sides) if two[0] != two[1])
    names = (one[0] if isinstance(one, list) else one for one in (after, before) if one)
    request_id = next(names, None)
    return RankDifference(
        rule=RankRule.KV_BLOCKS,
        rank=pair[1].name,
        other=pair[0].name,
        text=(
            f"Before step {step.stamp} of {pair[1].name} its scheduler says `{name}` "
            f"{_entry(after)}; that of {pair[0].name} says {_entry(before)}."
        ),
        step_stamp=step.stamp,
        request_id=request_id if isinstance(request_id, str) else None,
    )


def _entry(entry: Any, longest: int = 60) -> str:
    text = "nothing" if entry is None else str(entry)
    return text if len(text) <= longest else f"{text[:longest]}..."


def _ends(pair: tuple[Rank, Rank], one: _Step | None, other: _Step | None) -> RankDifference:
    shorter, longer = pair if one is None else pair[::-1]
    step = one or other
    stamp = step.stamp if step else None
    return RankDifference(
        rule=RankRule.STEPS,
        rank=shorter.name,
        other=longer.name,
        text=f"{shorter.name} ran no forward step that is step {stamp} of {longer.name}.",
        step_stamp=stamp,
    )
