"""The server of one arm: started, asked for a round, stopped, and what it recorded counted."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvtrace_cli.capture.client import EngineClient, RequestRecord
from kvtrace_cli.capture.engine import Engine
from kvtrace_cli.capture.live import LiveCounters, read_counters
from kvtrace_cli.capture.model import Model
from kvtrace_cli.capture.overhead_arms import SWITCHED_OFF, Arm
from kvtrace_cli.capture.overhead_file import BatchTimes, RoundTimes, ServerFacts
from kvtrace_cli.capture.overhead_memory import used_gpu_mib
from kvtrace_cli.capture.overhead_plan import ALONE_REQUESTS, PREFILLS, OverheadPlan
from kvtrace_cli.capture.preflight import Preflight
from kvtrace_cli.capture.processes import RUN_VARIABLE, ProcessTree
from kvtrace_cli.capture.recording_switch import RecordingSwitch
from kvtrace_cli.capture.sending import Sending
from kvtrace_cli.capture.server import Server, describe, free_port
from kvtrace_cli.capture.signals import deferred_termination
from kvtrace_cli.capture.torch_profiler import TorchProfiler
from kvtrace_cli.capture.tracing import traced_environment
from kvtrace_cli.config import RecordingConfig, RequestSpec, RunConfig
from kvtrace_cli.dumps.run_dir import RunDir
from kvtrace_cli.errors import InconclusiveError, RunFailedError

_NS_PER_S = 1e9
_DIGITS = 4


@dataclass(frozen=True)
class Setting:
    """What the servers of all arms have in common."""

    plan: OverheadPlan
    config: RunConfig
    engine: Engine
    model: Model


@dataclass(frozen=True)
class AbleArm:
    """An arm, and what was found on this machine for its recording; null if it has none."""

    arm: Arm
    preflight: Preflight | None


class ArmServer:
    """A running server of one arm in one start.

    What it records is counted and then removed: only what recording costs is wanted.
    """

    def __init__(
        self, able: AbleArm, setting: Setting, run_dir: RunDir, *, start: int, group: int
    ) -> None:
        self._arm, self._preflight = able.arm, able.preflight
        self._setting = setting
        self._limits = setting.plan.limits
        self._run_dir = run_dir
        self._start, self._group = start, group
        self._port = free_port()
        self._client = EngineClient(self._port, setting.model.served_name, self._limits)
        self._switch = RecordingSwitch(run_dir.raw)
        self._profiler = TorchProfiler(self._client, run_dir.path / "traces")
        self._server: Server | None = None
        self._begin = 0.0
        self._next_index = 0
        self._facts: ServerFacts | None = None

    @property
    def name(self) -> str:
        """The arm's name."""
        return self._arm.name

    @property
    def is_ready(self) -> bool:
        """Whether it has answered."""
        return self._facts is not None

    @property
    def facts(self) -> ServerFacts | None:
        """What is known of it; null until it has answered."""
        return self._facts

    def launch(self, base: Mapping[str, str]) -> None:
        """Start it.

        Raises:
            RunFailedError: its program cannot be started.
        """
        setting = self._setting
        self._run_dir.raw.mkdir(parents=True)
        command = setting.engine.command(setting.config, setting.model, self._port)
        if self._arm.is_switched:
            self._switch.create()
        if self._arm.profiled:
            command += self._profiler.arguments()
        environment = self._environment(base) | dict(self._arm.environment)
        with deferred_termination():
            self._begin = time.monotonic()
            self._server = Server.start(
                [*self._arm.prefix, *command],
                environment,
                run_dir=self._run_dir.path,
                log_path=self._run_dir.server_log,
            )

    def look(self) -> None:
        """See whether it answers by now, and note what it took.

        Raises:
            RunFailedError: it ended, or the time is over.
            InconclusiveError: it answers, but the injector that it should have is not in it.
        """
        server = self._running()
        took_s = time.monotonic() - self._begin
        if not self._client.is_healthy():
            try:
                server.demand_alive("before it was ready")
            except RunFailedError as error:
                raise self._failure(error) from error
            if took_s >= self._limits.ready_s:
                raise self._failure(
                    f"not ready within {took_s:.0f} s; raise --ready-timeout if it was still "
                    f"busy; {server.log.tail()}"
                )
            return
        if self._arm.recording is not None and not self.counters().attached:
            raise InconclusiveError(
                f"start {self._start}, arm {self.name}: the server is ready, but the injector has "
                "not attached to it, so what it costs cannot be measured; see `kvtrace doctor`"
            )
        self._facts = ServerFacts(
            start=self._start,
            group=self._group,
            arm=self.name,
            ready_s=round(time.monotonic() - self._begin, _DIGITS),
            gpu_memory_mib=None,
        )

    def settle(self) -> None:
        """Ask once for each shape, so that no round is the first; then note the memory."""
        plan = self._setting.plan
        for size in plan.batches:
            self._ask(plan.decode("settle", size), size)
        self._ask(plan.prefills("settle", 1), 1)
        if self._facts is not None and not self._setting.engine.is_emulated:
            self._facts = replace(self._facts, gpu_memory_mib=used_gpu_mib(self._pids()))

    def ask_round(self, number: int, origin: float) -> tuple[RoundTimes, ...]:
        """Do one round: of a switched recording twice, in the other order each second time.

        Args:
            number: of the round, from 1.
            origin: time.monotonic() of the start's first round.

        Raises:
            RunFailedError: an answer was wrong, or the server does not do what its arm needs.
        """
        if self._arm.is_switched:
            return tuple(self._ask_switched(number, origin, on=on) for on in _turns(number))
        if not self._arm.profiled:
            return (self._ask_once(number, origin, self.name),)
        self._demand(lambda: self._profiler.begin(self._limits.request_s))
        times = self._ask_once(number, origin, self.name)
        self._demand(lambda: self._profiler.end(self._limits.ready_s))
        return (times,)

    def _ask_switched(self, number: int, origin: float, *, on: bool) -> RoundTimes:
        limits = self._limits
        self._demand(
            lambda: self._switch.set(on=on, patience_s=limits.drain_s, poll_s=limits.poll_s)
        )
        return self._ask_once(number, origin, self.name if on else SWITCHED_OFF)

    def _ask_once(self, number: int, origin: float, name: str) -> RoundTimes:
        """Ask for all figures; `name` is what the times are kept as."""
        plan = self._setting.plan
        seed = f"{self._start} {number}" + (" off" if name == SWITCHED_OFF else "")
        self._ask(plan.decode(f"{seed} warm-up", 1), 1)
        begin = time.monotonic()
        batches = tuple(self._batch(size, f"{seed} {size}") for size in plan.batches)
        prefills = self._ask(plan.prefills(seed, PREFILLS), 1)
        return RoundTimes(
            start=self._start,
            group=self._group,
            round=number,
            arm=name,
            begin_s=round(begin - origin, _DIGITS),
            batches=batches,
            prefill_ttft_ms=tuple(_first_token_ms(record) for record in prefills),
        )

    def stop(self) -> str | None:
        """End it and all it started; return what went wrong with that, if anything did."""
        self._client.close()
        if self._server is None:
            return None
        stopped = self._server.stop(self._limits, ready=self.is_ready)
        counters = self.counters()
        if self._facts is not None:
            status = stopped.exit_status
            recorded = self._arm.recording is not None
            self._facts = replace(
                self._facts,
                events=counters.events + counters.activities if recorded else None,
                launches=counters.launches if recorded else None,
                dropped=counters.dropped if recorded else None,
                engine_ended=None if status is None else describe(status),
                engine_last_signal=stopped.last_signal,
            )
        shutil.rmtree(self._run_dir.raw, ignore_errors=True)
        if stopped.left:
            pids = ", ".join(map(str, stopped.left))
            return f"start {self._start}, arm {self.name}: these processes did not end: {pids}"
        return None

    def counters(self) -> LiveCounters:
        """Return what it has recorded up to now."""
        return read_counters(self._run_dir.raw)

    def _environment(self, base: Mapping[str, str]) -> dict[str, str]:
        setting = self._setting
        # Without a recording nothing of an outer one stays, and nothing of ours is added.
        return traced_environment(
            setting.engine.environment(base, setting.model),
            self._arm.recording or RecordingConfig(enabled=False),
            self._preflight or Preflight(),
            self._run_dir,
            emulated=setting.engine.is_emulated,
        )

    def _batch(self, size: int, seed: str) -> BatchTimes:
        plan = self._setting.plan
        cpu, wall = time.process_time(), time.monotonic()
        records = self._ask(plan.decode(seed, ALONE_REQUESTS if size == 1 else size), size)
        busy = (time.process_time() - cpu) / (time.monotonic() - wall)
        gaps = (gap for record in records for gap in record.token_gaps_ms or ())
        return BatchTimes(
            size=size,
            gaps_ms=tuple(round(gap, _DIGITS) for gap in gaps),
            tokens_per_s=round(_tokens_per_s(records), _DIGITS),
            client_cpu_share=round(busy, _DIGITS),
        )

    def _ask(self, specs: Iterator[RequestSpec], at_once: int) -> list[RequestRecord]:
        requests = list(enumerate(specs, self._next_index))
        self._next_index += len(requests)
        sending = Sending(self._client, requests, at_once, self._limits.poll_s)
        records = list(sending.answers(lambda _index, _spec: None, lambda: None))
        for record in records:
            if record.error is not None:
                server = self._running()
                server.wait_exit(self._limits.kill_s if record.http_status is None else 0)
                raise self._failure(
                    f"request {record.request_index} failed: {record.error}; {server.log.tail()}"
                )
        return records

    def _demand(self, does: Callable[[], None]) -> None:
        """Have something done, and say whose it was if it fails."""
        try:
            does()
        except RunFailedError as error:
            raise self._failure(f"{error}; {self._running().log.tail()}") from error

    def _pids(self) -> set[int]:
        tree = ProcessTree(self._running().pid, f"{RUN_VARIABLE}={self._run_dir.path}")
        return {process.pid for process in tree.look()}

    def _running(self) -> Server:
        if self._server is None:
            raise self._failure("it was not started")
        return self._server

    def _failure(self, reason: object) -> RunFailedError:
        return RunFailedError(f"start {self._start}, arm {self.name}: {reason}")


def server_dir(out: Path, start: int, group: int, arm: str) -> RunDir:
    """Return where one server runs and keeps its log; absolute, and its own."""
    return RunDir(out.absolute() / f"start-{start}-{group}" / arm)


def _turns(number: int) -> tuple[bool, bool]:
    """Return whether recording is on, first and then, so that neither is always first."""
    return (False, True) if number % 2 else (True, False)


def _first_token_ms(record: RequestRecord) -> float:
    times = record.token_host_monotonic_ns or (record.host_monotonic_end_ns,)
    return round((times[0] - record.host_monotonic_begin_ns) / 1e6, _DIGITS)


def _tokens_per_s(records: Sequence[RequestRecord]) -> float:
    begin = min(record.host_monotonic_begin_ns for record in records)
    end = max(record.host_monotonic_end_ns for record in records)
    tokens = sum(len(record.returned_token_ids or ()) for record in records)
    return tokens / (end - begin) * _NS_PER_S
