"""The ranks of a run: which checks can be made of them, and what they find."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from kvtrace_cli.analysis.activity_targets import is_seen_by_cupti
from kvtrace_cli.analysis.joined import JoinedEvents
from kvtrace_cli.analysis.model import FileBooks
from kvtrace_cli.analysis.rank_accounts import TOLD_OF_FILES, rank_accounts, with_differences
from kvtrace_cli.analysis.rank_layers import layer_differences
from kvtrace_cli.analysis.rank_model import Rank, RankAccount, RankBooks, RankDifference, RankRule
from kvtrace_cli.analysis.rank_requests import request_differences, unlabelled_idle
from kvtrace_cli.analysis.rank_rows import (
    ForwardLaunches,
    forward_numbers,
    row_differences,
    silent_steps,
)
from kvtrace_cli.analysis.rank_steps import step_differences
from kvtrace_cli.analysis.ranks import Ranks, ranks_of
from kvtrace_cli.dumps.schema import Recording

_SEVERAL: Final = 2
_UNTOLD: Final = "No process told which rank it was"


def rank_books(
    recording: Recording,
    launches: pl.DataFrame,
    steps: pl.DataFrame,
    files: Sequence[FileBooks],
    contexts: Sequence[JoinedEvents],
) -> RankBooks:
    """Account for every rank, and hold those of one engine, and the engines, against each other.

    Args:
        recording: of one run.
        launches: from `launch_frame`, with what was found for each.
        steps: from `step_frame`.
        files: the books of its files.
        contexts: the joined events, read only where ranks part.

    Returns:
        RankBooks. A run of one rank has its account and nothing else.

    Assumes: workers of one engine run its forward steps in the same order.
    """
    ranks = ranks_of(recording)
    if ranks.total >= _SEVERAL and not ranks.present:
        return _unnamed(recording, ranks, files)
    accounts = rank_accounts(recording, ranks, launches, files)
    if ranks.total < _SEVERAL:
        return RankBooks(accounts=accounts)
    found = _Checks(recording, ranks, files)
    differences = tuple(found.differences(launches, steps, contexts))
    return RankBooks(
        accounts=with_differences(accounts, differences),
        differences=differences,
        checks=tuple(dict.fromkeys(found.rules)),
        doubts=(*_doubts(accounts), *found.doubts),
        notes=tuple(found.notes),
        names=ranks.names,
    )


def _unnamed(recording: Recording, ranks: Ranks, files: Sequence[FileBooks]) -> RankBooks:
    """Count processes where none told its rank."""
    recorders = _recorders(files)
    if is_seen_by_cupti(recording) or len(recorders) >= ranks.total:
        return RankBooks(notes=(f"{_UNTOLD}, so they were not held against each other.",))
    doubt = (
        f"{ranks.total} ranks were asked for; processes that recorded anything: {len(recorders)}."
    )
    return RankBooks(doubts=(doubt,), notes=(f"{_UNTOLD}.",))


def _recorders(files: Sequence[FileBooks]) -> set[int]:
    return {books.process_id for books in files if books.written or books.dropped}


def _doubts(accounts: Sequence[RankAccount]) -> Iterator[str]:
    """Yield the doubts that no file tells of, each with its rank."""
    for account in accounts:
        for doubt in account.doubts:
            if doubt not in TOLD_OF_FILES:
                yield f"{account.rank.title}: {doubt[0].lower()}{doubt[1:]}"


class _Checks:
    """Decides what can be held against what, and says what cannot."""

    def __init__(self, recording: Recording, ranks: Ranks, files: Sequence[FileBooks]) -> None:
        self.rules: list[RankRule] = []
        self.doubts: list[str] = []
        self.notes: list[str] = []
        self._journal = recording.journal
        self._processes = {process.process_id: process for process in recording.steps}
        self._layouts = {
            process.process_id: process.layout for process in recording.steps if process.layout
        }
        self._held = {
            process_id: sorted({tensor.layer_index for tensor in layout.tensors})
            for process_id, layout in self._layouts.items()
        }
        self._absent = {rank.data for rank in ranks.absent}
        self._cut_off = _cut_off(recording, files)
        self._lossy = {
            books.process_id
            for books in files
            if books.dropped or books.sequence_gaps or books.first_failure_site != "none"
        }
        self._lost_launches = {
            books.process_id for books in files if books.dropped and books.expected_blocks is None
        }
        self._engines = ranks.engines
        self.doubts += map(_unpaired, ranks.unpaired)
        strangers = sorted(_recorders(files) - {rank.process_id for rank in ranks.present})
        if strangers:
            pids = ", ".join(map(str, strangers))
            who, them = ("Process", "it") if len(strangers) == 1 else ("Processes", "them")
            self.doubts.append(
                f"{who} {pids} recorded launches and told no rank, so nothing was held against "
                f"{them}."
            )

    def differences(
        self, launches: pl.DataFrame, steps: pl.DataFrame, contexts: Sequence[JoinedEvents]
    ) -> Iterator[RankDifference]:
        """Yield where ranks part, engine by engine, then the engines among each other."""
        forward = ForwardLaunches(launches, forward_numbers(steps), self._journal)
        for engine in self._engines:
            if len(engine) < _SEVERAL:
                continue
            self.rules += [RankRule.STEPS, RankRule.KV_BLOCKS]
            yield from step_differences(engine, self._processes, self._cut_off)
            yield from self._layers(engine)
            comparable = self._with_rows(engine)
            if len(comparable) > 1:
                self.rules.append(RankRule.ROWS)
                for stage in _stages(comparable):
                    yield from row_differences(stage, forward, contexts, self._lossy, self._held)
                yield from silent_steps(comparable, forward)
        yield from self._between_engines()

    def _with_rows(self, engine: Sequence[Rank]) -> list[Rank]:
        """Return the ranks of which every launch of every step is known."""
        unfit = self._cut_off | self._lost_launches | self._unstamped()
        left_out = [rank.name for rank in engine if rank.process_id in unfit]
        if left_out:
            self.notes.append(
                f"Rows of {', '.join(left_out)} were not held against other ranks: not every "
                "launch and its step is known."
            )
        return [rank for rank in engine if rank.process_id not in unfit]

    def _unstamped(self) -> set[int]:
        return {
            process_id
            for process_id, process in self._processes.items()
            if (process.started or {}).get("stamped") is False
        }

    def _layers(self, engine: Sequence[Rank]) -> Iterator[RankDifference]:
        unknown = [rank.name for rank in engine if rank.process_id not in self._layouts]
        if unknown or engine[0].data in self._absent:
            who = ", ".join(unknown) or "absent ranks"
            self.notes.append(
                f"How ranks share the layers was not checked: those of {who} are not known."
            )
            return
        self.rules.append(RankRule.LAYERS)
        yield from layer_differences(_stages(engine), self._layouts)

    def _between_engines(self) -> Iterator[RankDifference]:
        heads = [engine[0] for engine in self._engines]
        if len({rank.data for rank in heads}) < _SEVERAL:
            return
        self.rules.append(RankRule.IDLE)
        yield from unlabelled_idle(heads, self._processes)
        if len({rank.host_clock for rank in heads}) > 1:
            self.notes.append(
                "Whether data ranks ran one request at the same time was not checked: they are on "
                "several hosts, whose clocks are not compared."
            )
            return
        self.rules.append(RankRule.REQUESTS)
        yield from request_differences(heads, self._processes)


def _unpaired(ranks: Sequence[Rank]) -> str:
    starts = Counter(rank.name for rank in ranks)
    told = ", ".join(f"{name} {count}" for name, count in starts.items())
    return (
        f"Ranks were started unequally often ({told}), so which belong together is not known, and "
        "they were not held against each other."
    )


def _stages(engine: Sequence[Rank]) -> list[list[Rank]]:
    """Return the tensor ranks of each pipeline rank."""
    found: dict[int, list[Rank]] = {}
    for rank in engine:
        found.setdefault(rank.pipeline, []).append(rank)
    return list(found.values())


def _cut_off(recording: Recording, files: Sequence[FileBooks]) -> set[int]:
    """Return the processes of which the last steps or launches may not be recorded."""
    failed = {
        process.process_id
        for process in recording.steps
        if any(line["event"] == "failed" for line in process.lines)
    }
    return failed | {
        books.process_id for books in files if recording.incomplete or "closed" not in books.flags
    }
