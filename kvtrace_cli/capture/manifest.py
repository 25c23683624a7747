"""The manifest of a run, typed: a number that is not known is null, never an empty string."""

from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

from kvtrace_cli import __version__
from kvtrace_cli.capture.gpus import Gpu
from kvtrace_cli.capture.live import LiveCounters
from kvtrace_cli.config import RunConfig

SCHEMA_VERSION = 1


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
    dropped: int | None = None
    first_failure: str | None = None
    engine_exit_status: int | None = None
    engine_last_signal: str | None = None

    def with_counters(self, counters: LiveCounters) -> "Outcome":
        """Return the outcome with what was recorded up to now."""
        return replace(
            self,
            injector_attached=counters.attached,
            events=counters.events,
            launches=counters.launches,
            dropped=counters.dropped,
            first_failure=counters.first_failure,
        )


@dataclass(frozen=True)
class Manifest:
    """What was asked, with what, the exact command, and the outcome."""

    config: RunConfig
    command: tuple[str, ...]
    environment: dict[str, str]
    model_source: str
    versions: dict[str, str | None]
    gpus: tuple[Gpu, ...]
    injector_path: Path | None
    injector_build: str | None
    sanitizer_library: Path | None
    outcome: Outcome = field(default_factory=Outcome)
    created: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )

    def to_document(self) -> dict[str, Any]:
        """Return the manifest as what JSON knows."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        head = {
            "schema_version": SCHEMA_VERSION,
            "kvtrace_version": __version__,
            "engine": self.config.engine.engine,
            "traced": self.config.recording.enabled,
        }
        return head | {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if hasattr(value, "__dataclass_fields__"):
        return _plain(asdict(value))
    return value
