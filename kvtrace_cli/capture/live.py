"""Counters of a recording in progress, read from the headers that the injector keeps true."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtrace_cli.config import TimeLimits
from kvtrace_cli.dumps import abi


@dataclass(frozen=True)
class LiveCounters:
    """Sums over all files of a run so far."""

    event_files: int = 0
    events: int = 0
    launches: int = 0
    activity_files: int = 0
    activities: int = 0
    dropped: int = 0
    patched: bool = False
    # Whether events are stores too, so that they are more than the blocks.
    with_stores: bool = False
    first_failure: str | None = None

    @property
    def attached(self) -> bool:
        """Whether a target kernel was patched in a context, or CUPTI saw anything run."""
        return (self.event_files > 0 and self.patched) or self.activity_files > 0


def read_counters(raw_dir: Path) -> LiveCounters:
    """Add up the headers of all recorded files; files that are just being created are left out."""
    headers = _headers(raw_dir)
    events = [one for one in headers if one.magic == abi.constant("KVTRACE_EVENTS_MAGIC")]
    launches = [one for one in headers if one.magic == abi.constant("KVTRACE_LAUNCHES_MAGIC")]
    ran = [one for one in headers if one.magic == abi.constant("KVTRACE_ACTIVITIES_MAGIC")]
    failures = [one.first_failure_site for one in headers if one.first_failure_site]
    return LiveCounters(
        event_files=len(events),
        events=sum(one.record_count for one in events),
        launches=sum(one.record_count for one in launches),
        activity_files=len(ran),
        activities=sum(one.record_count for one in ran),
        dropped=sum(one.dropped_count for one in (*events, *launches, *ran)),
        patched=any(map(_is_patched, headers)),
        with_stores=any(one.flags & abi.constant("KVTRACE_FILE_WRITES") for one in events),
        first_failure=_site_name(failures[0]) if failures else None,
    )


def recorded_processes(raw_dir: Path) -> dict[int, bool]:
    """Return the processes that opened a file to record.

    Each with whether a target kernel was patched in it, or CUPTI saw anything run.
    """
    activities = abi.constant("KVTRACE_ACTIVITIES_MAGIC")
    found: dict[int, bool] = {}
    for one in _headers(raw_dir):
        saw_any = one.magic == activities or _is_patched(one)
        found[one.process_id] = saw_any or found.get(one.process_id, False)
    return found


def wait_quiet(raw_dir: Path, limits: TimeLimits, on_look: Callable[[LiveCounters], None]) -> bool:
    """Wait until the counters stand still for a while; false if they never do."""
    seen, since = read_counters(raw_dir), time.monotonic()
    deadline = since + limits.drain_s
    while time.monotonic() - since < limits.quiet_s:
        if time.monotonic() >= deadline:
            return False
        time.sleep(limits.poll_s)
        now = read_counters(raw_dir)
        if now != seen:
            seen, since = now, time.monotonic()
        on_look(now)
    return True


def _headers(raw_dir: Path) -> list[Any]:
    paths = sorted((*raw_dir.glob("*.kvt"), *raw_dir.glob("*.kva")))
    # A file without its magic is just being created.
    return [header for path in paths if (header := _read_header(path)) and header.magic]


def _is_patched(header: Any) -> bool:
    # With --record none nothing is ever patched; the flag then says that it attached.
    patched = abi.constant("KVTRACE_FILE_PATCHED") | abi.constant("KVTRACE_FILE_NO_PATCH")
    return bool(header.flags & patched)


def _read_header(path: Path) -> Any:
    size = abi.size_of(abi.HEADER_STRUCT)
    try:
        with path.open("rb") as file:
            data = file.read(size)
    except OSError:
        return None
    if len(data) < size:
        return None
    header = abi.ffi().new(f"{abi.HEADER_STRUCT} *")
    abi.ffi().memmove(header, data, size)
    return header


def _site_name(site: int) -> str:
    name = abi.enumerators("kvtrace_failure_site").get(site, str(site))
    return name.removeprefix("KVTRACE_SITE_").lower()
