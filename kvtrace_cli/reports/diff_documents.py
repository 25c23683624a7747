"""What comparing two runs found, as a JSON document."""

from dataclasses import asdict
from typing import Any, Final

from kvtrace_cli import __version__
from kvtrace_cli.analysis.diff_model import Diff, Difference

SCHEMA_VERSION: Final = 1


def diff_document(diff: Diff) -> dict[str, Any]:
    """Return what `kvtrace diff --json` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kvtrace_version": __version__,
        "verdict": diff.verdict.value,
        "before": diff.before,
        "after": diff.after,
        "emulated": diff.emulated,
        "differences": [_difference(one) for one in diff.differences],
        "times": [asdict(one) for one in diff.times],
        "checks": list(diff.checks),
        "notes": list(diff.notes),
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return asdict(difference) | {"aspect": difference.aspect.value, "text": difference.text}
