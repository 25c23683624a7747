"""A recording -> Reconciliation: the order in which the other modules do their part."""

from collections.abc import Iterable

import polars as pl

from kvtrace_cli.analysis import populations
from kvtrace_cli.analysis.activity_targets import count_target_runs, is_seen_by_cupti
from kvtrace_cli.analysis.context_launches import JOINED_COLUMNS
from kvtrace_cli.analysis.files import file_books
from kvtrace_cli.analysis.graph_shape import graph_shapes
from kvtrace_cli.analysis.joined import JoinedEvents
from kvtrace_cli.analysis.kernels import (
    bound_functions,
    count_disagreements,
    kernel_evidence,
    matched_pcs,
)
from kvtrace_cli.analysis.launches import launch_frame
from kvtrace_cli.analysis.matching import match_context
from kvtrace_cli.analysis.measured import STRETCH, measured_windows
from kvtrace_cli.analysis.measured_steps import foreign_stretches
from kvtrace_cli.analysis.model import GraphShape, OrderJoin, Reconciliation, StoreCounts
from kvtrace_cli.analysis.outcomes import Outcomes
from kvtrace_cli.analysis.rank_books import rank_books
from kvtrace_cli.analysis.rank_model import RankBooks
from kvtrace_cli.analysis.steps import step_frame
from kvtrace_cli.analysis.verdict import judge, judged_processes, notes
from kvtrace_cli.dumps.event_source import U64
from kvtrace_cli.dumps.schema import CONTEXT_INDEX, PROCESS_ID, Recording

# As the manifest names it.
_EMULATED_ENGINE = "emulator"
_BY_STAMP = "grid id and launch stamp"
_BY_COUNT = "grid id and order of occurrence"
# What else is looked at of the launches of a context.
_CONTEXT_COLUMNS = (
    *JOINED_COLUMNS,
    "is_graph_node",
    "stream",
    "api_stream",
    "first_of_exec",
    STRETCH,
)


def reconcile(recording: Recording) -> Reconciliation:
    """Compare what the host saw launched with what the device saw enter, block by block.

    Args:
        recording: dumps, journal and requests of one run.

    Returns:
        Reconciliation; `matched + missing == expected` in each population, and matched and
        unexpected blocks of both add up to the rows of `block_events`. Stores, if recorded, are
        counted apart.

    Units: host times on CLOCK_MONOTONIC, GPU times on the GPU globaltimer, never subtracted from
    each other. Source: dump ABI v1; design.md, section 4.
    """
    steps = step_frame(recording.steps)
    foreign = foreign_stretches(recording)
    launches = launch_frame(recording.launches, recording.requests, steps, foreign)
    contexts, outcomes, order_join = _match_contexts(recording, launches)
    launches = populations.with_outcomes(launches, outcomes)
    del outcomes  # as large as the launches
    files = file_books(recording, launches, contexts)
    whole_life = populations.whole_life(launches, contexts)
    windows = measured_windows(recording.requests)
    measured = populations.measured(launches) if windows else None
    stores = _count_stores(recording, contexts)
    pcs, bound = matched_pcs(contexts), bound_functions(recording.journal)
    disagreements = count_disagreements(pcs, bound)
    ranks = rank_books(recording, launches, steps, files, contexts)
    verdict, reasons, doubts = judge(
        recording,
        files,
        whole_life,
        measured,
        kernel_disagreements=disagreements,
        stores=stores,
        ranks=ranks,
    )
    processes = {books.process_id for books in files}
    return Reconciliation(
        verdict=verdict,
        reasons=reasons,
        doubts=doubts,
        notes=notes(recording, files, launches, order_join, ranks),
        emulated=_is_emulated(recording),
        incomplete=recording.incomplete,
        graph_join_method=_graph_join_method(launches),
        measured=measured,
        measured_requests=len(windows),
        whole_life=whole_life,
        measured_graphs=_in_rank_order(graph_shapes(launches, contexts, measured_only=True), ranks),
        graphs=_in_rank_order(graph_shapes(launches, contexts), ranks),
        files=files,
        kernels=kernel_evidence(pcs, bound),
        kernel_disagreements=disagreements,
        order_join=order_join,
        stores=stores,
        unjudged_processes=tuple(sorted(processes - judged_processes(files, launches))),
        ranks=ranks,
        target_runs=count_target_runs(recording) if is_seen_by_cupti(recording) else None,
        contexts=contexts,
        launches=launches,
    )


def _in_rank_order(shapes: Iterable[GraphShape], ranks: RankBooks) -> tuple[GraphShape, ...]:
    """Return the graphs in the order of ranks, which that of process ids need not be."""
    order = {account.rank.process_id: at for at, account in enumerate(ranks.accounts)}
    return tuple(sorted(shapes, key=lambda shape: order.get(shape.process_id, len(order))))


def _match_contexts(
    recording: Recording, launches: pl.DataFrame
) -> tuple[tuple[JoinedEvents, ...], list[Outcomes], OrderJoin]:
    """Join each event file to its context's launches."""
    contexts, outcomes = [], []
    total, streams = 0, 0
    for dump in recording.events:
        header = dump.header
        is_of_process = pl.col(PROCESS_ID) == header.process_id
        of_context = (
            launches.lazy()
            .filter("is_patched", is_of_process, pl.col(CONTEXT_INDEX) == header.context_index)
            .select(_CONTEXT_COLUMNS)
            .collect()
        )

        def node_grids(is_of_process: pl.Expr = is_of_process) -> U64:
            nodes = launches.lazy().filter("is_graph_node", is_of_process)
            return nodes.select(pl.col("grid_id").unique()).collect()["grid_id"].to_numpy()

        joined, found = match_context(dump, of_context, node_grids)
        contexts.append(joined)
        outcomes.append(found)
        total += 0 if of_context.is_empty() else joined.counts.entries
        streams = max(streams, _stream_count(of_context))
    same = sum(context.counts.same_by_order for context in contexts)
    return tuple(contexts), outcomes, OrderJoin(same, total, single_stream=streams == 1)


def _count_stores(recording: Recording, contexts: tuple[JoinedEvents, ...]) -> StoreCounts | None:
    """Count the stores; None if none were recorded and none were asked for."""
    asked = any(dump.header.has("KVTRACE_FILE_WRITES") for dump in recording.events)
    recorded = sum(context.counts.stores for context in contexts)
    matched = sum(context.counts.matched_stores for context in contexts)
    return StoreCounts(recorded, matched) if asked or recorded else None


def _stream_count(launches: pl.DataFrame) -> int:
    """Count distinct pairs of kernel's and launch's stream; for a plain launch they are one."""
    launched_on = pl.when("is_graph_node").then("api_stream").otherwise("stream")
    return launches.select("stream", launched_on.alias("launched_on")).n_unique()


def _is_emulated(recording: Recording) -> bool:
    """Ask the files, which know best, and the manifest, for a run that left none."""
    headers = [dump.header for dump in recording.events]
    headers += [dump.header for dump in recording.launches]
    asked = recording.manifest.get("engine") == _EMULATED_ENGINE
    return asked or any(header.has("KVTRACE_FILE_EMULATED") for header in headers)


def _graph_join_method(launches: pl.DataFrame) -> str | None:
    """Name how graph nodes were joined; None without graph nodes."""
    nodes = launches.filter("is_graph_node", "is_patched")
    if nodes.is_empty():
        return None
    if nodes["is_stamped"].all():
        return _BY_STAMP
    return f"{_BY_STAMP}; without a stamp, {_BY_COUNT}" if nodes["is_stamped"].any() else _BY_COUNT
