"""What an audit found, and the life of a token, as JSON documents."""

from dataclasses import asdict
from typing import Any, Final

from kvtrace_cli import __version__
from kvtrace_cli.analysis.audit_model import Audit, Finding, TokenLife

SCHEMA_VERSION: Final = 1


def audit_document(result: Audit) -> dict[str, Any]:
    """Return what `kvtrace audit --json` prints before the list of findings, which may be long."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kvtrace_version": __version__,
        "verdict": result.verdict.value,
        "reasons": list(result.doubts),
        "notes": list(result.notes),
        "emulated": result.emulated,
        "judged": asdict(result.judged),
        "rules": [asdict(count) | {"rule": count.rule.value} for count in result.rules],
    }


def finding_document(finding: Finding) -> dict[str, Any]:
    """Return one finding; addresses are numbers, and what is not known is null."""
    return asdict(finding) | {"rule": finding.rule.value, "text": finding.text}


def token_document(life: TokenLife) -> dict[str, Any]:
    """Return what `kvtrace show --json` prints; addresses are numbers, unknown values null."""
    head = {"schema_version": SCHEMA_VERSION, "kvtrace_version": __version__}
    return head | asdict(life)
