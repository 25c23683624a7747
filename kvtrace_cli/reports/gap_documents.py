"""What replays and gaps were spent on, as a JSON document."""

from dataclasses import asdict
from typing import Any, Final

from kvtrace_cli import __version__
from kvtrace_cli.analysis.gap_model import Gap, GraphGap, Span

SCHEMA_VERSION: Final = 1


def gap_document(gap: Gap) -> dict[str, Any]:
    """Return what `kvtrace gap --json` prints; times in ms, docs/gap.md has the fields."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kvtrace_version": __version__,
        "verdict": gap.verdict.value,
        "sanitizer_run": gap.runs[0],
        "cupti_run": gap.runs[1],
        "emulated": gap.emulated,
        "reasons": list(gap.reasons),
        "notes": list(gap.notes),
        "graphs": [_graph(graph) for graph in gap.graphs],
    }


def _graph(graph: GraphGap) -> dict[str, Any]:
    return {
        "process": graph.process,
        "nodes": graph.nodes,
        "grids": graph.grids,
        "replays": graph.replays,
        "inside": _span(graph.inside),
        "between": None if graph.between is None else _span(graph.between),
    }


def _span(span: Span) -> dict[str, Any]:
    return {
        "sanitizer": None if span.sanitizer is None else asdict(span.sanitizer),
        "cupti": asdict(span.cupti),
        "long_spans": asdict(span.long_spans),
        "parts": [asdict(part) | {"kind": part.kind.value} for part in span.parts],
    }
