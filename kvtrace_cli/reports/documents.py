"""Results as JSON documents, each with a schema_version."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from kvtrace_cli import __version__
from kvtrace_cli.analysis.model import (
    Attribution,
    GraphShape,
    Population,
    Reconciliation,
    RequestWrites,
    RowCounts,
    Section,
    rank_verdict,
)
from kvtrace_cli.analysis.rank_model import RankAccount, RankDifference, rank_document
from kvtrace_cli.analysis.run_facts import RunFacts
from kvtrace_cli.dumps.summary import SCHEMA_VERSION, SUMMARY_KIND

# What the engine chose, so that it differs from run to run.
_ENGINES: Final = ("request_id", "is_engine_own")
_DRAWN: Final = ("text", "request_id")
_ADDRESSES: Final = ("graph_exec", "process_id")
# Times are shown to the nanosecond, which is finer than the timer's steps.
_MS_DIGITS: Final = 6
_LINE_LETTERS: Final = 100
# How many of what grows with a run a summary keeps; the totals stand beside them.
_MOST_KEPT: Final = 64


def summary_document(
    result: Reconciliation, attribution: Attribution, manifest: dict[str, Any], facts: RunFacts
) -> dict[str, Any]:
    """Return what summary.json holds: small, and the same for two runs that behaved the same.

    Args:
        result: from `reconcile`.
        attribution: of `result`.
        manifest: of the run.
        facts: of the run, from `run_facts`.

    Spans and gaps are in ms on the GPU globaltimer. Nothing in it is an address, a process id or an
    absolute time, or an id that the engine drew, except where a reason names a file.
    """
    return {
        "kind": SUMMARY_KIND,
        "schema_version": SCHEMA_VERSION,
        "kvtrace_version": __version__,
        "verdict": result.verdict.value,
        "reasons": list(result.reasons),
        "emulated": result.emulated,
        "incomplete": result.incomplete,
        **_provenance(manifest),
        "graph_join_method": result.graph_join_method,
        "measured_request": _section(result.measured),
        "measured_requests": result.measured_requests,
        "whole_life": _section(result.whole_life),
        "measured_graphs": _graphs(result, result.measured_graphs),
        "graphs": _graphs(result, result.graphs),
        "graphs_total": len(result.graphs),
        "dumps": _dumps(result),
        "ranks": [_rank(account) for account in result.ranks.accounts[:_MOST_KEPT]],
        "ranks_total": len(result.ranks.accounts),
        "rank_checks": [rule.value for rule in result.ranks.checks],
        "rank_differences": [_difference(one) for one in result.ranks.differences[:_MOST_KEPT]],
        "kernels": _kernels(result),
        "kernel_disagreements": result.kernel_disagreements,
        "order_join": asdict(result.order_join) | {"agrees": result.order_join.agrees},
        "stores": _stores(result),
        "attribution": _attribution(attribution) if attribution.has_steps else None,
        "settings": asdict(facts.settings),
        "structure": asdict(facts.structure),
        "times": asdict(facts.times),
    }


def report_document(
    result: Reconciliation, attribution: Attribution, manifest: dict[str, Any], facts: RunFacts
) -> dict[str, Any]:
    """Return what `kvtrace reconcile --json` prints: the summary and what is true of one run only.

    Adds `notes`, the process of every rank, the books of every file, the kernels of every context,
    the processes that were not judged, and every request that the engine ran, by the engine's id.
    """
    names = result.ranks.names
    return summary_document(result, attribution, manifest, facts) | {
        "notes": [*result.notes, *attribution.notes],
        "ranks": [
            rank_document(account.rank)
            | _rank(account)
            | {"faults": list(account.faults), "doubts": list(account.doubts)}
            for account in result.ranks.accounts
        ],
        "rank_differences": [
            _difference(one) | {"text": one.text, "request_id": one.request_id}
            for one in result.ranks.differences
        ],
        "files": [asdict(books) | {"rank": names.get(books.process_id)} for books in result.files],
        "context_kernels": [
            asdict(kernel) | {"rank": names.get(kernel.process_id)} for kernel in result.kernels
        ],
        "unjudged_processes": list(result.unjudged_processes),
        "requests": [_request(request) for request in attribution.requests],
    }


def document_text(value: Any, indent: int = 0) -> str:
    """Return a document as JSON in lines that a reviewer can compare.

    What is short, and any list of plain values, is one line; the text is the same for the same
    document.
    """
    flat = json.dumps(value)
    children = value.values() if isinstance(value, dict) else value
    is_plain = not isinstance(value, (dict, list, tuple))
    is_list = not isinstance(value, dict)
    if (
        is_plain
        or not value
        or len(flat) + indent <= _LINE_LETTERS
        or (is_list and not any(isinstance(one, (dict, list, tuple)) for one in children))
    ):
        return flat
    inner = indent + 2
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {document_text(one, inner)}" for key, one in value.items()]
    else:
        lines = [document_text(one, inner) for one in children]
    opened, closed = "[]" if is_list else "{}"
    separator = f",\n{' ' * inner}"
    return f"{opened}\n{' ' * inner}{separator.join(lines)}\n{' ' * indent}{closed}"


def _stores(result: Reconciliation) -> dict[str, int] | None:
    if result.stores is None:
        return None
    return asdict(result.stores) | {"unexpected": result.stores.unexpected}


def _attribution(attribution: Attribution) -> dict[str, Any]:
    """Rows by owner, our requests one by one, all others added up."""
    ours = [request for request in attribution.requests if request.request_index is not None]
    others = [request for request in attribution.requests if request.request_index is None]
    engine_own = [request for request in others if request.is_engine_own]
    return {
        "measured_rows": _rows(attribution.measured),
        "rows": _rows(attribution.whole_life),
        "measured_stores": _rows(attribution.measured_stores),
        "stores": _rows(attribution.stores),
        "requests": [
            {name: value for name, value in _request(request).items() if name not in _ENGINES}
            for request in ours[:_MOST_KEPT]
        ],
        "requests_total": len(ours),
        "engine_own_requests": _added_up(engine_own),
        "other_requests": _added_up([request for request in others if request not in engine_own]),
    }


def _rows(counts: RowCounts | None) -> dict[str, int] | None:
    return asdict(counts) if counts else None


def _request(request: RequestWrites) -> dict[str, Any]:
    return asdict(request) | {"lacks": list(request.lacks), "complete": not request.lacks}


def _added_up(requests: list[RequestWrites]) -> dict[str, int]:
    return {
        "requests": len(requests),
        "complete": sum(not request.lacks for request in requests),
        "positions": sum(request.positions for request in requests),
        "expected": sum(request.expected for request in requests),
        "entered": sum(request.entered for request in requests),
    }


def _provenance(manifest: dict[str, Any]) -> dict[str, Any]:
    config = manifest.get("config")
    model = manifest.get("model") or (config.get("model") if isinstance(config, dict) else None)
    gpus = [gpu.get("name") for gpu in manifest.get("gpus") or () if isinstance(gpu, dict)]
    return {
        "engine": manifest.get("engine"),
        "model": model,
        "gpus": gpus,
        "versions": manifest.get("versions"),
    }


def _section(section: Section | None) -> dict[str, Any] | None:
    if section is None:
        return None
    return {
        "graph_nodes": _population(section.graph_nodes),
        "plain_launches": _population(section.plain_launches),
    }


def _population(blocks: Population) -> dict[str, int]:
    return asdict(blocks) | {"missing_blocks": blocks.missing_blocks}


def _rank(account: RankAccount) -> dict[str, Any]:
    """Return a rank's account; which process it was, and where, differs from run to run."""
    rank = account.rank
    return {
        "name": rank.name,
        "tensor": rank.tensor,
        "pipeline": rank.pipeline,
        "data": rank.data,
        "number": rank.number,
        "is_present": rank.process_id is not None,
        "verdict": rank_verdict(account).value,
        "launches": account.launches,
        "expected_blocks": account.expected_blocks,
        "matched_blocks": account.matched_blocks,
        "unexpected_blocks": account.unexpected_blocks,
        "stores": account.stores,
        "dropped": account.dropped,
        "steps": dict(account.steps),
    }


def _difference(difference: RankDifference) -> dict[str, Any]:
    """Return where ranks part, without ids that the engine drew."""
    found = {name: value for name, value in asdict(difference).items() if name not in _DRAWN}
    return found | {"rule": difference.rule.value}


def _graphs(result: Reconciliation, shapes: Sequence[GraphShape]) -> list[dict[str, Any]]:
    return [_graph(shape, result.ranks.names) for shape in shapes[:_MOST_KEPT]]


def _graph(shape: GraphShape, rank_names: Mapping[int, str]) -> dict[str, Any]:
    document = {name: value for name, value in asdict(shape).items() if name not in _ADDRESSES}
    document["rank"] = rank_names.get(shape.process_id)
    for name in ("replay_span", "replay_gap"):
        durations = document[name]
        if durations:
            document[name] = {key: round(value, _MS_DIGITS) for key, value in durations.items()}
    return document


def _dumps(result: Reconciliation) -> dict[str, Any]:
    events = [books for books in result.files if books.expected_blocks is not None]
    launches = [books for books in result.files if books.expected_blocks is None]
    return {
        "events_written": sum(books.written for books in events),
        "events_dropped": sum(books.dropped for books in events),
        "launches_written": sum(books.written for books in launches),
        "launches_dropped": sum(books.dropped for books in launches),
        "sequence_gaps": sum(books.sequence_gaps for books in events),
        "books_balance": _all_balance([books.books_balance for books in events]),
    }


def _all_balance(balances: list[bool | None]) -> bool | None:
    """False if any file's books do not balance, None if that cannot be known of one."""
    if False in balances:
        return False
    return None if None in balances or not balances else True


def _kernels(result: Reconciliation) -> list[dict[str, Any]]:
    """Add up the kernels of all contexts by name."""
    blocks: dict[str, int] = {}
    for kernel in result.kernels:
        name = kernel.name or f"kernel slot {kernel.kernel_slot}"
        blocks[name] = blocks.get(name, 0) + kernel.matched_blocks
    return [{"name": name, "matched_blocks": blocks[name]} for name in sorted(blocks)]
