"""What recording costs, as a JSON document with a schema_version."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from kvtrace_cli import __version__
from kvtrace_cli.analysis.overhead_model import Overhead

SCHEMA_VERSION: Final = 1


def overhead_document(
    found: Overhead, about: Mapping[str, Any], notes: Sequence[str]
) -> dict[str, Any]:
    """Return what `kvtrace overhead --json` prints.

    Args:
        found: the costs.
        about: what was measured: set-up, arms, starts, servers, how it ended.
        notes: what else is to be known.

    Changes are in percent of the clean arm; a figure's name says the unit of its median. `verdict`
    is null where bars are not judged.
    """
    document = asdict(found)
    for bar in document["bars"]:
        bar["verdict"] = bar["verdict"].value
    return {
        "kind": "kvtrace-overhead-costs",
        "schema_version": SCHEMA_VERSION,
        "kvtrace_version": __version__,
        **about,
        **document,
        "verdict": found.verdict.value if found.bars else None,
        "notes": list(notes),
    }
