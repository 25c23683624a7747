"""Keep the manifest of a run true while it runs, and when it fails."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kvtrace_cli.capture.live import LiveCounters, read_counters
from kvtrace_cli.capture.manifest import Manifest, Outcome, RunStatus
from kvtrace_cli.capture.progress import describe_counters, describe_ranks
from kvtrace_cli.capture.ranks import RanksSeen, explain_absent, look_at_ranks
from kvtrace_cli.capture.run_dir import mark_complete, write_manifest
from kvtrace_cli.capture.server_log import EngineAttention
from kvtrace_cli.capture.signals import deferred_termination
from kvtrace_cli.capture.unbound import journalled_unbound_functions
from kvtrace_cli.dumps.run_dir import RunDir
from kvtrace_cli.errors import InconclusiveError, RunFailedError


@dataclass(frozen=True)
class Recorded:
    """A run that ended in order, as its directory has it."""

    run_dir: RunDir
    manifest: Manifest
    counters: LiveCounters
    ranks: RanksSeen


class Ledger:
    """The manifest of one run, and what was recorded up to now."""

    def __init__(self, run_dir: RunDir, manifest: Manifest, *, is_partial: bool = False) -> None:
        """Keep the books of a run; `is_partial`: other ranks are recorded elsewhere."""
        self._is_partial = is_partial
        self.run_dir = run_dir
        self.manifest = manifest
        self._is_traced = manifest.config.recording.enabled

    @property
    def outcome(self) -> Outcome:
        """How far the run came."""
        return self.manifest.outcome

    def begin(self, environment: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
        """Write the manifest; return the variables that the program gets otherwise than `base`."""
        ours = {name: text for name, text in environment.items() if base.get(name) != text}
        self.manifest = replace(self.manifest, environment=ours)
        self.save()
        return ours

    def note(self, **outcome: Any) -> None:
        """Change fields of the outcome; the file has them when it is saved next."""
        self.manifest = replace(self.manifest, outcome=replace(self.outcome, **outcome))

    def note_attention(self, attention: EngineAttention | None) -> None:
        """Take what the engine's log says; the file has it when it is saved next."""
        self.manifest = replace(self.manifest, attention=attention)

    def save(self, **outcome: Any) -> None:
        """Change fields of the outcome, add the counts of the recording, and write the manifest."""
        self.note(**outcome)
        if self._is_traced:
            counted = self.outcome.with_counters(self.counters())
            ranks = self.ranks().processes
            self.manifest = replace(self.manifest, outcome=counted, ranks=ranks)
        write_manifest(self.run_dir, self.manifest)

    @contextmanager
    def end_noted(self) -> Iterator[None]:
        """Do the run in the block, and note how it ended: in order, else why not.

        Raises:
            RunFailedError: of the block, with what was recorded until then.
            InconclusiveError: likewise.
        """
        try:
            yield
        except BaseException as error:
            with deferred_termination():
                self._give_up(error)
            if isinstance(error, (RunFailedError, InconclusiveError)):
                raise type(error)(f"{error}\n{self.what_is_left()}") from error
            raise
        with deferred_termination():
            self._complete()

    def counters(self) -> LiveCounters:
        """Return what is recorded up to now."""
        return read_counters(self.run_dir.raw)

    def ranks(self) -> RanksSeen:
        """Return which ranks record by now."""
        return look_at_ranks(
            self.run_dir,
            self.manifest.parallel,
            host_clock=self.manifest.host_clock,
            is_partial=self._is_partial,
        )

    def describe_ranks(self) -> str | None:
        """Say how many ranks record by now; null if there is one, or nothing is recorded."""
        return describe_ranks(self.ranks()) if self._is_traced else None

    def demand_ranks(self) -> None:
        """Check that every rank records, where that is asked for.

        Raises:
            RunFailedError: one does not.
        """
        absent = explain_absent(self.ranks()) if self._is_traced else None
        if absent is not None:
            raise RunFailedError(absent)

    def what_is_left(self) -> str:
        """Say what was recorded before it failed, and how to read it."""
        path = self.run_dir.path
        if not self._is_traced:
            return f"{path} holds the log and the answers so far"
        counters = self.counters()
        if not counters.attached:
            return f"nothing was recorded; what else is known is in {path}"
        return (
            f"{self._unbound()}recorded until then: {describe_counters(counters)}; "
            f"`kvtrace reconcile {path} --allow-incomplete` reads it"
        )

    def _complete(self) -> None:
        """Say that the run ended in order."""
        self.save(status=RunStatus.COMPLETE)
        mark_complete(self.run_dir)

    def _give_up(self, error: BaseException) -> None:
        """Say that it did not, and why; the directory stays incomplete."""
        interrupted = isinstance(error, KeyboardInterrupt)
        status = RunStatus.INTERRUPTED if interrupted else RunStatus.FAILED
        self.save(status=status, error=str(error) or type(error).__name__)

    def _unbound(self) -> str:
        """Name the functions that were left without callback data, which is what faults."""
        names = journalled_unbound_functions(self.run_dir)
        if not names:
            return ""
        return (
            f"{len(names)} functions of a patched module had no callback data, so they read "
            f"garbage when a graph replays them: {', '.join(names)}\n"
        )
