"""The lifetime matrix as a JSON document with a schema_version."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from kvtrace_cli import __version__
from kvtrace_cli.analysis.lifetime_model import CellResult
from kvtrace_cli.analysis.patch_point_model import PointResult

SCHEMA_VERSION: Final = 1
POINTS_SCHEMA_VERSION: Final = 1


def lifetime_document(results: Sequence[CellResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `kvtrace lifetime --json` prints.

    Args:
        results: of all cells.
        about: what ran them.

    Pointers are hexadecimal text. A count that a cell does not have is null.
    """
    return {
        "kind": "kvtrace-lifetime",
        "schema_version": SCHEMA_VERSION,
        "kvtrace_version": __version__,
        **about,
        "cells": [_cell(result) for result in results],
    }


def patch_points_document(
    results: Sequence[PointResult], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what `kvtrace lifetime --patch-points --json` prints.

    Args:
        results: of all programs.
        about: what ran them.
    """
    return {
        "kind": "kvtrace-patch-points",
        "schema_version": POINTS_SCHEMA_VERSION,
        "kvtrace_version": __version__,
        **about,
        "points": [
            {
                "patched_at": result.point.value,
                "loading": result.loading.value,
                "status": result.status.value,
                "error": result.error or None,
                "expected": result.expected,
                "events": result.events,
                "launched_before_patching": result.before,
            }
            for result in results
        ],
    }


def _cell(result: CellResult) -> dict[str, Any]:
    received = {}
    for launch, counts in result.received.items():
        received[launch] = asdict(counts)
        received[launch]["first_unknown"] = hex(counts.first_unknown) if counts.unknown else None
    cell = result.cell
    return {
        "callback": cell.callback.value,
        "binding": cell.binding.value,
        "neighbours": cell.neighbours.value,
        "graph": cell.graph.value,
        "status": result.status.value,
        "error": result.error or None,
        "replays": result.replays,
        "expected": result.expected,
        "events": result.events,
        "own_data": result.own_data,
        "received": received,
    }
