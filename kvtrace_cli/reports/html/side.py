"""Everything a report says of one run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvtrace_cli.analysis.audit_model import Audit
from kvtrace_cli.analysis.model import Attribution, Reconciliation
from kvtrace_cli.analysis.report_model import Pictures


@dataclass(frozen=True)
class Side:
    """One run: its name (the path that was given), what it was, and what was concluded."""

    name: str
    manifest: dict[str, Any]
    requests: Sequence[dict[str, Any]]
    result: Reconciliation
    attribution: Attribution
    audit: Audit
    pictures: Pictures
