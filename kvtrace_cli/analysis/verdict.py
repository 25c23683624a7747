"""The rules that turn counts into a verdict. Silence is never success."""

from collections.abc import Iterator

import polars as pl

from kvtrace_cli.analysis.activity_targets import count_target_runs, is_seen_by_cupti
from kvtrace_cli.analysis.measured import measured_windows
from kvtrace_cli.analysis.model import (
    WITHOUT_EVENTS,
    FileBooks,
    OrderJoin,
    Population,
    Section,
    StoreCounts,
    Verdict,
)
from kvtrace_cli.analysis.rank_model import RankBooks, process_title
from kvtrace_cli.dumps.schema import Recording, unbound_functions

_HTTP_OK = 200


def judge(
    recording: Recording,
    files: tuple[FileBooks, ...],
    whole_life: Section,
    measured: Section | None,
    *,
    kernel_disagreements: int,
    stores: StoreCounts | None,
    ranks: RankBooks,
) -> tuple[Verdict, tuple[str, ...], tuple[str, ...]]:
    """Return the verdict, every reason for it, and the doubts among them, one plain sentence each.

    A mismatch outweighs everything; otherwise anything unknowable makes it inconclusive. The
    reasons of both are given; doubts are those of the latter.
    """
    by_design = tuple(_without_events(files))
    mismatches = [
        *_population_mismatches("graph-node", whole_life.graph_nodes),
        *_population_mismatches("plain-launch", whole_life.plain_launches),
        *(() if by_design else _before_patching("graph-node", whole_life.graph_nodes)),
        *(() if by_design else _before_patching("plain-launch", whole_life.plain_launches)),
        *_file_mismatches(files, ranks),
    ]
    if stores and stores.unexpected:
        mismatches.append(
            f"{stores.unexpected} of {stores.recorded} stores are of no block that entered for a "
            "recorded launch."
        )
    if kernel_disagreements:
        mismatches.append(
            f"{kernel_disagreements} program counters stand for different kernels in different "
            "records."
        )
    mismatches += _rank_mismatches(ranks)
    doubts = (
        *by_design,
        *_nothing_recorded(recording, files, whole_life),
        *_unknowable(recording, files, ranks),
        *ranks.doubts,
        *_empty_window(recording, measured),
    )
    if mismatches:
        return Verdict.MISMATCH, (*mismatches, *doubts), doubts
    return (Verdict.INCONCLUSIVE if doubts else Verdict.AGREES), doubts, doubts


def notes(
    recording: Recording,
    files: tuple[FileBooks, ...],
    launches: pl.DataFrame,
    order: OrderJoin,
    ranks: RankBooks,
) -> tuple[str, ...]:
    """Return what a reader should know although it decides nothing."""
    found = []
    missing = launches["is_patched"] & (launches["matched_blocks"] < launches["expected_blocks"])
    if (launches["shares_join_key"] & missing).any():
        found.append(
            "Launches that share grid id and stamp were told apart by counting, and events are "
            "missing: which of them lack events is not certain."
        )
    launches_dropped = any(b.dropped for b in files if b.expected_blocks is None)
    if order.single_stream and order.agrees is False and not (missing.any() or launches_dropped):
        found.append(
            "Every launch is on one stream, yet the join by order of atomics gives "
            f"{order.total - order.matches} of {order.total} blocks to another launch."
        )
    for books in files:
        if books.stores_dropped is None:
            found.append(
                f"{books.name}: how many of its {books.dropped} drops were stores is not known, so "
                "its books cannot be balanced."
            )
        elif books.expected_blocks is not None and books.books_balance is None:
            found.append(
                f"{books.name}: launch records were dropped, so its {books.expected_blocks} "
                "expected blocks are only a lower bound."
            )
    found += [
        f"{_title(ranks, process_id)} did not close its files in order; it had recorded nothing."
        for process_id in sorted(_unclosed(files) - _recorders(files))
    ]
    unbound = unbound_functions(recording.journal)
    if unbound:
        found.append(
            f"{len(unbound)} functions of a patched module had no callback data, so they read "
            f"garbage when a graph replays them: {', '.join(unbound)}."
        )
    if not measured_windows(recording.requests):
        found.append("No measured request is recorded, so only the whole life is judged.")
    return (*found, *ranks.notes)


def judged_processes(files: tuple[FileBooks, ...], launches: pl.DataFrame) -> set[int]:
    """Return the processes that patched a target, launched one, or wrote an event."""
    return set(launches["process_id"].unique()) | {
        books.process_id for books in files if "patched" in books.flags or books.written
    }


def _population_mismatches(sort: str, blocks: Population) -> Iterator[str]:
    if blocks.missing_blocks:
        yield f"{blocks.missing_blocks} of {blocks.expected_blocks} {sort} blocks have no event."
    if blocks.unexpected_blocks:
        yield f"{blocks.unexpected_blocks} {sort} events belong to no block of a recorded launch."


def _rank_mismatches(ranks: RankBooks) -> Iterator[str]:
    """Say which ranks the mismatches of a run of several are of, and where ranks part."""
    if not ranks.are_several:
        return
    told = {difference.text for difference in ranks.differences}
    for account in ranks.accounts:
        for fault in account.faults:
            if fault not in told:
                yield f"{account.rank.title}: {fault[0].lower()}{fault[1:]}"
    for difference in ranks.differences:
        yield f"{difference.rule.value}: {difference.text}"


def _before_patching(sort: str, blocks: Population) -> Iterator[str]:
    if blocks.blocks_before_patching:
        yield (
            f"{blocks.blocks_before_patching} {sort} blocks were launched before their kernel was "
            "patched, so they cannot have events."
        )


def _file_mismatches(files: tuple[FileBooks, ...], ranks: RankBooks) -> Iterator[str]:
    for books in files:
        rank = ranks.names.get(books.process_id)
        name = f"{books.name} ({rank})" if rank else books.name
        if books.dropped:
            yield f"{name}: {books.dropped} records were dropped for lack of space."
        if books.sequence_gaps:
            yield f"{name}: {books.sequence_gaps} sequences are missing between its events."
        if books.books_balance is False:
            yield (
                f"{name}: {books.expected_blocks} blocks expected, but "
                f"{books.entries_written} written and {books.entries_dropped} dropped."
            )


def _without_events(files: tuple[FileBooks, ...]) -> Iterator[str]:
    """Say so if the run was asked to record launches and no events."""
    flags = {flag for books in files for flag in books.flags}
    for flag, reason in WITHOUT_EVENTS.items():
        if flag in flags:
            yield reason


def _nothing_recorded(
    recording: Recording, files: tuple[FileBooks, ...], whole_life: Section
) -> Iterator[str]:
    attached = any(line.get("event") == "attached" for line in recording.journal)
    launches = whole_life.graph_nodes.launches + whole_life.plain_launches.launches
    if is_seen_by_cupti(recording):
        yield from _seen_by_cupti(recording)
    elif not files and not attached:
        yield "The injector recorded nothing: it attached to no process that uses the GPU."
    elif not files:
        yield "The injector attached, but no process created a CUDA context."
    elif not launches and not any("patched" in books.flags for books in files):
        yield "No process patched a target kernel."
    elif not launches and not any(books.written for books in files):
        yield "A target kernel was patched, but no launch of it and no event was recorded."
    elif not launches:
        yield "No launch of a target kernel was recorded."


def _seen_by_cupti(recording: Recording) -> Iterator[str]:
    runs = count_target_runs(recording)
    yield (
        f"CUPTI observed this run, not the Sanitizer: target kernels ran {runs.graph_nodes} times "
        f"in graphs and {runs.plain_launches} times as plain launches. No block was recorded, so "
        "nothing can be said of blocks; see `kvtrace gap`."
    )
    for line in recording.journal:
        if line.get("event") == "failure":
            yield f"The observer of process {line['process_id']} failed: {line.get('detail')}."


def _unknowable(
    recording: Recording, files: tuple[FileBooks, ...], ranks: RankBooks
) -> Iterator[str]:
    flags = {flag for books in files for flag in books.flags}
    if recording.incomplete:
        yield "The run did not end in order, so what came last may be missing."
    if "conditional_nodes" in flags:
        yield "A graph with conditional nodes ran: the host cannot know which of its nodes ran."
    if "device_graphs" in flags:
        yield "A graph that can launch graphs from the device ran: those have no host record."
    yield from _switched_off(recording, ranks)
    late = _processes_of(recording, "launched_after_end")
    for process_id in sorted(late):
        yield (
            f"{_title(ranks, process_id)} launched a target kernel after its recording had ended, "
            "so what that did is not recorded."
        )
    for process_id in sorted((_unclosed(files) & _recorders(files)) - late):
        yield (
            f"{_title(ranks, process_id)} did not close its files in order, so what came last may "
            "be missing on both sides. Record again and let it end in order: `vllm serve` with "
            "--shutdown-timeout 30 and one signal to its first process, a script with --no-steps "
            "with VLLM_ENABLE_V1_MULTIPROCESSING=0."
        )
    for books in _first_failures(files):
        yield (
            f"The injector of {process_title(books.process_id, ranks.names)} failed at "
            f"{books.first_failure_site} (result {books.first_failure_result})."
        )
    for name in sorted(_targets_not_patched(recording)):
        yield f"The target kernel {name} ran in a module that could not be patched."


def _switched_off(recording: Recording, ranks: RankBooks) -> Iterator[str]:
    """Yield which processes did not record all along, because that was asked of them."""
    for process_id in sorted(_processes_of(recording, "recording_switched")):
        lines = [line for line in recording.journal if line.get("process_id") == process_id]
        turned = [line for line in lines if line.get("event") == "recording_switched"]
        ended = [line for line in lines if line.get("event") == "launches_ended"]
        passed = int((ended or turned)[-1].get("launches_passed", 0))
        times = sum(line.get("recording") is False for line in turned)
        yield (
            f"The recording of {process_title(process_id, ranks.names)} was switched off {times} "
            f"times, so {passed} launches of target kernels passed without a record or an event."
        )


def _title(ranks: RankBooks, process_id: int) -> str:
    title = process_title(process_id, ranks.names)
    return title[0].upper() + title[1:]


def _unclosed(files: tuple[FileBooks, ...]) -> set[int]:
    return {books.process_id for books in files if "closed" not in books.flags}


def _recorders(files: tuple[FileBooks, ...]) -> set[int]:
    """Return the processes that recorded a launch or an event, or had no space for one."""
    return {books.process_id for books in files if books.written or books.dropped}


def _first_failures(files: tuple[FileBooks, ...]) -> list[FileBooks]:
    failed = {books.process_id: books for books in files if books.first_failure_site != "none"}
    return list(failed.values())


def _processes_of(recording: Recording, event: str) -> set[int]:
    return {line["process_id"] for line in recording.journal if line.get("event") == event}


def _targets_not_patched(recording: Recording) -> set[str]:
    return {
        str(line.get("name"))
        for line in recording.journal
        if line.get("event") == "target_not_patched" and line.get("by_design") is not True
    }


def _empty_window(recording: Recording, measured: Section | None) -> Iterator[str]:
    if is_seen_by_cupti(recording):
        return
    answered = any(
        request.get("role") == "measured" and request.get("http_status") == _HTTP_OK
        for request in recording.requests
    )
    if answered and not (
        measured and measured.graph_nodes.launches + measured.plain_launches.launches
    ):
        yield "The measured request was answered, but no target kernel was launched during it."
