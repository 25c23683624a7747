"""What `kvtrace reconcile` looked at, as checks. What decides nothing is no check."""

from collections.abc import Callable, Iterator, Sequence

from kvtrace_cli.analysis.model import (
    Attribution,
    FileBooks,
    Population,
    Reconciliation,
    Section,
    StoreCounts,
    Verdict,
    rank_verdict,
)
from kvtrace_cli.analysis.rank_model import RankAccount, RankBooks, RankRule
from kvtrace_cli.reports.cells import counted
from kvtrace_cli.reports.checks import Check, CheckReport, Status, doubts_check
from kvtrace_cli.reports.rank_tables import ranks_table
from kvtrace_cli.reports.tables import (
    counts_table,
    files_table,
    graphs_table,
    headline,
)

_GROUP = "reconcile"
_STATUSES = {
    Verdict.AGREES: Status.PASSED,
    Verdict.MISMATCH: Status.FAILED,
    Verdict.INCONCLUSIVE: Status.INCONCLUSIVE,
}


def reconcile_report(result: Reconciliation, attribution: Attribution, subject: str) -> CheckReport:
    """Return the checks of a reconciled run, with its tables and notes."""
    shapes = result.measured_graphs or result.graphs
    return CheckReport(
        subject=subject,
        verdict=result.verdict.value,
        status=_STATUSES[result.verdict],
        headline=headline(result),
        emulated=result.emulated,
        checks=reconcile_checks(result),
        tables=(
            counts_table(result),
            *([ranks_table(result)] if result.ranks.are_several else ()),
            *([graphs_table(shapes, "Graph replays", result.ranks.names)] if shapes else ()),
            *([files_table(result.files, result.ranks.names)] if result.files else ()),
        ),
        notes=(*result.notes, *attribution.notes),
    )


def reconcile_checks(result: Reconciliation) -> tuple[Check, ...]:
    """Return one check for each population, one for each sort of fault, one for the doubts.

    There is none for a population without a launch or an event: it was not looked at.
    """
    return tuple(_checks(result))


def _checks(result: Reconciliation) -> Iterator[Check]:
    yield doubts_check(_GROUP, result.doubts)
    if result.records_blocks:
        yield from _section("", "", result.whole_life)
        if result.measured:
            yield from _section("measured-", " of measured requests", result.measured)
    if result.ranks.are_several:
        yield _accounts(result.ranks.accounts)
        yield from (_rank_rule(result.ranks, rule) for rule in result.ranks.checks)
    if result.files:
        yield from _files(result.files)
    if result.stores:
        yield _stores(result.stores)
    if result.kernels:
        yield _check(
            "kernels",
            failed=result.kernel_disagreements > 0,
            message=f"{counted(result.kernel_disagreements, 'program counter')} of "
            f"{counted(len(result.kernels), 'kernel')} in doubt.",
        )


def _section(prefix: str, stretch: str, section: Section) -> Iterator[Check]:
    for sort, blocks in (
        ("graph-node", section.graph_nodes),
        ("plain-launch", section.plain_launches),
    ):
        if blocks.launches or blocks.unexpected_blocks:
            yield _population(f"{prefix}{sort}-blocks", f"{sort} blocks{stretch}", blocks)


def _population(name: str, what: str, blocks: Population) -> Check:
    faults = {
        "missing": blocks.missing_blocks,
        "unexpected": blocks.unexpected_blocks,
        "launched before their kernel was patched": blocks.blocks_before_patching,
    }
    told = [f"{number:,} {fault}" for fault, number in faults.items() if number]
    entered = f"{blocks.matched_blocks:,} of {blocks.expected_blocks:,} {what} entered"
    return _check(
        name, failed=bool(told), message=f"{entered}{': ' if told else ''}{', '.join(told)}."
    )


def _accounts(accounts: Sequence[RankAccount]) -> Check:
    """Check that each rank is there and accounts for all of its blocks."""
    verdicts = [rank_verdict(account) for account in accounts]
    lines = [
        f"{account.rank.title}: {verdict.value}. {' '.join((*account.faults, *account.doubts))}"
        for account, verdict in zip(accounts, verdicts, strict=True)
        if verdict is not Verdict.AGREES
    ]
    worst = next(
        (one for one in (Verdict.MISMATCH, Verdict.INCONCLUSIVE) if one in verdicts), Verdict.AGREES
    )
    agreeing = verdicts.count(Verdict.AGREES)
    message = f"{agreeing:,} of {counted(len(accounts), 'rank')} account for all of their blocks."
    return Check(_GROUP, "ranks", _STATUSES[worst], message, "\n".join(lines))


def _rank_rule(ranks: RankBooks, rule: RankRule) -> Check:
    found = [one.text for one in ranks.differences if one.rule is rule]
    message = found[0] if found else f"{counted(len(ranks.accounts), 'rank')} as they should be."
    return _check(rule.value, failed=bool(found), message=message, detail="\n".join(found[1:]))


def _files(files: Sequence[FileBooks]) -> Iterator[Check]:
    events = [books for books in files if books.expected_blocks is not None]
    yield _of_files(
        "dropped-records", files, lambda books: books.dropped, "were dropped for lack of space"
    )
    yield _of_files(
        "event-sequences", files, lambda books: books.sequence_gaps, "are missing between others"
    )
    if events:
        yield _books(events)


def _of_files(
    name: str, files: Sequence[FileBooks], faults: Callable[[FileBooks], int], what: str
) -> Check:
    total = sum(faults(books) for books in files)
    written = sum(books.written for books in files)
    lines = [f"{books.name}: {faults(books):,}" for books in files if faults(books)]
    message = f"{counted(total, 'record')} {what}, {written:,} written."
    return _check(name, failed=total > 0, message=message, detail="\n".join(lines))


def _books(events: Sequence[FileBooks]) -> Check:
    """Check each event file's: expected = written + dropped."""
    wrong = [books for books in events if books.books_balance is False]
    unknown = [books for books in events if books.books_balance is None]
    lines = [
        f"{books.name}: {books.expected_blocks:,} expected, {books.entries_written:,} written, "
        f"{'unknown' if books.entries_dropped is None else f'{books.entries_dropped:,}'} dropped"
        for books in (*wrong, *unknown)
    ]
    if wrong or not unknown:
        message = f"{len(wrong):,} of {counted(len(events), 'event file')} out of balance."
        return _check("books", failed=bool(wrong), message=message, detail="\n".join(lines))
    message = f"Whether {counted(len(unknown), 'event file')} balance cannot be known."
    return Check(_GROUP, "books", Status.INCONCLUSIVE, message, "\n".join(lines))


def _stores(stores: StoreCounts) -> Check:
    return _check(
        "stores",
        failed=stores.unexpected > 0,
        message=f"{stores.matched:,} of {counted(stores.recorded, 'store')} are of a block that "
        "entered for a recorded launch.",
    )


def _check(name: str, *, failed: bool, message: str, detail: str = "") -> Check:
    return Check(_GROUP, name, Status.FAILED if failed else Status.PASSED, message, detail)
