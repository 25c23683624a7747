"""What the audit's rules need of a recording, as frames with one row each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from kvtrace_cli.analysis.audit_survey import StoreSource, Survey, survey
from kvtrace_cli.analysis.model import Reconciliation
from kvtrace_cli.analysis.steps import STEP_KEY, StepTables
from kvtrace_cli.dumps.schema import KvTensor, ProcessSteps, Recording

_KEY = ("process_id", "kv_group")
_LAYER = (*_KEY, "layer_index")
_GROUPS = {
    "process_id": pl.UInt32,
    "kv_group": pl.UInt16,
    "block_size": pl.Int64,
    "null_block": pl.Int64,
    "sliding_window": pl.Int64,
    "attention_chunk_size": pl.Int64,
    "window_is_certain": pl.Boolean,
}
_EXPECTED = {
    "process_id": pl.UInt32,
    "kv_group": pl.UInt16,
    "layer_index": pl.UInt32,
    "part": pl.String,
}
_COPIES = {
    "process_id": pl.UInt32,
    "step_stamp": pl.UInt32,
    "from_block": pl.Int64,
    "to_block": pl.Int64,
}
_ADMISSIONS = {"process_id": pl.UInt32, "step_stamp": pl.UInt32, "request_id": pl.String}
# How the plug-in's reason for inexact positions begins where a request's first step is exact.
_SPECULATIVE = "speculative decoding"
_PARTS = {"k": ("K",), "v": ("V",)}


@dataclass(frozen=True)
class AuditInput:
    """Everything the rules look at.

    `tables` as `step_tables` makes them; `source` yields the stores, and `survey` is what they say
    together. Frames:
    `groups`: process_id, kv_group, block_size (tokens), null_block (null: none); sliding_window and
    attention_chunk_size (tokens; both null: a request keeps its KV blocks until it ends), and
    window_is_certain: whether what lies behind it is known to be free, and not just perhaps;
    `expected`: process_id, kv_group, layer_index, part of each write that a row must do, without
    layers that nothing or only draft steps wrote;
    `inexact`: processes whose positions are upper bounds, except in `admissions`: process_id,
    step_stamp, request_id of a request's first step;
    `copies`: process_id, step_stamp, from_block, to_block;
    `uncertain`: process_id, step_stamp of steps whose writes may be missing from the recording.
    """

    tables: StepTables
    source: StoreSource
    survey: Survey
    groups: pl.DataFrame
    expected: pl.DataFrame
    inexact: frozenset[int]
    admissions: pl.DataFrame
    copies: pl.DataFrame
    uncertain: pl.DataFrame


def audit_input(
    recording: Recording, result: Reconciliation, tables: StepTables, source: StoreSource
) -> AuditInput:
    """Put together what the rules look at.

    Args:
        recording: of one run.
        result: from `reconcile`.
        tables: from `step_tables`.
        source: of the stores.
    """
    wide = pl.col("kv_block_id").cast(pl.Int64)
    seen = survey(source)
    inexact = (process.process_id for process in recording.steps if _inexact(process))
    return AuditInput(
        tables=replace(
            tables,
            slots=tables.slots.with_columns(wide),
            holdings=tables.holdings.with_columns(wide),
        ),
        source=source,
        survey=seen,
        groups=group_frame(recording.steps),
        expected=expected_frame(recording.steps).join(
            seen.layers.filter(~pl.col("draft_only")), on=_LAYER, how="semi", maintain_order="left"
        ),
        inexact=frozenset(inexact),
        admissions=admission_frame(recording.steps),
        copies=copy_frame(recording.steps),
        uncertain=uncertain_steps(recording, result, tables.steps),
    )


def processes_with_stores(recording: Recording) -> set[int]:
    """Return the processes with a patched target kernel whose stores were recorded."""
    return {
        dump.header.process_id
        for dump in recording.events
        if dump.header.has("KVTRACE_FILE_WRITES") and dump.header.has("KVTRACE_FILE_PATCHED")
    }


def silent_layers(recording: Recording, given: AuditInput) -> pl.DataFrame:
    """Return process_id and layer_index of layers that no store went to.

    Only of processes whose stores were recorded and that ran rows of requests.
    """
    recorded = list(processes_with_stores(recording))
    return (
        expected_frame(recording.steps)
        .filter(pl.col("process_id").is_in(recorded))
        .join(given.tables.rows, on="process_id", how="semi")
        .join(given.survey.layers, on=_LAYER, how="anti")
        .select("process_id", "layer_index")
        .unique()
    )


def uncertain_steps(
    recording: Recording, result: Reconciliation, steps: pl.DataFrame
) -> pl.DataFrame:
    """Return the steps of which writes may be missing: a lost event is no write that lacks.

    Those are all steps of a process that lost records or failed, the last ones of a process that
    did not end in order, and those with a launch of which not every block has its event.
    """
    process = pl.col("process_id")
    lossy = {
        books.process_id
        for books in result.files
        if books.dropped or books.sequence_gaps or books.first_failure_site != "none"
    }
    cut_off = [
        books.process_id
        for books in result.files
        if recording.incomplete or "closed" not in books.flags
    ]
    launches = result.launches.filter(pl.col("step_stamp") > 0)
    last = (
        launches.filter(pl.col("matched_blocks") > 0)
        .group_by("process_id")
        .agg(pl.col("step_stamp").max().alias("last_step"))
    )
    tail = (
        steps.filter(process.is_in(cut_off))
        .join(last, on="process_id", how="left")
        .filter(pl.col("step_stamp") >= pl.col("last_step").fill_null(0))
    )
    partial = launches.filter(
        ~pl.col("is_patched") | (pl.col("matched_blocks") < pl.col("expected_blocks"))
    )
    found = (steps.filter(process.is_in(list(lossy))), tail, partial)
    return pl.concat([frame.select(STEP_KEY) for frame in found]).unique()


def group_frame(processes: Sequence[ProcessSteps]) -> pl.DataFrame:
    """Return the `groups` of AuditInput; block sizes as the scheduler counts."""
    rows = [
        (
            process.process_id,
            group,
            size,
            process.layout.null_block if process.layout else None,
            *windows.get(group, (None, None, True)),
        )
        for process in processes
        for windows in [_windows(process)]
        for group, size in enumerate((process.started or {}).get("block_sizes") or ())
    ]
    return pl.DataFrame(rows, schema=_GROUPS, orient="row")


def _windows(process: ProcessSteps) -> dict[int, tuple[int | None, int | None, bool]]:
    """Return of each KV group that has a window its three columns of `groups`.

    Where it is not known the window is the token itself: whatever is filled may be free. So it is
    in a layout with several groups that says nothing of any, as older plug-ins wrote it.
    """
    sizes = (process.started or {}).get("block_sizes") or ()
    groups = process.layout.groups if process.layout else ()
    windows = [(one.sliding_window, one.attention_chunk_size) for one in groups]
    unknown = [one.unknown_window for one in groups]
    if len(sizes) > 1 and not any(unknown) and not any(map(any, windows)):
        return dict.fromkeys(range(len(sizes)), (1, None, False))
    # Upper bounds of positions put too much behind the window.
    is_exact = not _inexact(process)
    return {
        group: (1, None, False) if unknown[group] else (*window, is_exact)
        for group, window in enumerate(windows)
    }


def expected_frame(processes: Sequence[ProcessSteps]) -> pl.DataFrame:
    """Return each part of each layer that the layout says a token has; scales are left out.

    Layers of one KV group that share their memory count once: one of them writes it.
    """
    rows = [
        (process.process_id, tensor.group, tensor.layer_index, part)
        for process in processes
        for tensor in _distinct(process)
        for part in _parts(tensor)
    ]
    return pl.DataFrame(rows, schema=_EXPECTED, orient="row").unique(maintain_order=True)


def _distinct(process: ProcessSteps) -> Iterator[KvTensor]:
    seen: set[tuple[int, str, int]] = set()
    tensors = process.layout.tensors if process.layout else ()
    for tensor in sorted(tensors, key=lambda tensor: tensor.layer_index):
        key = (tensor.group, tensor.role, tensor.address)
        if tensor.axes is not None and key not in seen:
            seen.add(key)
            yield tensor


def _parts(tensor: KvTensor) -> tuple[str, ...]:
    if tensor.role == "kv":
        # Without either axis it is one vector for both, as in latent attention.
        return ("K", "V") if {"kv", "kv_dim"} & set(tensor.axes or ()) else ("KV",)
    return _PARTS.get(tensor.role, ())


def copy_frame(processes: Sequence[ProcessSteps]) -> pl.DataFrame:
    """Return the KV blocks that were copied, each with the first step that runs after the copy."""
    rows = [
        (process.process_id, stamp, *pair)
        for process in processes
        for stamp, line in _stamped_lines(process)
        for pair in line.get("copied_blocks") or ()
    ]
    return pl.DataFrame(rows, schema=_COPIES, orient="row")


def admission_frame(processes: Sequence[ProcessSteps]) -> pl.DataFrame:
    """Return the steps in which a request began or began again.

    Speculative decoding leaves its positions exact there; other reasons for inexact ones do not.
    """
    rows = [
        (process.process_id, stamp, admission[0])
        for process in processes
        if all(reason.startswith(_SPECULATIVE) for reason in _inexact(process))
        for stamp, line in _stamped_lines(process)
        for name in ("admitted", "resumed")
        for admission in line.get(name) or ()
    ]
    return pl.DataFrame(rows, schema=_ADMISSIONS, orient="row").unique(maintain_order=True)


def _inexact(process: ProcessSteps) -> list[str]:
    return (process.started or {}).get("inexact") or []


def _stamped_lines(process: ProcessSteps) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line with its step's stamp; a line without one takes effect in the next step."""
    next_stamp = 1
    for line in process.lines:
        stamp = line.get("step_stamp", next_stamp)
        yield stamp, line
        next_stamp = stamp + 1 if line["event"] == "step" else stamp
