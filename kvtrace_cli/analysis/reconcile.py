"""A recording -> Reconciliation: the order in which the other modules do their part."""

import polars as pl

from kvtrace_cli.analysis import populations
from kvtrace_cli.analysis.files import file_books
from kvtrace_cli.analysis.graph_shape import graph_shapes
from kvtrace_cli.analysis.joined import JoinedEvents, is_store
from kvtrace_cli.analysis.kernels import (
    bound_functions,
    count_disagreements,
    kernel_evidence,
    matched_pcs,
)
from kvtrace_cli.analysis.launches import launch_frame
from kvtrace_cli.analysis.matching import count_same_by_order, match_events
from kvtrace_cli.analysis.measured import measured_windows
from kvtrace_cli.analysis.model import OrderJoin, Reconciliation, StoreCounts
from kvtrace_cli.analysis.steps import step_frame
from kvtrace_cli.analysis.verdict import judge, judged_processes, notes
from kvtrace_cli.dumps.schema import (
    CONTEXT_INDEX,
    LAUNCH_INDEX,
    PROCESS_ID,
    Recording,
)

# As the manifest names it.
_EMULATED_ENGINE = "emulator"
_BY_STAMP = "grid id and launch stamp"
_BY_COUNT = "grid id and order of occurrence"
# All that joining looks at, of the many columns of launches.
_JOINED_COLUMNS = (
    LAUNCH_INDEX,
    "grid_id",
    "join_stamp",
    "grid_dim_x",
    "grid_dim_y",
    "grid_dim_z",
    "expected_blocks",
    "is_graph_node",
    "stream",
    "api_stream",
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
    launches = launch_frame(recording.launches, recording.requests, step_frame(recording.steps))
    contexts, order_join = _match_contexts(recording, launches)
    launches = populations.with_outcomes(launches, contexts)
    files = file_books(recording, launches)
    whole_life = populations.whole_life(launches, contexts)
    windows = measured_windows(recording.requests)
    measured = populations.measured(launches) if windows else None
    stores = _count_stores(recording, contexts)
    pcs, bound = matched_pcs(launches, contexts), bound_functions(recording.journal)
    disagreements = count_disagreements(pcs, bound)
    verdict, reasons, doubts = judge(
        recording, files, whole_life, measured, kernel_disagreements=disagreements, stores=stores
    )
    processes = {books.process_id for books in files}
    return Reconciliation(
        verdict=verdict,
        reasons=reasons,
        doubts=doubts,
        notes=notes(recording, files, launches, order_join),
        emulated=_is_emulated(recording),
        incomplete=recording.incomplete,
        graph_join_method=_graph_join_method(launches),
        measured=measured,
        measured_requests=len(windows),
        whole_life=whole_life,
        measured_graphs=graph_shapes(launches, contexts, measured_only=True),
        graphs=graph_shapes(launches, contexts),
        files=files,
        kernels=kernel_evidence(pcs, bound),
        kernel_disagreements=disagreements,
        order_join=order_join,
        stores=stores,
        unjudged_processes=tuple(sorted(processes - judged_processes(files, launches))),
        contexts=contexts,
        launches=launches,
    )


def _match_contexts(
    recording: Recording, launches: pl.DataFrame
) -> tuple[tuple[JoinedEvents, ...], OrderJoin]:
    """Join each event file to its context's launches."""
    contexts = []
    matches, total, streams = 0, 0, 0
    for dump in recording.events:
        header = dump.header
        of_context = (
            launches.lazy()
            .filter(
                "is_patched",
                pl.col(PROCESS_ID) == header.process_id,
                pl.col(CONTEXT_INDEX) == header.context_index,
            )
            .select(_JOINED_COLUMNS)
            .collect()
        )
        launch_index, matched = match_events(dump.records, of_context)
        contexts.append(
            JoinedEvents(
                header.process_id, header.context_index, dump.records, launch_index, matched
            )
        )
        entered = _of_entries(dump.records, launch_index)
        matches += count_same_by_order(entered, of_context)
        total += 0 if of_context.is_empty() else len(entered)
        streams = max(streams, _stream_count(of_context))
    return tuple(contexts), OrderJoin(matches, total, single_stream=streams == 1)


def _of_entries(records: pl.DataFrame, launch_index: pl.Series) -> pl.Series:
    entries = records.select(~is_store()).to_series()
    return launch_index if entries.all() else launch_index.filter(entries)


def _count_stores(recording: Recording, contexts: tuple[JoinedEvents, ...]) -> StoreCounts | None:
    """Count the stores; None if none were recorded and none were asked for."""
    asked = any(dump.header.has("KVTRACE_FILE_WRITES") for dump in recording.events)
    recorded = matched = 0
    for context in contexts:
        stores = context.records.select(is_store()).to_series()
        recorded += int(stores.sum())
        matched += int((stores & context.matched).sum())
    return StoreCounts(recorded, matched) if asked or recorded else None


def _stream_count(launches: pl.DataFrame) -> int:
    """Count distinct pairs of kernel's and launch's stream; for a plain launch they are one."""
    launched_on = pl.when("is_graph_node").then("api_stream").otherwise("stream")
    return launches.select("stream", launched_on.alias("launched_on")).n_unique()


def _is_emulated(recording: Recording) -> bool:
    """Ask the files, which know best, and the manifest, for a run that left none."""
    dumps = (*recording.events, *recording.launches)
    asked = recording.manifest.get("engine") == _EMULATED_ENGINE
    return asked or any(dump.header.has("KVTRACE_FILE_EMULATED") for dump in dumps)


def _graph_join_method(launches: pl.DataFrame) -> str | None:
    """Name how graph nodes were joined; None without graph nodes."""
    nodes = launches.filter("is_graph_node", "is_patched")
    if nodes.is_empty():
        return None
    if nodes["is_stamped"].all():
        return _BY_STAMP
    return f"{_BY_STAMP}; without a stamp, {_BY_COUNT}" if nodes["is_stamped"].any() else _BY_COUNT
