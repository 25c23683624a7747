"""What a cell of the lifetime matrix printed -> what it came to."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvtrace_cli.analysis.lifetime_model import Callback, Cell, CellResult, Received, Status

NO_OUTCOME = "printed no outcome"
_COUNTS = ("as_bound", "null", "of_another", "unknown", "first_unknown")


class Untold(NamedTuple):
    """A process that hung, or of which nothing was learned."""

    status: Status
    why: str = ""


def judge_cell(
    cell: Cell, found: Mapping[str, Any] | None, *, timed_out: bool, said: str
) -> CellResult:
    """Return what a cell came to.

    Args:
        cell: that was run.
        found: what its process printed, null if it printed nothing that can be read.
        timed_out: it was killed after a time-out.
        said: why it may have printed nothing.

    Returns:
        CellResult; a cell that printed something unknown was not run, whatever it did.
    """
    if untold := why_untold(found, timed_out=timed_out, said=said):
        return CellResult(cell, untold.status, error=untold.why)
    found = found or {}
    error = str(found.get("error"))
    expected, counted = _number(found, "expected"), _number(found, "events")
    events = None if cell.callback is Callback.NO_OP else counted
    is_whole = events in (None, expected)
    return CellResult(
        cell,
        Status.FAULT if error else Status.OK if is_whole else Status.LOST,
        error=error,
        replays=_number(found, "replays"),
        expected=expected,
        events=events,
        own_data=_number(found, "own_data") if cell.callback is Callback.FULL_EVENT else None,
        received=_received(found.get("received")),
    )


def why_untold(found: Mapping[str, Any] | None, *, timed_out: bool, said: str) -> Untold | None:
    """Return why nothing is known of what a process did; None if it said so.

    Args:
        found: what the process printed, null if nothing that can be read.
        timed_out: it was killed after a time-out.
        said: why it may have printed nothing.
    """
    if timed_out:
        return Untold(Status.HANG)
    if found is None:
        return Untold(Status.NOT_RUN, said)
    failure = found.get("failure")
    if failure or not isinstance(found.get("error"), str):
        return Untold(Status.NOT_RUN, str(failure or NO_OUTCOME))
    return None


def _received(found: object) -> dict[str, Received]:
    if not isinstance(found, dict):
        return {}
    return {
        str(launch): Received(**{name: _number(counts, name) for name in _COUNTS})
        for launch, counts in found.items()
        if isinstance(counts, dict)
    }


def _number(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name)
    return value if isinstance(value, int) else 0
