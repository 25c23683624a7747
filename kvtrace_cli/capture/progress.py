"""Say on stderr what a run is doing: a live line on a terminal, else one line a phase."""

from contextlib import suppress

from rich.status import Status

from kvtrace_cli import console
from kvtrace_cli.capture.live import LiveCounters
from kvtrace_cli.capture.ranks import RanksSeen


class Progress:
    """The phases of one run, with the counts of the recording where there are any.

    Args:
        verbose: print details too.
        live: keep a line that changes on a terminal; not while another program prints there.
    """

    def __init__(self, *, verbose: bool = False, live: bool = True) -> None:
        self._verbose = verbose
        self._phase: str | None = None
        is_live = live and console.err.is_terminal
        self._status = Status("", console=console.err) if is_live else None
        if self._status is not None:
            self._status.start()

    def close(self) -> None:
        """Take the live line away."""
        if self._status is not None:
            self._status.stop()

    def phase(self, name: str) -> None:
        """Enter a phase; naming the current one again does nothing."""
        if name == self._phase:
            return
        self._phase = name
        if self._status is None:
            _say(f"kvtrace: {name}")
        else:
            self._status.update(name)

    def counters(self, counters: LiveCounters, said: str | None = None) -> None:
        """Show what was recorded so far, `said` first; only a terminal shows it as it changes."""
        if self._status is not None and self._phase is not None:
            shown = ", ".join([*([said] if said else []), describe_counters(counters)])
            self._status.update(f"{self._phase}: {shown}")

    def note(self, text: str) -> None:
        """Print a line that stays."""
        _say(f"kvtrace: {text}")

    def detail(self, text: str) -> None:
        """Print a line that stays, if the user wants to know more."""
        if self._verbose:
            _say(f"kvtrace: {text}")


def describe_counters(counters: LiveCounters) -> str:
    """Say what was recorded, drops included even if there are none."""
    if counters.activity_files:
        return f"{counters.activities:,} activity records, {counters.dropped:,} dropped"
    kind = "block and store events" if counters.with_stores else "block events"
    return (
        f"{counters.events:,} {kind}, {counters.launches:,} launch records, "
        f"{counters.dropped:,} dropped"
    )


def describe_ranks(ranks: RanksSeen) -> str | None:
    """Say how many ranks record; null for an engine of one."""
    total = ranks.sizes.total
    return f"ranks {ranks.attached}/{total}" if total > 1 else None


def _say(text: str) -> None:
    # A terminal that was closed is no reason to leave an engine behind.
    with suppress(OSError):
        console.err.print(text, markup=False, highlight=False, soft_wrap=True)
