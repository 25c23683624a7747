"""The arms whose cost can be measured: one entry each says how such a server is started."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvtrace_cli.config import Observer, Patch, Record, RecordingConfig
from kvtrace_cli.errors import ConfigError

CLEAN: Final = "clean"
SWITCHED: Final = "switched"
# What the rounds of it with recording off are called.
SWITCHED_OFF: Final = "switched off"


@dataclass(frozen=True)
class Arm:
    """One way to start the server; all that is left out is as in the clean arm.

    Args:
        name: what `--arms` calls it.
        what: what it adds, for people.
        recording: what kvtrace records; null: nothing, and the injector is not loaded.
        prefix: a program, and its arguments, that starts the server's command.
        environment: variables of the server's.
        profiled: whether vLLM's own profiler runs during the rounds.
        lacks: says what it needs and this machine has not, given whether the engine is emulated;
            null if it can be measured.
    """

    name: str
    what: str
    recording: RecordingConfig | None = None
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    profiled: bool = False
    lacks: Callable[[bool], str | None] = lambda _emulated: None

    @property
    def is_switched(self) -> bool:
        """Whether each round is asked twice, with recording off and on."""
        return self.recording is not None and self.recording.switched


def _lacks_cupti(emulated: bool) -> str | None:
    return "the emulated engine has no CUPTI" if emulated else None


def _lacks_profiler(emulated: bool) -> str | None:
    return "the emulated engine has no torch profiler" if emulated else None


def _lacks_memcheck(emulated: bool) -> str | None:
    if emulated:
        return "compute-sanitizer watches a real GPU only"
    if shutil.which("compute-sanitizer") is None:
        return "no compute-sanitizer in PATH; it comes with the CUDA toolkit"
    return None


ARMS: Final = {
    arm.name: arm
    for arm in (
        Arm(CLEAN, "no kvtrace"),
        Arm(
            "callbacks",
            "host callbacks and launch records, nothing patched",
            RecordingConfig(record=Record.NONE, steps=False),
        ),
        Arm(
            "no-op",
            "a patch that returns at once",
            RecordingConfig(patch=Patch.NO_OP, steps=False),
        ),
        Arm("blocks", "block entries, no engine plug-in", RecordingConfig(steps=False)),
        Arm(
            SWITCHED,
            "block entries, switched off and on within one server",
            RecordingConfig(switched=True, steps=False),
        ),
        Arm("steps", "block entries and engine plug-in", RecordingConfig()),
        Arm("writes", "stores too", RecordingConfig(record=Record.WRITES)),
        Arm(
            "cupti",
            "the CUPTI observer: when each kernel ran",
            RecordingConfig(observer=Observer.CUPTI, steps=False),
            lacks=_lacks_cupti,
        ),
        Arm(
            "torch-profiler",
            "vLLM's own torch profiler, without kvtrace",
            profiled=True,
            lacks=_lacks_profiler,
        ),
        Arm(
            "memcheck",
            "NVIDIA's memcheck, without kvtrace, for scale",
            prefix=("compute-sanitizer", "--tool", "memcheck", "--target-processes", "all"),
            lacks=_lacks_memcheck,
        ),
    )
}
DEFAULT_ARMS: Final = (CLEAN, "blocks", "steps", "writes")


def find_arms(names: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms that `--arms` names, in that order.

    Raises:
        ConfigError: one is unknown or there twice, or it is not the clean one and others.
    """
    unknown = [name for name in names if name not in ARMS]
    if unknown:
        raise ConfigError(
            f"--arms: found {', '.join(map(repr, unknown))}, expected some of {', '.join(ARMS)}"
        )
    if len(set(names)) != len(names):
        raise ConfigError(f"--arms: found {','.join(names)}, expected each arm once")
    if CLEAN not in names or len(names) == 1:
        raise ConfigError(
            f"--arms: found {','.join(names)}, expected {CLEAN} and others, "
            "which are compared with it"
        )
    return tuple(ARMS[name] for name in names)
