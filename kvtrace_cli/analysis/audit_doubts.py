"""Why writes could not be judged: each reason one plain sentence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from kvtrace_cli.analysis.audit_input import AuditInput, processes_with_stores
from kvtrace_cli.analysis.model import Reconciliation, Verdict
from kvtrace_cli.analysis.rank_model import process_title
from kvtrace_cli.analysis.ranks import ranks_of
from kvtrace_cli.dumps.schema import ProcessSteps, Recording

_LISTED = 3


@dataclass(frozen=True)
class Unjudged:
    """Counts of what the rules had to leave out.

    `ownerless` stores belong to no step; of `unmapped` writes the row is not known; `unlocated`
    ones are inside a KV tensor whose axes are not known; `maybe_freed` ones went into a KV block
    that the engine may have taken back early.
    """

    ownerless: int = 0
    unmapped: int = 0
    unlocated: int = 0
    maybe_freed: int = 0
    inexact_rows: int = 0
    rows_without_block: int = 0


def doubts(
    recording: Recording,
    result: Reconciliation,
    given: AuditInput,
    unjudged: Unjudged,
    silent_layers: pl.DataFrame,
) -> tuple[str, ...]:
    """Return every reason why the audit's silence would not mean that all is well.

    Args:
        recording: of the run.
        result: what reconciling it gave.
        given: what the rules looked at.
        unjudged: what they left out.
        silent_layers: process_id and layer_index of layers that no recorded store went to.
    """
    writers = processes_with_stores(recording)
    names = ranks_of(recording).names
    found = [*_nothing_to_judge(recording, given, writers, names)]
    if result.verdict is not Verdict.AGREES:
        found += result.reasons
    for process in recording.steps:
        if process.process_id in writers:
            found += _of_plugin(process, process_title(process.process_id, names))
    known = {process.process_id for process in recording.steps if process.started}
    found += [
        f"Process {process_id} wrote, but the engine plug-in recorded no steps in it."
        for process_id in sorted(given.survey.processes - known)
        if known
    ]
    return (*found, *_left_out(unjudged, _inexact(recording)), *_silent(silent_layers, names))


def remarks(result: Reconciliation, given: AuditInput) -> tuple[str, ...]:
    """Return what a reader should know although it decides nothing."""
    found = []
    judged = set(given.tables.steps["process_id"].unique())
    unstamped = result.launches.filter(
        pl.col("step_stamp") == 0, pl.col("process_id").is_in(list(judged))
    ).height
    if unstamped:
        found.append(f"Launches without a step stamp, whose rows have no owner: {unstamped:,}.")
    if given.survey.other_outputs:
        found.append(
            f"{given.survey.other_outputs} stores outside the KV tensors are other outputs of "
            "fused kernels: their instructions never write a KV tensor."
        )
    return tuple(found)


def _nothing_to_judge(
    recording: Recording, given: AuditInput, writers: set[int], names: Mapping[int, str]
) -> Iterator[str]:
    patched = {
        dump.header.process_id
        for dump in recording.events
        if dump.header.has("KVTRACE_FILE_PATCHED")
    }
    if not writers:
        yield "No stores were recorded: record again with --record writes."
    elif patched - writers:
        titles = (process_title(process_id, names) for process_id in sorted(patched - writers))
        yield f"No stores were recorded in {', '.join(titles)}."
    elif not given.survey.processes:
        yield "Stores were to be recorded, but no target kernel stored into a KV tensor."
    if not recording.steps:
        yield "The engine plug-in recorded no steps, so no write has an owner or a slot."
    elif given.tables.rows.is_empty():
        yield "No step ran a request, so no write has a slot to compare with."


def _of_plugin(process: ProcessSteps, name: str) -> Iterator[str]:
    started = process.started or {}
    if process.layout is None:
        yield f"No layout was recorded in {name}, so no address can be told from another."
    else:
        unknown = [tensor.layer_name for tensor in process.layout.tensors if tensor.axes is None]
        if unknown:
            yield f"The axes of KV tensors of {name} are not known: {_some(unknown)}."
    for line in process.lines:
        if line["event"] == "failed":
            yield (
                f"The engine plug-in failed in {name} at {line.get('hook', 'a hook')}: "
                f"{line.get('error', 'no error given')}."
            )
    if started.get("stamped") is False:
        yield f"The injector took no step stamps in {name}, so no launch has a step."
    if started.get("missing"):
        yield (
            f"This version of the engine lacks what the plug-in hooks into in {name}: "
            f"{_some(started['missing'])}."
        )


def _left_out(unjudged: Unjudged, inexact: Sequence[str]) -> Iterator[str]:
    counts = {
        "Stores of no recorded step, so without an owner": unjudged.ownerless,
        "Writes of rows that could not be told from the launch": unjudged.unmapped,
        "Writes to KV tensors whose axes are not known": unjudged.unlocated,
        (
            "Writes into KV blocks that another request had filled, which the engine may have "
            "taken back early (sliding window, not known exactly)"
        ): unjudged.maybe_freed,
        (
            f"Rows whose positions are upper bounds only ({_some(inexact)}), so that their slots "
            "were not compared"
        ): unjudged.inexact_rows,
        "Rows of requests without a KV block in the recorded tables": unjudged.rows_without_block,
    }
    return (f"{text}: {number:,}." for text, number in counts.items() if number)


def _inexact(recording: Recording) -> list[str]:
    reasons = (r for p in recording.steps for r in (p.started or {}).get("inexact") or ())
    return list(dict.fromkeys(reasons))


def _silent(layers: pl.DataFrame, names: Mapping[int, str]) -> Iterator[str]:
    of_process = layers.sort("process_id", "layer_index").group_by(
        "process_id", maintain_order=True
    )
    for (process_id,), part in of_process:
        indices = _some([str(index) for index in part["layer_index"]])
        yield (
            f"Layers that no store went to in {process_title(process_id, names)}, as the kernel "
            f"that writes them may not be recorded: {indices}."
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
