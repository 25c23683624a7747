"""The manifest of a run, typed: a number that is not known is null, never an empty string."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

from kvtrace_cli import __version__
from kvtrace_cli.capture.gpus import Gpu
from kvtrace_cli.capture.live import LiveCounters
from kvtrace_cli.capture.parallel import ParallelSizes
from kvtrace_cli.capture.preflight import Preflight
from kvtrace_cli.capture.ranks import RankProcess
from kvtrace_cli.capture.server_log import EngineAttention
from kvtrace_cli.config import ExecConfig, RunConfig
from kvtrace_cli.engine_site.kvtrace_engine_plugin.host_facts import host_clock, host_name

SCHEMA_VERSION = 1
_RUN_ID_BYTES = 8


class RunStatus(str, Enum):
    """How far a run came."""

    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Outcome:
    """How a run ended. Counts are those of the files' headers at its end."""

    status: RunStatus = RunStatus.RUNNING
    error: str | None = None
    ready_s: float | None = None
    requests_answered: int = 0
    injector_attached: bool | None = None
    events: int | None = None
    launches: int | None = None
    # Of the CUPTI observer.
    activities: int | None = None
    dropped: int | None = None
    first_failure: str | None = None
    engine_exit_status: int | None = None
    engine_last_signal: str | None = None
    # Of the user's command under `kvtrace exec`; negative for a signal.
    command_exit_status: int | None = None
    # Signals that kvtrace was sent and handed on to it, in their order.
    command_signals: tuple[str, ...] = ()

    def with_counters(self, counters: LiveCounters) -> "Outcome":
        """Return the outcome with what was recorded up to now."""
        return replace(
            self,
            injector_attached=counters.attached,
            events=counters.events,
            launches=counters.launches,
            activities=counters.activities,
            dropped=counters.dropped,
            first_failure=counters.first_failure,
        )


@dataclass(frozen=True)
class Manifest:
    """What was asked, with what, the exact command, and the outcome."""

    config: RunConfig | ExecConfig
    command: tuple[str, ...]
    working_directory: Path
    environment: dict[str, str]
    # Null for a command of the user's.
    model_source: str | None
    versions: dict[str, str | None]
    gpus: tuple[Gpu, ...]
    injector_path: Path | None
    injector_build: str | None
    sanitizer_library: Path | None
    cupti_library: Path | None
    # Null for a command of the user's: it may start any engine.
    parallel: ParallelSizes | None = None
    ranks: tuple[RankProcess, ...] = ()
    # Null if the engine's log does not say it, and of a command of the user's, which has none.
    attention: EngineAttention | None = None
    run_id: str = field(default_factory=lambda: secrets.token_hex(_RUN_ID_BYTES))
    host: str = field(default_factory=host_name)
    host_clock: str = field(default_factory=host_clock)
    outcome: Outcome = field(default_factory=Outcome)
    created: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )

    @classmethod
    def of(
        cls,
        config: RunConfig | ExecConfig,
        preflight: Preflight,
        *,
        command: Sequence[str],
        working_directory: Path,
        model_source: str | None = None,
        parallel: ParallelSizes | None = None,
    ) -> "Manifest":
        """Return the manifest of a run that has not begun yet."""
        injector = preflight.injector
        manifest = cls(
            config=config,
            command=tuple(command),
            working_directory=working_directory,
            environment={},
            model_source=model_source,
            versions=preflight.versions | {"cuda_driver": preflight.cuda_driver},
            gpus=tuple(preflight.gpus),
            injector_path=injector.path if injector else None,
            injector_build=injector.build if injector else None,
            sanitizer_library=preflight.sanitizer_library,
            cupti_library=preflight.cupti_library,
            parallel=parallel,
        )
        return manifest if config.run_id is None else replace(manifest, run_id=config.run_id)

    def to_document(self) -> dict[str, Any]:
        """Return the manifest as what JSON knows."""
        head = {
            "schema_version": SCHEMA_VERSION,
            "kvtrace_version": __version__,
            "subcommand": self.config.subcommand,
            "engine": self.config.engine_name,
            "traced": self.config.recording.enabled,
            "observer": self.config.recording.observer.value,
        }
        return head | {one.name: _plain(getattr(self, one.name)) for one in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if is_dataclass(value):
        shown = (one for one in fields(value) if one.metadata.get("in_manifest", True))
        return {one.name: _plain(getattr(value, one.name)) for one in shown}
    return value
