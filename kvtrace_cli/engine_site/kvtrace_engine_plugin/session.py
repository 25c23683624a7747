"""The plug-in's state in one process, and the guard around every hook."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any, Optional

from . import engine_facts
from .changes import SchedulerChanges
from .injector_calls import end_recording_with_child
from .layout import block_sizes, describe_layout, waits_for_scales
from .recorder import StepRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    # Runs to its `yield` before the wrapped call and on after it, with the call's result; closed
    # there instead if the call raised. None: nothing to do in this call.
    Running = Optional[Generator[None, Any, None]]
    Hook = Callable[["Session", Any, tuple[Any, ...], dict[str, Any]], Running]

_MARK = "_kvtrace_hook"


class Session:
    """What this process has recorded so far: one model runner's steps, in its own thread.

    The first exception of a hook ends the recording; the engine never sees it.
    """

    def __init__(self, directory: str, injector_path: str | None, model_runner: str) -> None:
        self.missing: list[str] = []
        self._directory = directory
        self._injector_path = injector_path
        self._model_runner = model_runner
        self._forget()
        # A fork starts afresh: the parent's file is the parent's.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self.active = True
        self._recorder: StepRecorder | None = None
        self._block_sizes: list[int] = []
        self._tracker = SchedulerChanges()
        self._changes: dict[str, Any] = {}
        self._in_dummy = False
        self._scales_pending = False
        # What `begin_forward` will be given, while some of it is not known.
        self.prepared: dict[str, Any] | None = None

    def wrap(self, owner: type, name: str, hook: Hook, *, optional: bool = False) -> None:
        """Put a hook around a method, once; note that it is missing unless it is optional."""
        original = getattr(owner, name, None)
        if original is None:
            if not optional:
                self.missing.append(f"{owner.__name__}.{name}")
            return
        if hasattr(original, _MARK):
            return

        @functools.wraps(original)
        def wrapper(runner: Any, *args: Any, **kwargs: Any) -> Any:
            running = self._enter(hook, name, runner, args, kwargs) if self.active else None
            if running is None:
                return original(runner, *args, **kwargs)
            try:
                result = original(runner, *args, **kwargs)
            except BaseException:
                self._abandon(running, name)
                raise
            self._leave(running, name, result)
            return result

        setattr(wrapper, _MARK, True)
        setattr(owner, name, wrapper)

    def fail(self, hook: str, error: Exception) -> None:
        """Record nothing any more, and say why where it can be said."""
        self.active = False
        if self._recorder is not None:
            self._recorder.failed(hook, error)
        else:
            print(f"kvtrace: engine plug-in stopped in {hook}: {error!r}", file=sys.stderr)  # noqa: T201
            # What the injector records goes on, and no recorder will see to its end.
            end_recording_with_child(self._injector_path)

    def cache_initialised(self, runner: Any) -> None:
        """Write where the KV tensors are now.

        Raises:
            ValueError: the cache has other blocks than the one before, which the file's first line
                describes.
        """
        recorder = self._recorder_for(runner)
        if recorder is None:
            return
        found = block_sizes(runner.kv_cache_config)
        if found != self._block_sizes:
            raise ValueError(
                f"KV block sizes: found {found}, expected {self._block_sizes} as before"
            )
        recorder.write_layout(describe_layout(runner))
        self._scales_pending = waits_for_scales(runner)

    def begin_output(self, output: Any) -> None:
        """Take a scheduler output's changes, for the line of the step that runs it."""
        self._changes = self._tracker.take(output)

    def begin_forward(
        self,
        runner: Any,
        *,
        requests: Sequence[tuple[str, int, int]],
        rows: int,
        padded_rows: int | None,
        graph_mode: str | None,
    ) -> None:
        """Begin the step that runs the output whose changes were taken last."""
        recorder = self._recorder_for(runner)
        if recorder is not None:
            recorder.begin_step(
                "forward",
                rows=rows,
                padded_rows=padded_rows,
                graph_mode=graph_mode,
                requests=requests,
                changes=self._changes,
            )
        self._changes = {}

    def end_output(self, runner: Any) -> None:
        """End what an output ran; the changes of one that ran nothing have a line of their own."""
        recorder = self._recorder_for(runner)
        if self._changes and recorder is not None:
            recorder.idle(self._changes)
        self._end_step(runner)

    def begin_dummy(self, runner: Any, rows: int | None) -> bool:
        """Begin a step without requests; return False if one is running, or nothing records."""
        recorder = self._recorder_for(runner)
        if self._in_dummy or recorder is None:
            return False
        recorder.begin_step("dummy", rows=rows)
        self._in_dummy = True
        return True

    def end_dummy(self, runner: Any) -> None:
        """End a step that `begin_dummy` began."""
        self._in_dummy = False
        self._end_step(runner)

    def begin_draft(self, runner: Any) -> None:
        """Begin a speculator's own passes."""
        recorder = self._recorder_for(runner)
        if recorder is not None:
            recorder.begin_step("draft")

    def end_draft(self, runner: Any) -> None:
        """End a speculator's passes."""
        self._end_step(runner)

    def _end_step(self, runner: Any) -> None:
        if self._recorder is None:
            return
        self._recorder.end_step()
        # A cache that was made for profiling only is taken away again.
        pending = self._scales_pending and hasattr(runner, "kv_cache_config")
        if pending and not waits_for_scales(runner):
            self._scales_pending = False
            self._recorder.write_layout(describe_layout(runner))

    def _recorder_for(self, runner: Any) -> StepRecorder | None:
        """Return the recorder, opened when a runner has a KV cache: before, nothing writes one."""
        if self._recorder is None:
            config = getattr(runner, "kv_cache_config", None)
            if config is not None:
                self._open(runner, config)
        return self._recorder

    def _open(self, runner: Any, config: Any) -> None:
        self._block_sizes = block_sizes(config)
        output_fields = engine_facts.missing_fields(
            "vllm.v1.core.sched.output", "SchedulerOutput", ("preempted_req_ids",)
        )
        self._recorder = StepRecorder(
            self._directory,
            engine="vllm",
            engine_version=engine_facts.engine_version(),
            model_runner=self._model_runner,
            ranks=engine_facts.ranks(runner),
            world_sizes=engine_facts.world_sizes(runner),
            several_hosts=engine_facts.several_hosts(runner),
            block_sizes=self._block_sizes,
            injector_path=self._injector_path,
            missing=[*self.missing, *output_fields],
            inexact=engine_facts.inexact(runner),
        )

    def _enter(
        self, hook: Hook, name: str, runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Running:
        try:
            running = hook(self, runner, args, kwargs)
            if running is not None:
                next(running)
        except Exception as error:  # noqa: BLE001  nothing of ours may reach the engine
            self.fail(name, error)
            return None
        return running

    def _leave(self, running: Generator[None, Any, None], name: str, result: Any) -> None:
        try:
            running.send(result)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001
            self.fail(name, error)

    def _abandon(self, running: Generator[None, Any, None], name: str) -> None:
        try:
            running.close()
        except Exception as error:  # noqa: BLE001
            self.fail(name, error)
