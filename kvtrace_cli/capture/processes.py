"""Find and end every process an engine started, wherever it went, through /proc."""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvtrace_cli.config import TimeLimits

# Only marks the processes of a run, so that they can be found; nothing reads it as a setting.
RUN_VARIABLE = "KVTRACE_RUN_DIR"
_ZOMBIE = "Z"
_POLL_S = 0.1


@dataclass(frozen=True)
class ProcessId:
    """A process and when it began, so that a number that came back is not taken for it."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class _Stat:
    process: ProcessId
    state: str
    parent: int
    group: int
    session: int


@dataclass
class ProcessTree:
    """The processes of one engine: its session, all descendants, and all that carry its mark.

    Args:
        leader: pid of the engine's first process, the leader of its own session and group.
        mark: `NAME=value` of an environment entry that only this engine's processes have.
    """

    leader: int
    mark: str

    def __post_init__(self) -> None:
        self._known: set[ProcessId] = set()

    def look(self) -> set[ProcessId]:
        """Return those that live now. Look before a parent dies: its orphans lose their trace."""
        stats = _all_stats()
        marked = {pid for pid in stats if self._is_marked(pid)}
        roots = marked | {stat.process.pid for stat in stats.values() if self._is_group(stat)}
        roots |= {known.pid for known in self._known if _is(stats.get(known.pid), known)}
        pids = _with_descendants(roots, stats) - {os.getpid()}
        self._known |= {stats[pid].process for pid in pids if pid in stats}
        living = {stat.process for stat in stats.values() if stat.state != _ZOMBIE}
        return self._known & living

    def _is_group(self, stat: _Stat) -> bool:
        return self.leader in (stat.process.pid, stat.group, stat.session)

    def _is_marked(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return self.mark.encode() in environment.split(b"\0")

    def end(self, number: signal.Signals, within_s: float, poll_s: float) -> bool:
        """Signal all that live and wait; return whether none is left."""
        deadline = time.monotonic() + within_s
        _signal_all(self.look(), number)
        while living := self.look():
            if time.monotonic() >= deadline:
                return False
            if number is signal.SIGKILL:
                _signal_all(living, number)  # what was forked since
            time.sleep(poll_s)
        return True

    def wait_empty(self, within_s: float) -> set[ProcessId]:
        """Give those that end with their parent time to do so; return what lives then."""
        deadline = time.monotonic() + within_s
        while (living := self.look()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return living

    def end_survivors(self, limits: TimeLimits) -> str | None:
        """End all that live: SIGTERM, then SIGKILL; return the last signal that was needed."""
        last = None
        for number, within_s in (
            (signal.SIGTERM, limits.terminate_s),
            (signal.SIGKILL, limits.kill_s),
        ):
            if self.look():
                last = number.name
                self.end(number, within_s, _POLL_S)
        return last


def _signal_all(processes: Iterable[ProcessId], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _with_descendants(roots: set[int], stats: dict[int, _Stat]) -> set[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for pid, stat in stats.items():
        children[stat.parent].append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children[pid]
    return found


def _is(stat: _Stat | None, process: ProcessId) -> bool:
    return stat is not None and stat.process == process


def _all_stats() -> dict[int, _Stat]:
    found = (_stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208
    return {stat.process.pid: stat for stat in found if stat is not None}


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may itself hold spaces and parentheses.
    parts = text.rpartition(")")[2].split()
    state, parent, group, session = parts[0], int(parts[1]), int(parts[2]), int(parts[3])
    return _Stat(ProcessId(pid, int(parts[19])), state, parent, group, session)
