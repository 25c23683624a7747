"""The order of recording a command of the user's: check, directory, command, what it left."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvtrace_cli.capture.command import TracedCommand
from kvtrace_cli.capture.engine import Engine, find_engine
from kvtrace_cli.capture.ledger import Ledger, Recorded
from kvtrace_cli.capture.manifest import Manifest
from kvtrace_cli.capture.parallel import asked_parallel
from kvtrace_cli.capture.preflight import Preflight, run_command_preflight
from kvtrace_cli.capture.progress import Progress
from kvtrace_cli.capture.run_dir import create_run_dir
from kvtrace_cli.capture.server import describe
from kvtrace_cli.capture.signals import deferred_termination, orderly_termination
from kvtrace_cli.capture.tracing import as_typed, demand_machine, traced_environment
from kvtrace_cli.config import ExecConfig
from kvtrace_cli.dumps.run_dir import RunDir, dump_origin
from kvtrace_cli.errors import InconclusiveError, RunFailedError

_TO_FIRST = (
    "the command's first process; a second one reaches its whole process group, "
    "a third ends it by force"
)
_TO_GROUP = "the command's whole process group; once more ends it by force"


@dataclass(frozen=True)
class ExecResult(Recorded):
    """A command that ended by itself, whatever its exit status, and left no recorder behind."""

    exit_status: int

    @property
    def was_interrupted(self) -> bool:
        """Whether we were sent a signal, which the command got."""
        return bool(self.manifest.outcome.command_signals)


def record_command(config: ExecConfig, progress: Progress) -> ExecResult:
    """Run a command and record what it and its children do, from the checks to the end.

    Args:
        config: which command, and what is recorded.
        progress: where to say how far it is.

    Raises:
        ConfigError: it cannot work here; nothing was started and nothing written.
        RunDirError: the run directory cannot be made.
        RunFailedError: the command was killed, or could not be started; the directory stays
            incomplete.
        InconclusiveError: it ended, but a process of it still records; the directory stays
            incomplete.
        KeyboardInterrupt: interrupted, and it did not end in order; nothing of it is left.
    """
    with orderly_termination():
        engine = find_engine(config.engine_name)
        progress.phase("checking this machine")
        preflight = run_command_preflight(config, emulated=engine.is_emulated)
        demand_machine(preflight, progress)
        run_dir = create_run_dir(config.out, force=config.force)
        return _ExecSession(config, engine, run_dir, preflight, progress).run(os.environ)


class _ExecSession:
    """State of one command from the moment its directory exists."""

    def __init__(
        self,
        config: ExecConfig,
        engine: Engine,
        run_dir: RunDir,
        preflight: Preflight,
        progress: Progress,
    ) -> None:
        self._config = config
        self._engine = engine
        self._run_dir = run_dir
        self._preflight = preflight
        self._progress = progress
        manifest = Manifest.of(
            config, preflight, command=config.command, working_directory=Path.cwd()
        )
        self._parallel = asked_parallel(config.command)
        self._ledger = Ledger(run_dir, manifest, is_partial=self._parallel.is_partial)

    def run(self, base: Mapping[str, str]) -> ExecResult:
        """Run the command, and look after what it leaves."""
        try:
            with self._ledger.end_noted():
                environment = self._environment(base)
                ours = self._ledger.begin(environment, base)
                self._progress.detail(as_typed(ours, self._config.command))
                status = self._execute(environment)
        except KeyboardInterrupt:
            self._progress.note(f"interrupted; {self._ledger.what_is_left()}")
            raise
        return ExecResult(
            self._run_dir,
            self._ledger.manifest,
            self._ledger.counters(),
            self._ledger.ranks(),
            exit_status=status,
        )

    def _environment(self, base: Mapping[str, str]) -> dict[str, str]:
        return traced_environment(
            base,
            self._config.recording,
            self._preflight,
            self._run_dir,
            emulated=self._engine.is_emulated,
            uses_ray=self._parallel.uses_ray,
        )

    def _execute(self, environment: Mapping[str, str]) -> int:
        command = None
        self._progress.phase("the command runs")
        try:
            with deferred_termination():
                command = TracedCommand.start(
                    self._config.command, environment, self._run_dir.path.absolute()
                )
            status = command.wait(self._say_handed_on)
            self._look_after(command, status)
            self._ledger.demand_ranks()
        except (RunFailedError, InconclusiveError):
            raise  # it ended by itself, or never began
        except BaseException:
            if command is not None:
                with deferred_termination():
                    command.end(self._config.limits)
            raise
        finally:
            if command is not None:
                self._ledger.note(
                    command_exit_status=command.exit_status, command_signals=command.signals
                )
        return status

    def _say_handed_on(self, name: str, count: int) -> None:
        self._progress.note(f"{name}: handed on to {_TO_FIRST if count == 1 else _TO_GROUP}")

    def _look_after(self, command: TracedCommand, status: int) -> None:
        """Judge whether it ended in order, and what to do with what it left behind."""
        left = command.left(self._config.limits)
        recorders = sorted(set(left) & self._recorded_pids())
        if left and command.signals:
            self._progress.note(f"ending what the command left behind: {_listed(left)}")
            with deferred_termination():
                command.end(self._config.limits)
        elif left:
            self._progress.note(
                f"processes of the command still run: {_listed(left)}; they are left alone"
            )
        if command.signals and (status < 0 or recorders):
            raise KeyboardInterrupt
        if status < 0:
            raise RunFailedError(f"the command was {describe(status)}")
        if recorders:
            raise InconclusiveError(
                f"the command ended, {describe(status)}, but process {_listed(recorders)} of it "
                "still runs and records; end it before the recording is read"
            )

    def _recorded_pids(self) -> set[int]:
        files = (*self._run_dir.event_files(), *self._run_dir.launch_files())
        return {dump_origin(path)[0] for path in files} | set(self._run_dir.activity_files())


def _listed(pids: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, pids))
