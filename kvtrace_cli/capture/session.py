"""The order of one run: check, directory, engine, requests, drain, stop, collect."""

import os
import shlex
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from kvtrace_cli.capture.client import EngineClient, RequestRecord
from kvtrace_cli.capture.engine import Engine, find_engine
from kvtrace_cli.capture.injection import (
    CONFIG_VARIABLE,
    compose_environment,
    write_injector_config,
)
from kvtrace_cli.capture.live import LiveCounters, read_counters, wait_quiet
from kvtrace_cli.capture.manifest import Manifest, Outcome, RunStatus
from kvtrace_cli.capture.model import Model, resolve_model
from kvtrace_cli.capture.preflight import Preflight, Status, demand, run_preflight
from kvtrace_cli.capture.progress import Progress, describe_counters
from kvtrace_cli.capture.run_dir import (
    append_request,
    create_run_dir,
    mark_complete,
    write_manifest,
)
from kvtrace_cli.capture.server import Server, describe, free_port
from kvtrace_cli.capture.signals import deferred_termination, orderly_termination
from kvtrace_cli.capture.unbound import journalled_unbound_functions
from kvtrace_cli.config import RequestSpec, RunConfig
from kvtrace_cli.dumps.run_dir import RunDir
from kvtrace_cli.errors import RunFailedError

NOT_ATTACHED = (
    "the injector never attached: no process patched a module that holds a wanted kernel, so "
    "nothing can be said of the cache writes; see `kvtrace doctor`, the server.log, "
    "and whether --kernel names what this model uses"
)


@dataclass(frozen=True)
class RunResult:
    """A run that ended in order."""

    run_dir: RunDir
    manifest: Manifest
    requests: tuple[RequestRecord, ...]
    counters: LiveCounters


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
        model = resolve_model(config.model, config.weights)
        engine = find_engine(config.engine.engine)
        progress.phase("checking this machine")
        preflight = run_preflight(
            config.engine, config.recording, config.out, emulated=engine.is_emulated
        )
        for check in preflight.checks:
            say = progress.note if check.status is Status.WARN else progress.detail
            say(f"{check.status.value}: {check.name}: {check.found}")
        demand(preflight)
        run_dir = create_run_dir(config.out, force=config.force)
        session = _Session(config, engine, model, run_dir, preflight=preflight, progress=progress)
        return session.run(os.environ)


def _why(record: RequestRecord, server: Server) -> str:
    """Say why a request failed, and how the engine is since."""
    tokens = len(record.returned_token_ids or ())
    reason = f"{record.role} request {record.request_index} failed: {record.error}"
    status = server.exit_status
    ended = "" if status is None else f"; the engine ended, {describe(status)}"
    return f"{reason} ({tokens} tokens){ended}; {server.log.tail()}"


def _assignments(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={text}" for name, text in sorted(environment.items())]


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
        self._outcome = Outcome()
        self._records: list[RequestRecord] = []
        self._port = config.engine.port or free_port()
        self._command = engine.command(config, model, self._port)
        self._manifest = self._describe()

    def run(self, base: Mapping[str, str]) -> RunResult:
        """Run the engine and the requests, whatever happens leaving no process behind."""
        try:
            environment = self._environment(base)
            ours = {name: text for name, text in environment.items() if base.get(name) != text}
            self._manifest = replace(self._manifest, environment=ours)
            self._progress.detail(shlex.join([*_assignments(ours), *self._command]))
            self._save(self._outcome)
            self._serve(environment)
        except BaseException as error:
            with deferred_termination():
                self._give_up(error)
            if isinstance(error, RunFailedError):
                raise RunFailedError(f"{error}\n{self._what_is_left()}") from error
            raise
        with deferred_termination():
            self._save(replace(self._outcome, status=RunStatus.COMPLETE))
            mark_complete(self._run_dir)
        return RunResult(self._run_dir, self._manifest, tuple(self._records), self._counters())

    def _environment(self, base: Mapping[str, str]) -> dict[str, str]:
        environment = self._engine.environment(base, self._model)
        injector, sanitizer = self._preflight.injector, self._preflight.sanitizer_library
        if injector is None or sanitizer is None:
            environment.pop(CONFIG_VARIABLE, None)
            return environment
        config_path = self._run_dir.injector_config.absolute()
        write_injector_config(
            config_path,
            self._config.recording,
            raw_dir=self._run_dir.raw.absolute(),
            sanitizer_library=sanitizer,
            emulated=self._engine.is_emulated,
        )
        return compose_environment(
            environment, self._config.recording, injector=injector.path, config_path=config_path
        )

    def _describe(self) -> Manifest:
        found = self._preflight
        injector = found.injector
        return Manifest(
            config=self._config,
            command=tuple(self._command),
            environment={},
            model_source=self._model.source,
            versions=found.versions | {"cuda_driver": found.cuda_driver},
            gpus=tuple(found.gpus),
            injector_path=injector.path if injector else None,
            injector_build=injector.build if injector else None,
            sanitizer_library=found.sanitizer_library,
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
                for index, spec in enumerate(self._config.requests.specs()):
                    self._ask(server, client, index, spec)
                self._settle()
                self._check_lived(server, client)
            finally:
                if server is not None:
                    self._stop(server)

    def _await_ready(self, server: Server, client: EngineClient) -> None:
        begin = time.monotonic()

        def show() -> None:
            if server.log.phase is not None:
                self._progress.phase(server.log.phase)
            self._progress.counters(self._counters())

        server.wait_ready(client.is_healthy, self._config.limits, show)
        self._outcome = replace(self._outcome, ready_s=round(time.monotonic() - begin, 3))
        self._progress.phase("ready")
        if self._config.recording.enabled and not self._counters().attached:
            self._progress.note("the engine is ready, but the injector has not attached to it")

    def _ask(self, server: Server, client: EngineClient, index: int, spec: RequestSpec) -> None:
        self._progress.phase(f"{spec.role.value} request {index}")
        record = self._send(client, index, spec)
        append_request(self._run_dir, record.to_json())
        self._records.append(record)
        if record.error is not None:
            server.wait_exit(self._config.limits.kill_s if record.http_status is None else 0)
            raise RunFailedError(_why(record, server))
        self._outcome = replace(self._outcome, requests_answered=len(self._records))

    def _send(self, client: EngineClient, index: int, spec: RequestSpec) -> RequestRecord:
        """Send from another thread, so that this one shows live counters and hears a Ctrl-C."""
        answers: list[RequestRecord] = []
        thread = threading.Thread(
            target=lambda: answers.append(client.send(index, spec)), daemon=True
        )
        thread.start()
        while thread.is_alive():
            thread.join(self._config.limits.poll_s)
            self._progress.counters(self._counters())
        if not answers:
            raise RuntimeError("the request's thread ended without an answer")
        return answers[0]

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
        stopped = server.stop(self._config.limits, ready=self._outcome.ready_s is not None)
        self._outcome = replace(
            self._outcome,
            engine_exit_status=stopped.exit_status,
            engine_last_signal=stopped.last_signal,
        )
        if stopped.last_signal in ("SIGTERM", "SIGKILL"):
            status = stopped.exit_status
            how = "still there" if status is None else describe(status)
            self._progress.note(f"the engine or a child of it took {stopped.last_signal} ({how})")
        if stopped.left:
            pids = ", ".join(map(str, stopped.left))
            self._progress.note(f"these processes could not be ended: {pids}")

    def _counters(self) -> LiveCounters:
        return read_counters(self._run_dir.raw)

    def _save(self, outcome: Outcome) -> None:
        if self._config.recording.enabled:
            outcome = outcome.with_counters(self._counters())
        self._outcome = outcome
        self._manifest = replace(self._manifest, outcome=outcome)
        write_manifest(self._run_dir, self._manifest)

    def _give_up(self, error: BaseException) -> None:
        interrupted = isinstance(error, KeyboardInterrupt)
        status = RunStatus.INTERRUPTED if interrupted else RunStatus.FAILED
        text = str(error) or type(error).__name__
        self._save(replace(self._outcome, status=status, error=text))

    def _what_is_left(self) -> str:
        """Say what was recorded before it failed, and how to read it."""
        if not self._config.recording.enabled:
            return f"{self._run_dir.path} holds the log and the answers so far"
        counters = self._counters()
        if not counters.attached:
            return f"nothing was recorded; {self._run_dir.path} holds the log"
        return (
            f"{self._unbound()}recorded until then: {describe_counters(counters)}; "
            f"`kvtrace reconcile {self._run_dir.path} --allow-incomplete` reads it"
        )

    def _unbound(self) -> str:
        """Name the functions that were left without callback data, which is what faults."""
        names = journalled_unbound_functions(self._run_dir)
        if not names:
            return ""
        return (
            f"{len(names)} functions of a patched module had no callback data, so they read "
            f"garbage when a graph replays them: {', '.join(names)}\n"
        )
