"""What a run was asked to do, as frozen dataclasses. Defaults live here and nowhere else."""

import re
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Final

from kvtrace_cli.errors import ConfigError

GIB = 1024**3
MAX_RING_EVENTS = 2**26
MIN_TABLE_ENTRIES = 16
MAX_MODEL_LEN_STEP = 1024
# Token ids that every vocabulary has, none of them a special token.
SAFE_TOKEN_IDS: Final = range(10, 210)
_RUN_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Metadata of a field that the manifest leaves out, because another file of the run has it.
NOT_IN_MANIFEST: Final[dict[str, Any]] = {"in_manifest": False}


class Weights(str, Enum):
    """Where the model's weights come from."""

    AUTO = "auto"
    DUMMY = "dummy"


class Bind(str, Enum):
    """Which functions of a patched module get callback data."""

    EVERY_FUNCTION = "every-function"
    # A function without it faults when a graph replays it: kept only to show that.
    TARGET_ONLY = "target-only"


class PatchAt(str, Enum):
    """When a module with a target kernel is patched."""

    MODULE_LOAD = "module-load"
    # When the first plain launch of a target has been submitted: that launch has no events.
    FIRST_LAUNCH_END = "first-launch-end"


class Patch(str, Enum):
    """What the device callback does."""

    RECORD = "record"
    # Returns at once. For measuring what being called costs.
    NO_OP = "no-op"


class Record(str, Enum):
    """Which events are recorded; each adds to the one before."""

    # Launch records only: nothing is patched. For measuring what the host callbacks cost.
    NONE = "none"
    BLOCKS = "blocks"
    # Stores to global memory by thread (0,0,0) of each block of a target kernel.
    WRITES = "writes"
    # Those of every thread.
    ALL_WRITES = "all-writes"


class Observer(str, Enum):
    """Who watches the GPU. One process holds one of them."""

    # Host callbacks and patched kernels: every block that enters.
    SANITIZER = "sanitizer"
    # CUPTI's activity records: when every kernel, copy and memset began and ended.
    CUPTI = "cupti"


class Role(str, Enum):
    """What a request is for: `requests.jsonl` says it for each."""

    WARMUP = "warmup"
    MEASURED = "measured"


@dataclass(frozen=True)
class RequestSpec:
    """One completion to ask for. Prompts are token ids, so no tokenizer has a say."""

    role: Role
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    stream: bool = False
    # Not before this long after the first measured request could be sent.
    start_after_s: float = 0.0

    @property
    def total_tokens(self) -> int:
        """Tokens of context that it needs."""
        return len(self.prompt_token_ids) + self.max_tokens


@dataclass(frozen=True)
class RequestPlan:
    """Which requests are sent, and how many at once; one warm-up comes first, alone.

    Those of a request file, `listed`, take the place of `repeat` equal ones.
    """

    prompt_tokens: int = 8
    max_tokens: int = 8
    warmup_max_tokens: int = 1
    repeat: int = 1
    stream: bool = False
    concurrency: int = 1
    file: Path | None = None
    listed: tuple[RequestSpec, ...] = field(default=(), metadata=NOT_IN_MANIFEST)

    def __post_init__(self) -> None:
        # A 1-token prompt may be scheduled as a decode: one replay too many.
        _at_least("--prompt-tokens", self.prompt_tokens, 2)
        _at_least("--max-tokens", self.max_tokens, 1)
        _at_least("--repeat", self.repeat, 1)
        _at_least("--concurrency", self.concurrency, 1)

    def specs(self) -> tuple[RequestSpec, ...]:
        """Return the warm-up and the measured requests, in the order they are sent."""
        prompt = tuple(
            SAFE_TOKEN_IDS[index % len(SAFE_TOKEN_IDS)] for index in range(self.prompt_tokens)
        )
        warmup = RequestSpec(Role.WARMUP, prompt, self.warmup_max_tokens)
        if self.listed:
            return (warmup, *self.listed)
        measured = RequestSpec(Role.MEASURED, prompt, self.max_tokens, self.stream)
        return (warmup, *(measured for _ in range(self.repeat)))


@dataclass(frozen=True)
class EngineConfig:
    """How the engine is started. The set-up is the one whose counts are known by hand."""

    engine: str = "vllm"
    python: Path = Path(sys.executable)
    port: int | None = None
    dtype: str = "bfloat16"
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    kv_cache_memory_bytes: int = 8 * GIB
    prefix_caching: bool = False
    attention_backend: str = "FLASH_ATTN"
    flash_attention: int | None = None
    cudagraph_mode: str = "FULL_AND_PIECEWISE"
    capture_sizes: tuple[int, ...] = (1, 2, 4, 8)
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _at_least("--max-num-seqs", self.max_num_seqs, 1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens: found {self.max_num_batched_tokens}, expected "
                f"{self.max_num_seqs} or more, the sequences of --max-num-seqs; raise it"
            )
        if self.flash_attention not in (None, 2, 3):
            raise ConfigError(
                f"--flash-attention: found {self.flash_attention}, expected 2 or 3; "
                "leave it out for the engine's own choice"
            )
        if not self.capture_sizes or min(self.capture_sizes) < 1:
            raise ConfigError(
                f"--capture-sizes: found {','.join(map(str, self.capture_sizes)) or 'nothing'}, "
                "expected positive numbers such as 1,2,4,8"
            )
        if self.port is not None and not 1 <= self.port <= 65535:  # noqa: PLR2004  the port range
            raise ConfigError(f"--port: found {self.port}, expected 1 to 65535")
        if self.arguments and not self.arguments[0].startswith("-"):
            raise ConfigError(
                f"unexpected argument {self.arguments[0]!r}; "
                "arguments for the engine come after `--` and start with a dash"
            )


@dataclass(frozen=True)
class RecordingConfig:
    """What the injector records, and how it gets into the engine."""

    enabled: bool = True
    observer: Observer = Observer.SANITIZER
    record: Record = Record.BLOCKS
    # The engine plug-in: which step ran which rows of which request, and where the KV tensors are.
    steps: bool = True
    kernels: tuple[str, ...] = ("reshape_and_cache_flash_kernel",)
    ring_events: int = 1_048_576
    launch_records: int = 65_536
    one_shot: bool = False
    stamps: bool = True
    bind: Bind = Bind.EVERY_FUNCTION
    patch_at: PatchAt = PatchAt.MODULE_LOAD
    patch: Patch = Patch.RECORD
    # Whether it can be switched off and on while the engine runs; see capture/recording_switch.py.
    switched: bool = False
    drain_interval_us: int = 1000
    injector: Path | None = None
    sanitizer_library: Path | None = None
    cupti_library: Path | None = None
    # What CUPTI fills before it is written: 64 MiB hold some 300,000 records.
    activity_buffers: int = 64
    activity_buffer_bytes: int = 1 << 20
    activity_flush_ms: int = 500
    # By default the injection variable alone: only a process that initialises CUDA acts on it,
    # while LD_PRELOAD reaches some 70 processes of one `vllm serve`.
    injection: bool = True
    preload: bool = False

    def __post_init__(self) -> None:
        _power_of_two("--ring-events", self.ring_events)
        _power_of_two("--launch-records", self.launch_records)
        if not self.kernels or not all(self.kernels):
            raise ConfigError("--kernel: found an empty name, expected a kernel's base name")
        if self.enabled and not (self.injection or self.preload):
            raise ConfigError(
                "--no-injection: nothing is left that would load the injector; "
                "add --preload, or --no-trace to run without recording"
            )
        if self.switched and not self.stamps:
            raise ConfigError(
                "switched: found no stamps with it, expected them: they bind each replay anew"
            )
        if self.patch is Patch.NO_OP and self.record is not Record.BLOCKS:
            raise ConfigError(
                f"--patch no-op: found --record {self.record.value} with it, expected blocks: "
                "a callback that returns at once records nothing; leave one of the two out"
            )
        if self.record is Record.NONE and self.patch_at is not PatchAt.MODULE_LOAD:
            raise ConfigError(
                f"--patch-at {self.patch_at.value}: --record none patches nothing at all; "
                "leave one of the two out"
            )
        if self.observer is Observer.CUPTI:
            self._check_cupti()

    def _check_cupti(self) -> None:
        """Refuse what only the Sanitizer's observer can do."""
        asked = (self.record, self.bind, self.patch_at, self.patch)
        if asked != (
            Record.BLOCKS,
            Bind.EVERY_FUNCTION,
            PatchAt.MODULE_LOAD,
            Patch.RECORD,
        ):
            raise ConfigError(
                "--observer cupti: records when kernels ran, and patches none; expected none of "
                "--record, --bind, --patch-at and --patch with it, leave them out"
            )
        if self.preload or not self.injection:
            raise ConfigError(
                "--observer cupti: is loaded by CUDA_INJECTION64_PATH only; leave --preload and "
                "--no-injection out"
            )


@dataclass(frozen=True)
class TimeLimits:
    """How long to wait for what, seconds."""

    ready_s: float = 900.0
    request_s: float = 300.0
    health_s: float = 5.0
    quiet_s: float = 0.5
    drain_s: float = 10.0
    # Passed to the engine; 0 there means that it kills its own tree at once.
    shutdown_s: int = 30
    shutdown_margin_s: float = 15.0
    # An interrupted start took 8 to 14 s to end.
    startup_stop_s: float = 20.0
    settle_s: float = 2.0
    # An engine whose parent is gone took 4.5 to 10 s to end by SIGTERM.
    terminate_s: float = 12.0
    kill_s: float = 5.0
    poll_s: float = 0.1

    def __post_init__(self) -> None:
        _positive("--ready-timeout", self.ready_s)
        _positive("--request-timeout", self.request_s)


def check_run_id(run_id: str | None) -> None:
    """Refuse a name of a run that does not fit into one word.

    Raises:
        ConfigError: it is empty, too long, or has other signs.
    """
    if run_id is not None and not _RUN_ID.fullmatch(run_id):
        raise ConfigError(
            f"--run-id: found {run_id[:80]!r}, expected 1 to 64 letters, digits, dots, dashes or "
            "underscores, the same on every node of the run"
        )


@dataclass(frozen=True)
class RunConfig:
    """One run: which model, which engine, which requests, what is recorded."""

    model: str
    weights: Weights = Weights.AUTO
    out: Path | None = None
    force: bool = False
    requests: RequestPlan = field(default_factory=RequestPlan)
    engine: EngineConfig = field(default_factory=EngineConfig)
    recording: RecordingConfig = field(default_factory=RecordingConfig)
    limits: TimeLimits = field(default_factory=TimeLimits)
    # Workers are recorded where they run, by `kvtrace exec`: none of them is missed here.
    ranks_elsewhere: bool = False
    # What all parts of a run on several nodes have in common; null: one is drawn.
    run_id: str | None = field(default=None, metadata=NOT_IN_MANIFEST)

    subcommand: ClassVar[str] = "run"

    def __post_init__(self) -> None:
        check_run_id(self.run_id)
        _observable(self.recording, self.engine_name)

    @property
    def engine_name(self) -> str:
        """The engine that is traced."""
        return self.engine.engine

    @property
    def max_model_len(self) -> int:
        """Tokens of context to ask for: the least multiple of 1024 that holds every request."""
        tokens = max(spec.total_tokens for spec in self.requests.specs())
        return -(-tokens // MAX_MODEL_LEN_STEP) * MAX_MODEL_LEN_STEP


@dataclass(frozen=True)
class ExecConfig:
    """One command of the user's: what is recorded of it, whatever it starts."""

    command: tuple[str, ...]
    engine_name: str = EngineConfig.engine
    # Only asked for its versions; null: the one that runs the command, if that can be told.
    python: Path | None = None
    out: Path | None = None
    force: bool = False
    recording: RecordingConfig = field(default_factory=RecordingConfig)
    limits: TimeLimits = field(default_factory=TimeLimits)
    run_id: str | None = field(default=None, metadata=NOT_IN_MANIFEST)

    subcommand: ClassVar[str] = "exec"

    def __post_init__(self) -> None:
        check_run_id(self.run_id)
        _observable(self.recording, self.engine_name)


def default_max_num_seqs(concurrency: int) -> int:
    """Return how many sequences the engine must run at once so that none has to wait."""
    return max(EngineConfig.max_num_seqs, concurrency)


def _observable(recording: RecordingConfig, engine_name: str) -> None:
    if recording.observer is Observer.CUPTI and engine_name == "emulator":
        raise ConfigError(
            "--observer cupti: the emulated engine has no CUPTI; run a real one, or leave one of "
            "--observer and --engine out"
        )


def _at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{option}: found {value}, expected {least} or more")


def _positive(option: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{option}: found {value:g}, expected seconds, more than 0")


def _power_of_two(option: str, value: int) -> None:
    if MIN_TABLE_ENTRIES <= value <= MAX_RING_EVENTS and value & (value - 1) == 0:
        return
    below = 1 << max(value, MIN_TABLE_ENTRIES).bit_length() - 1
    nearest = min(below, MAX_RING_EVENTS)
    raise ConfigError(
        f"{option}: found {value}, expected a power of two from {MIN_TABLE_ENTRIES} to "
        f"{MAX_RING_EVENTS}; {nearest} is one"
    )
