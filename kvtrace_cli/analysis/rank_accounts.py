"""What each rank recorded: its launches, blocks, stores, drops and steps, and what they lack."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from kvtrace_cli.analysis.activity_targets import is_seen_by_cupti
from kvtrace_cli.analysis.model import WITHOUT_EVENTS, FileBooks
from kvtrace_cli.analysis.rank_model import Rank, RankAccount, RankDifference
from kvtrace_cli.analysis.ranks import Ranks
from kvtrace_cli.dumps.schema import PROCESS_ID, ProcessSteps, Recording

_ABSENT: Final = "It was asked for, and no process said to be it."
_UNCLOSED: Final = "It did not close its files in order."
_FAILED: Final = "Its injector failed."
# Doubts that reconciling tells of each process anyway.
TOLD_OF_FILES: Final = (_UNCLOSED, _FAILED)
_KINDS: Final = ("forward", "dummy", "draft")
_COUNTS: Final = ("launches", "expected_blocks", "matched_blocks", "before_patching")


def rank_accounts(
    recording: Recording, ranks: Ranks, launches: pl.DataFrame, files: Sequence[FileBooks]
) -> tuple[RankAccount, ...]:
    """Return the account of every rank, those without a process too, in the order of ranks.

    Args:
        recording: of one run.
        ranks: its `ranks_of`.
        launches: from `launch_frame`, with what was found for each.
        files: the books of its files.

    Units: launches, blocks, stores and records; steps of the engine.
    """
    counted = {row[0]: row[1:] for row in _by_process(launches).iter_rows()}
    steps = {process.process_id: process for process in recording.steps}
    records_blocks = not is_seen_by_cupti(recording) and not any(
        flag in books.flags for books in files for flag in WITHOUT_EVENTS
    )
    found = []
    for rank in sorted((*ranks.present, *ranks.absent), key=lambda rank: rank.place):
        if rank.process_id is None:
            found.append(RankAccount(rank, doubts=(_ABSENT,)))
            continue
        own = [books for books in files if books.process_id == rank.process_id]
        counts = dict(zip(_COUNTS, counted.get(rank.process_id, (0, 0, 0, 0)), strict=True))
        account = _account(rank, counts, own, steps[rank.process_id])
        if records_blocks:
            faults = _faults(account, counts["before_patching"])
            account = replace(account, faults=tuple(faults))
        found.append(
            replace(
                account,
                doubts=tuple(
                    _doubts(account, own, steps[rank.process_id], records_blocks=records_blocks)
                ),
            )
        )
    return tuple(found)


def with_differences(
    accounts: Sequence[RankAccount], differences: Sequence[RankDifference]
) -> tuple[RankAccount, ...]:
    """Add to each rank's faults where it parts from another."""
    texts: dict[str, list[str]] = {}
    for difference in differences:
        texts.setdefault(difference.rank, []).append(difference.text)
    return tuple(
        replace(account, faults=(*account.faults, *texts.get(account.rank.name, ())))
        for account in accounts
    )


def _by_process(launches: pl.DataFrame) -> pl.DataFrame:
    is_patched = pl.col("is_patched")
    return launches.group_by(PROCESS_ID).agg(
        pl.len(),
        pl.col("expected_blocks", "matched_blocks").filter(is_patched).sum(),
        pl.col("expected_blocks").filter(~is_patched).sum().alias("before_patching"),
    )


def _account(
    rank: Rank, counts: dict[str, int], files: Sequence[FileBooks], steps: ProcessSteps
) -> RankAccount:
    kinds = Counter(line["kind"] for line in steps.lines if line["event"] == "step")
    events = [books for books in files if books.expected_blocks is not None]
    return RankAccount(
        rank=rank,
        launches=counts["launches"],
        expected_blocks=counts["expected_blocks"],
        matched_blocks=counts["matched_blocks"],
        unexpected_blocks=sum(one.entries_written for one in events) - counts["matched_blocks"],
        stores=sum(one.stores_written for one in events),
        dropped=sum(one.dropped for one in files),
        steps={kind: kinds[kind] for kind in _KINDS},
        has_file_faults=any(
            one.dropped or one.sequence_gaps or one.books_balance is False for one in files
        ),
    )


def _faults(account: RankAccount, before_patching: int) -> Iterator[str]:
    missing = account.expected_blocks - account.matched_blocks
    if missing:
        yield f"{missing:,} of its {account.expected_blocks:,} blocks have no event."
    if account.unexpected_blocks:
        yield f"{account.unexpected_blocks:,} of its events belong to no block of a launch."
    if before_patching:
        yield f"{before_patching:,} of its blocks were launched before their kernel was patched."


def _doubts(
    account: RankAccount, files: Sequence[FileBooks], steps: ProcessSteps, *, records_blocks: bool
) -> Iterator[str]:
    is_empty = not any(books.written or books.dropped for books in files)
    if records_blocks and is_empty:
        yield "It recorded no launch of a target kernel and no block."
    elif records_blocks and not account.expected_blocks + account.unexpected_blocks:
        yield "No block of it was recorded."
    if not is_empty and any("closed" not in books.flags for books in files):
        yield _UNCLOSED
    if any(books.first_failure_site != "none" for books in files):
        yield _FAILED
    if any(line["event"] == "failed" for line in steps.lines):
        yield "The engine plug-in failed in it, so its later steps are not known."
