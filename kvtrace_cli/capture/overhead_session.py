"""The order of an overhead measurement: check, then start, ask and stop servers, keeping all."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from kvtrace_cli.capture.engine import find_engine
from kvtrace_cli.capture.engine_memory import kv_cache_memory_bytes
from kvtrace_cli.capture.model import resolve_model
from kvtrace_cli.capture.overhead_arm_server import AbleArm, ArmServer, Setting, server_dir
from kvtrace_cli.capture.overhead_arms import CLEAN, Arm, find_arms
from kvtrace_cli.capture.overhead_file import Measurement, Setup, save
from kvtrace_cli.capture.overhead_memory import (
    ModelSize,
    asked_share,
    model_size,
    servers_that_fit,
)
from kvtrace_cli.capture.overhead_plan import OverheadPlan
from kvtrace_cli.capture.preflight import Preflight, run_preflight
from kvtrace_cli.capture.progress import Progress
from kvtrace_cli.capture.signals import deferred_termination, orderly_termination
from kvtrace_cli.capture.tracing import demand_machine
from kvtrace_cli.config import Observer, RecordingConfig, RunConfig
from kvtrace_cli.errors import ConfigError, KvtraceError, RunDirError


@dataclass(frozen=True)
class Measured:
    """What was measured, and where it is kept."""

    measurement: Measurement
    path: Path


def measure_overhead(plan: OverheadPlan, given: RecordingConfig, progress: Progress) -> Measured:
    """Do one measurement from the checks to the last server's end.

    Args:
        plan: what to do.
        given: which injector and libraries the arms that record use.
        progress: where to say how far it is.

    Raises:
        ConfigError: it cannot work here; nothing was started and nothing written.
        RunDirError: the output directory cannot be made.
        RunFailedError: a server or a request failed; what was measured until then is kept.
        InconclusiveError: an arm that should record does not; the same is kept.
        KeyboardInterrupt: interrupted; the servers are gone, and the same is kept.
    """
    with orderly_termination():
        engine = find_engine(plan.engine.engine)
        model = resolve_model(plan.model, plan.weights)
        asked = find_arms(plan.arms)
        progress.phase("checking this machine")
        size = ModelSize() if engine.is_emulated else model_size(model, plan.engine.dtype)
        alone = plan.run_config(size.kv_token, None)

        def look(recording: RecordingConfig) -> Preflight:
            return run_preflight(alone.engine, recording, plan.out, emulated=engine.is_emulated)

        preflight = look(RecordingConfig(enabled=False))
        demand_machine(preflight, progress)
        arms, skipped = _able(asked, given, look, emulated=engine.is_emulated)
        for name, why in skipped.items():
            progress.note(f"arm {name} is left out: {why}")
        if [able.arm.name for able in arms] == [CLEAN]:
            raise ConfigError(
                "--arms: none of them but the clean one can be measured here; see "
                "`kvtrace doctor` for what is missing"
            )
        at_once = plan.side_by_side
        if at_once is None and engine.is_emulated:
            at_once = len(arms)
        if at_once is None:
            at_once = _fitting(preflight, size, alone, progress)
        at_once = min(at_once, len(arms))
        share = None if engine.is_emulated else asked_share(at_once)
        config = plan.run_config(size.kv_token, share)
        setting = Setting(plan, config, engine, model)
        setup = _setup(setting, preflight, at_once)
        session = _Session(setting, setup, arms, _make_out(plan.out), progress)
        return session.run(os.environ, skipped)


def _able(
    asked: Sequence[Arm],
    given: RecordingConfig,
    look: Callable[[RecordingConfig], Preflight],
    *,
    emulated: bool,
) -> tuple[list[AbleArm], dict[str, str]]:
    """Return the arms that can be measured here, and why each of the others cannot.

    Args:
        asked: those that are wanted.
        given: which injector and libraries to use.
        look: checks this machine for a recording.
        emulated: whether the engine is.
    """
    able: list[AbleArm] = []
    skipped: dict[str, str] = {}
    for arm in asked:
        why, found = arm.lacks(emulated), None
        if why is None and arm.recording is not None:
            found = look(_with_libraries(arm.recording, given))
            why = "; ".join(f"{check.name}: {check.found}" for check in found.failed) or None
        if why is None:
            able.append(AbleArm(arm, found))
        else:
            skipped[arm.name] = why
    return able, skipped


def _with_libraries(recording: RecordingConfig, given: RecordingConfig) -> RecordingConfig:
    """Return a recording that uses the given libraries; `--injector` is the Sanitizer's."""
    if recording.observer is Observer.CUPTI:
        return replace(recording, cupti_library=given.cupti_library)
    return replace(recording, injector=given.injector, sanitizer_library=given.sanitizer_library)


def _fitting(preflight: Preflight, size: ModelSize, config: RunConfig, progress: Progress) -> int:
    fitting = servers_that_fit(preflight.gpus, size, kv_cache_memory_bytes(config.engine))
    if fitting is None:
        progress.note(
            "how many servers fit on the card is not known, so they run one after another; "
            "--side-by-side N says it"
        )
        return 1
    return fitting


def _make_out(out: Path | None) -> Path:
    path = out or Path(f"kvtrace-overhead-{datetime.now():%Y%m%d-%H%M%S}")  # noqa: DTZ005  the user's clock
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_empty = not any(path.iterdir())
    except OSError as error:
        raise RunDirError(
            f"{path}: cannot be written ({error.strerror}); choose another --out"
        ) from error
    if not is_empty:
        raise RunDirError(f"{path}: not empty; choose another --out")
    return path


def _setup(setting: Setting, preflight: Preflight, at_once: int) -> Setup:
    plan = setting.plan
    return Setup(
        engine=setting.engine.name,
        emulated=setting.engine.is_emulated,
        model=plan.model,
        weights=plan.weights.value,
        rounds=plan.rounds,
        batches=plan.batches,
        tokens=plan.tokens,
        prefill=plan.prefill,
        side_by_side=at_once,
        gpus=tuple(gpu.name for gpu in preflight.gpus),
        versions=dict(preflight.versions),
        arguments=setting.config.engine.arguments,
    )


class _Session:
    """State of one measurement from the moment its directory exists."""

    def __init__(
        self,
        setting: Setting,
        setup: Setup,
        arms: Sequence[AbleArm],
        out: Path,
        progress: Progress,
    ) -> None:
        self._setting = setting
        self._setup = setup
        self._arms = {able.arm.name: able for able in arms}
        self._out = out
        self._progress = progress

    def run(self, base: Mapping[str, str], skipped: Mapping[str, str]) -> Measured:
        """Do all starts; whatever happens, leave no process and keep what was measured."""
        plan = self._setting.plan
        names = tuple(self._arms)
        self._measured = Measurement(self._setup, names, dict(skipped), plan.seed, plan.starts)
        try:
            for start in range(1, plan.starts + 1):
                groups = plan.groups(names, start, self._setup.side_by_side)
                for number, group in enumerate(groups, 1):
                    self._run_group(group, start, number, base)
        except BaseException as error:
            ended = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            path = self._save(ended=ended, error=str(error) or type(error).__name__)
            kept = self._what_is_kept(path)
            if isinstance(error, KvtraceError):
                raise type(error)(f"{error}\n{kept}") from error
            self._progress.note(f"{ended}; {kept}")
            raise
        path = self._save(ended="complete")
        return Measured(self._measured, path)

    def _run_group(
        self, group: Sequence[str], start: int, number: int, base: Mapping[str, str]
    ) -> None:
        plan = self._setting.plan
        servers = {
            name: ArmServer(
                self._arms[name],
                self._setting,
                server_dir(self._out, start, number, name),
                start=start,
                group=number,
            )
            for name in group
        }
        said = f"start {start} of {plan.starts}"
        try:
            self._progress.phase(f"{said}: starting {', '.join(group)}")
            for server in servers.values():
                server.launch(base)
            self._await_ready(list(servers.values()))
            for server in servers.values():
                server.settle()
            origin = time.monotonic()
            for turn in range(1, plan.rounds + 1):
                self._progress.phase(f"{said}: round {turn} of {plan.rounds}")
                for name in plan.order(group, start, turn):
                    answered = servers[name].ask_round(turn, origin)
                    rounds = (*self._measured.rounds, *answered)
                    self._measured = replace(self._measured, rounds=rounds)
                self._save()
        finally:
            self._stop(list(servers.values()))

    def _await_ready(self, servers: Sequence[ArmServer]) -> None:
        while waiting := [server for server in servers if not server.is_ready]:
            for server in waiting:
                server.look()
            time.sleep(self._setting.plan.limits.poll_s)

    def _stop(self, servers: Sequence[ArmServer]) -> None:
        """End all at once, as each may take a while; a signal waits until they are gone."""
        self._progress.phase("stopping the servers")
        with deferred_termination():
            with ThreadPoolExecutor(len(servers)) as pool:
                troubles = list(pool.map(ArmServer.stop, servers))
            for trouble in filter(None, troubles):
                self._progress.note(trouble)
            facts = tuple(one.facts for one in servers if one.facts is not None)
            self._measured = replace(self._measured, servers=(*self._measured.servers, *facts))

    def _save(self, ended: str = "running", error: str = "") -> Path:
        with deferred_termination():
            self._measured = replace(self._measured, ended=ended, error=error)
            try:
                return save(self._out, self._measured)
            except OSError as failure:
                raise RunDirError(
                    f"{failure.filename or self._out}: cannot be written ({failure.strerror}); "
                    "make room, or choose another --out"
                ) from failure

    def _what_is_kept(self, path: Path) -> str:
        rounds = len(self._measured.rounds)
        if not rounds:
            return f"nothing was measured; {path} and the servers' logs beside it say the rest"
        return (
            f"measured until then: {rounds} rounds of a server; "
            f"`kvtrace overhead --from {self._out}` reads them"
        )
