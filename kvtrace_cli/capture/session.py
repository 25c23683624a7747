"""The order of one run: check, directory, engine, requests, drain, stop, collect."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from kvtrace_cli.capture.client import EngineClient, RequestRecord
from kvtrace_cli.capture.engine import Engine, find_engine
from kvtrace_cli.capture.ledger import Ledger, Recorded
from kvtrace_cli.capture.live import wait_quiet
from kvtrace_cli.capture.manifest import Manifest
from kvtrace_cli.capture.model import Model, resolve_model
from kvtrace_cli.capture.parallel import asked_parallel
from kvtrace_cli.capture.preflight import Preflight, run_preflight
from kvtrace_cli.capture.progress import Progress
from kvtrace_cli.capture.run_dir import append_request, create_run_dir
from kvtrace_cli.capture.sending import Sending
from kvtrace_cli.capture.server import Server, describe, free_port
from kvtrace_cli.capture.signals import deferred_termination, orderly_termination
from kvtrace_cli.capture.tracing import as_typed, demand_machine, traced_environment
from kvtrace_cli.config import RequestSpec, Role, RunConfig, Weights
from kvtrace_cli.dumps.run_dir import RunDir
from kvtrace_cli.errors import RunFailedError


@dataclass(frozen=True)
class RunResult(Recorded):
    """A run that ended in order, with its answers in the order of the requests."""

    requests: tuple[RequestRecord, ...]


def record_run(config: RunConfig, progress: Progress) -> RunResult:
    """Do one run from the checks to the complete directory.

    Args:
        config: what to do.
        progress: where to say how far it is.

    Raises:
        ConfigError: it cannot work here; nothing was started and nothing written.
        RunDirError: the run directory cannot be made.
        RunFailedError: the engine or a request failed; the directory stays incomplete.
        KeyboardInterrupt: interrupted; the engine is gone and the directory stays incomplete.
    """
    with orderly_termination():
        engine = find_engine(config.engine.engine)
        # An emulated engine has no weights, so a config.json is all that it can want.
        weights = Weights.DUMMY if engine.is_emulated else config.weights
        model = resolve_model(config.model, weights)
        progress.phase("checking this machine")
        preflight = run_preflight(
            config.engine, config.recording, config.out, emulated=engine.is_emulated
        )
        demand_machine(preflight, progress)
        run_dir = create_run_dir(config.out, force=config.force)
        session = _Session(config, engine, model, run_dir, preflight=preflight, progress=progress)
        return session.run(os.environ)


def _why(failed: Sequence[RequestRecord], unsent: int, server: Server) -> str:
    """Say which requests failed, why the first of them did, and how the engine is since."""
    first, *others = failed
    tokens = len(first.returned_token_ids or ())
    reason = f"{first.role} request {first.request_index} failed: {first.error} ({tokens} tokens)"
    if others:
        indexes = ", ".join(str(record.request_index) for record in others)
        reason += f"; also failed: {indexes}"
    if unsent:
        reason += f"; {unsent} more were not sent"
    status = server.exit_status
    ended = "" if status is None else f"; the engine ended, {describe(status)}"
    return f"{reason}{ended}; {server.log.tail()}"


class _Session:
    """State of one run from the moment its directory exists."""

    def __init__(
        self,
        config: RunConfig,
        engine: Engine,
        model: Model,
        run_dir: RunDir,
        *,
        preflight: Preflight,
        progress: Progress,
    ) -> None:
        self._config = config
        self._engine = engine
        self._model = model
        self._preflight = preflight
        self._run_dir = run_dir
        self._progress = progress
        self._records: list[RequestRecord] = []
        self._port = config.engine.port or free_port()
        self._command = engine.command(config, model, self._port)
        self._parallel = asked_parallel(config.engine.arguments)
        is_partial = self._parallel.is_partial or config.ranks_elsewhere
        self._ledger = Ledger(run_dir, self._describe(), is_partial=is_partial)

    def run(self, base: Mapping[str, str]) -> RunResult:
        """Run the engine and the requests, whatever happens leaving no process behind."""
        with self._ledger.end_noted():
            environment = self._environment(base)
            ours = self._ledger.begin(environment, base)
            self._progress.detail(as_typed(ours, self._command))
            self._serve(environment)
        records = sorted(self._records, key=lambda record: record.request_index)
        counters = self._ledger.counters()
        return RunResult(
            self._run_dir, self._ledger.manifest, counters, self._ledger.ranks(), tuple(records)
        )

    def _environment(self, base: Mapping[str, str]) -> dict[str, str]:
        return traced_environment(
            self._engine.environment(base, self._model),
            self._config.recording,
            self._preflight,
            self._run_dir,
            emulated=self._engine.is_emulated,
            # Else what their nodes say stands.
            uses_ray=self._parallel.uses_ray and not self._config.ranks_elsewhere,
        )

    def _describe(self) -> Manifest:
        return Manifest.of(
            self._config,
            self._preflight,
            command=self._command,
            working_directory=self._run_dir.path.absolute(),
            model_source=self._model.source,
            parallel=self._parallel.sizes,
        )

    def _serve(self, environment: Mapping[str, str]) -> None:
        limits = self._config.limits
        self._progress.phase("starting the engine")
        server = None
        name = self._model.served_name
        with closing(EngineClient(self._port, name, limits)) as client:
            try:
                with deferred_termination():
                    server = Server.start(
                        self._command,
                        environment,
                        run_dir=self._run_dir.path.absolute(),
                        log_path=self._run_dir.server_log,
                    )
                self._await_ready(server, client)
                self._ask_all(server, client)
                self._settle()
                self._check_lived(server, client)
                self._ledger.demand_ranks()
            finally:
                if server is not None:
                    self._stop(server)

    def _await_ready(self, server: Server, client: EngineClient) -> None:
        begin = time.monotonic()

        def show() -> None:
            if server.log.phase is not None:
                self._progress.phase(server.log.phase)
            self._progress.counters(self._ledger.counters(), self._ledger.describe_ranks())

        server.wait_ready(client.is_healthy, self._config.limits, show)
        self._ledger.note(ready_s=round(time.monotonic() - begin, 3))
        self._progress.phase("ready")
        if self._config.recording.enabled and not self._ledger.counters().attached:
            self._progress.note("the engine is ready, but the injector has not attached to it")
        self._ledger.demand_ranks()
        if ranks := self._ledger.describe_ranks():
            self._progress.note(f"{ranks} record")

    def _ask_all(self, server: Server, client: EngineClient) -> None:
        """Send the warm-up alone, then the measured requests."""
        warmup, *measured = enumerate(self._config.requests.specs())
        concurrency = self._config.requests.concurrency
        self._ask(server, Sending(client, [warmup], 1, self._config.limits.poll_s))
        if concurrency > 1:
            together = min(concurrency, len(measured))
            self._progress.phase(f"{len(measured)} measured requests, up to {together} at once")
        self._ask(server, Sending(client, measured, concurrency, self._config.limits.poll_s))

    def _ask(self, server: Server, sending: Sending) -> None:
        failed = []
        for record in sending.answers(self._say_sent, self._show_answers):
            append_request(self._run_dir, record.to_json())
            self._records.append(record)
            if record.error is not None:
                failed.append(record)
                continue
            self._ledger.note(requests_answered=self._ledger.outcome.requests_answered + 1)
        if failed:
            server.wait_exit(self._config.limits.kill_s if failed[0].http_status is None else 0)
            raise RunFailedError(_why(failed, sending.unsent, server))

    def _say_sent(self, index: int, spec: RequestSpec) -> None:
        name = f"{spec.role.value} request {index}"
        if self._config.requests.concurrency == 1 or spec.role is Role.WARMUP:
            self._progress.phase(name)
        else:
            self._progress.detail(f"{name} sent")

    def _show_answers(self) -> None:
        self._progress.counters(self._ledger.counters(), f"{len(self._records)} answered")

    def _settle(self) -> None:
        """Wait until the drain has nothing more to move: the counters stand still."""
        if not self._config.recording.enabled:
            return
        self._progress.phase("draining")
        limits = self._config.limits
        if not wait_quiet(self._run_dir.raw, limits, self._progress.counters):
            self._progress.note(
                f"the counters still move {limits.drain_s:g} s after the last answer; "
                "something else may be using the engine"
            )

    def _check_lived(self, server: Server, client: EngineClient) -> None:
        """Check that the engine is well before we stop it: its exit status 0 proves nothing."""
        server.demand_alive("after the last answer")
        if server.log.fatal_line is not None:
            raise RunFailedError(
                f"the requests were answered, but the engine cannot go on; {server.log.tail()}"
            )
        if not client.is_healthy():
            raise RunFailedError(
                f"the requests were answered, but /health is not well any more; {server.log.tail()}"
            )

    def _stop(self, server: Server) -> None:
        self._progress.phase("stopping the engine")
        ready = self._ledger.outcome.ready_s is not None
        stopped = server.stop(self._config.limits, ready=ready)
        server.log.follow()
        self._ledger.note_attention(server.log.attention)
        self._ledger.note(
            engine_exit_status=stopped.exit_status, engine_last_signal=stopped.last_signal
        )
        if stopped.last_signal in ("SIGTERM", "SIGKILL"):
            status = stopped.exit_status
            how = "still there" if status is None else describe(status)
            self._progress.note(f"the engine or a child of it took {stopped.last_signal} ({how})")
        if stopped.left:
            pids = ", ".join(map(str, stopped.left))
            self._progress.note(f"these processes could not be ended: {pids}")
