"""What a program printed that patched its module at one point -> what it came to."""

from collections.abc import Mapping
from typing import Any

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
    if timed_out:
        return PointResult(point, loading, Status.HANG)
    if found is None:
        return PointResult(point, loading, Status.NOT_RUN, error=said)
    numbers = [found.get(name) for name in ("expected", "events", "before")]
    failure, error = found.get("failure"), found.get("error")
    if failure or not isinstance(error, str) or not all(isinstance(one, int) for one in numbers):
        why = str(failure or "printed no outcome")
        return PointResult(point, loading, Status.NOT_RUN, error=why)
    expected, events, before = (int(one or 0) for one in numbers)
    is_whole = events + before == expected and events > 0
    status = Status.FAULT if error else Status.OK if is_whole else Status.LOST
    return PointResult(point, loading, status, error, expected, events, before)
