"""A summary.json, or a baseline, which is the same -> one side of a comparison."""

from pathlib import Path
from typing import Any, Final, TypeVar

from kvtrace_cli.dumps.json_lines import parsed, text_of
from kvtrace_cli.dumps.typed import KindError, from_document
from kvtrace_cli.errors import DumpFormatError

# What a summary calls itself from version 2 on, so that no other document is taken for one.
SUMMARY_KIND: Final = "kvtrace-summary"
SCHEMA_VERSION: Final = 3
_OLD_VERSION: Final = 1
# What version 1 can be told by.
_ALWAYS: Final = ("verdict", "whole_life", "measured_graphs")
_SINCE_2: Final = ("settings", "structure", "times")

_T = TypeVar("_T")


def read_document(path: Path) -> dict[str, Any]:
    """Read a summary of any version, as JSON has it.

    Raises:
        RunDirError: the file cannot be read, or is no JSON.
        DumpFormatError: it is no summary, or of a version that this kvtrace does not know.
    """
    document = parsed(path, text_of(path))
    _check_version(path, document)
    checked: dict[str, Any] = document
    return checked


def summary_of(path: Path, document: dict[str, Any], kind: type[_T]) -> _T:
    """Return a summary's document as a dataclass.

    Args:
        path: names it in errors.
        document: from `read_document`.
        kind: the dataclass to make of it.

    Raises:
        DumpFormatError: something is missing or of another kind.
    """
    is_old = document["schema_version"] == _OLD_VERSION
    missing = [] if is_old else [one for one in _SINCE_2 if document.get(one) is None]
    if missing:
        raise damaged(path, f"the summary has no {missing[0]}")
    try:
        return from_document(kind, document, "the summary")
    except KindError as error:
        raise damaged(path, str(error)) from error


def are_comparable(one: int, other: int) -> bool:
    """Say whether summaries of two versions can be held against each other in full.

    Later versions add fields to version 2, and what a side lacks is not compared.
    """
    return _OLD_VERSION not in {one, other} or one == other


def damaged(path: Path, fault: str) -> DumpFormatError:
    """Return the error for a summary that cannot be what it claims to be."""
    return DumpFormatError(
        f"{path}: {fault}; the file is damaged, copy it again, or make it anew with "
        "`kvtrace reconcile` or `kvtrace baseline save`"
    )


def _check_version(path: Path, document: Any) -> None:
    expected = (
        "expected a summary: a run directory, its summary.json, or what `kvtrace baseline save` "
        "wrote"
    )
    if not isinstance(document, dict):
        raise DumpFormatError(f"{path}: a JSON {type(document).__name__}, {expected}")
    version = document.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise DumpFormatError(f"{path}: no schema_version, {expected}")
    if document.get("kind", SUMMARY_KIND) != SUMMARY_KIND or (
        "kind" not in document and any(name not in document for name in _ALWAYS)
    ):
        found = document.get("kind") or "another kind of document"
        raise DumpFormatError(f"{path}: {found}, {expected}")
    if not _OLD_VERSION <= version <= SCHEMA_VERSION:
        raise DumpFormatError(
            f"{path}: a summary of schema version {version}, this kvtrace reads {_OLD_VERSION} to "
            f"{SCHEMA_VERSION}; install the kvtrace that wrote it, or save it again with this one"
        )
