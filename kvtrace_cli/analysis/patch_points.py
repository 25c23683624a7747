"""What a program printed that patched its module at one point -> what it came to."""

from collections.abc import Mapping
from typing import Any

from kvtrace_cli.analysis.lifetime import NO_OUTCOME, why_untold
from kvtrace_cli.analysis.lifetime_model import Status
from kvtrace_cli.analysis.patch_point_model import Loading, PatchPoint, PointResult


def judge_point(
    point: PatchPoint,
    loading: Loading,
    found: Mapping[str, Any] | None,
    *,
    timed_out: bool,
    said: str,
) -> PointResult:
    """Return what a program came to.

    Args:
        point: at which it patched.
        loading: of its functions.
        found: what it printed, null if nothing that can be read.
        timed_out: it was killed after a time-out.
        said: why it may have printed nothing.
    """
    if untold := why_untold(found, timed_out=timed_out, said=said):
        return PointResult(point, loading, untold.status, error=untold.why)
    found = found or {}
    error = str(found.get("error"))
    numbers = [found.get(name) for name in ("expected", "events", "before")]
    if not all(isinstance(one, int) for one in numbers):
        return PointResult(point, loading, Status.NOT_RUN, error=NO_OUTCOME)
    expected, events, before = (int(one or 0) for one in numbers)
    is_whole = events + before == expected and events > 0
    status = Status.FAULT if error else Status.OK if is_whole else Status.LOST
    return PointResult(point, loading, status, error, expected, events, before)
