"""Write what the steps of this process run, and hand each step's stamp to the injector.

Standard library only: it runs inside the engine, which may live in another environment than
kvtrace. The file's fields are described in docs/format.md, section *Steps*.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from .host_facts import host_clock, host_name
from .injector_calls import end_recording_with_child, find_set_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA_VERSION = 1

_MAX_STEP_STAMP = 2**32 - 1
# Ours are trees that were just built, so looking for cycles is wasted time.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class StepRecorder:
    """The steps file and the layout file of one process.

    Every line is one write to a file opened for appending, so a SIGKILL loses none that was begun.
    Not to be shared by threads: one thread launches the steps of an engine.
    """

    def __init__(
        self,
        directory: str,
        *,
        engine: str,
        engine_version: str,
        model_runner: str,
        ranks: dict[str, int],
        block_sizes: list[int],
        injector_path: str | None,
        missing: Sequence[str] = (),
        inexact: Sequence[str] = (),
        world_sizes: Mapping[str, int] | None = None,
        several_hosts: bool = False,
    ) -> None:
        """Open the file and write its first line.

        Args:
            directory: absolute; the run's raw directory.
            engine: `vllm` or `emulator`.
            engine_version: as the engine says it.
            model_runner: `v1` or `v2`.
            ranks: tensor, pipeline, data and world rank of this process.
            block_sizes: tokens of a KV block, one a KV group, as the scheduler counts.
            injector_path: the injector's library, or None if there is none.
            missing: hooks that this version of the engine lacks.
            inexact: why positions are upper bounds only; empty if they are exact.
            world_sizes: ranks in tensor, pipeline and data parallelism, as far as they are known.
            several_hosts: whether other ranks of the engine may be on other hosts.

        Raises:
            OSError: the file cannot be written, or a recorder of this process has one already.
        """
        self._directory = directory
        self._process_id = os.getpid()
        self._last_stamp = 0
        self._failed = False
        self._set_step = find_set_step(injector_path)
        # Exclusively: two recorders in one file would count the same stamps.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self._path("steps.jsonl"), flags, 0o644)
        self._write(
            {
                "event": "started",
                "schema_version": SCHEMA_VERSION,
                "engine": engine,
                "engine_version": engine_version,
                "model_runner": model_runner,
                "ranks": ranks,
                "host": host_name(),
                "stamped": self._set_step is not None,
                **_filled(
                    world_sizes=world_sizes,
                    several_hosts=several_hosts,
                    host_clock=host_clock(),
                    missing=list(missing),
                    block_sizes=block_sizes,
                    inexact=list(inexact),
                ),
            }
        )
        end_recording_with_child(injector_path)

    @property
    def process_id(self) -> int:
        """Return the process that opened the file: after a fork, not this one."""
        return self._process_id

    def begin_step(
        self,
        kind: str,
        *,
        rows: int | None = None,
        padded_rows: int | None = None,
        graph_mode: str | None = None,
        requests: Sequence[tuple[str, int, int]] = (),
        changes: Mapping[str, Any] | None = None,
    ) -> int:
        """Write a step's line and make its stamp the one that launches carry from now on.

        Args:
            kind: `forward`, `dummy` or `draft`.
            rows: rows that belong to requests; of a dummy step, the rows it runs.
            padded_rows: rows the kernels are launched with, if known.
            graph_mode: `FULL`, `PIECEWISE` or `NONE`, if known.
            requests: in row order, (request id, rows, position of its first row).
            changes: what the scheduler changed since the line before.

        Returns:
            The step's stamp, from 1; 0 if recording has failed.

        Raises:
            OSError: the line cannot be written.
        """
        if self._failed:
            return 0
        # An uint32 in the launch records; 136 years of 1 ms steps lie below its end.
        stamp = self._last_stamp = self._last_stamp % _MAX_STEP_STAMP + 1
        line: dict[str, Any] = {"event": "step", "step_stamp": stamp, "kind": kind}
        if rows is not None:
            line["rows"] = rows
        if padded_rows is not None:
            line["padded_rows"] = padded_rows
        if graph_mode is not None:
            line["graph_mode"] = graph_mode
        if requests:
            line["requests"] = requests
        if changes:
            line.update(_filled(**changes))
        self._write(line)
        if self._set_step is not None:
            self._set_step(stamp)
        return stamp

    def end_step(self) -> None:
        """Let launches that belong to no step carry none."""
        if self._set_step is not None:
            self._set_step(0)

    def idle(self, changes: Mapping[str, Any]) -> None:
        """Write what the scheduler changed in an output that runs nothing.

        Raises:
            OSError: the line cannot be written.
        """
        if changes and not self._failed:
            self._write({"event": "idle", **_filled(**changes)})

    def failed(self, hook: str, error: BaseException) -> None:
        """Write that a hook met something it does not understand, and record nothing from now on.

        Never raises: it is called from inside the engine's own calls.
        """
        if self._failed:
            return
        self.end_step()
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        print(f"kvtrace: engine plug-in stopped in {hook}: {text}", file=sys.stderr, flush=True)  # noqa: T201  in the engine's log
        try:
            self._write({"event": "failed", "hook": hook, "error": text})
        except OSError as lost:
            print(f"kvtrace: engine plug-in cannot say so: {lost}", file=sys.stderr, flush=True)  # noqa: T201
        self._failed = True

    def write_layout(self, layout: Mapping[str, Any]) -> None:
        """Write where the KV tensors are; a later call replaces it.

        Raises:
            OSError: the file cannot be written.
        """
        if self._failed:
            return
        path = self._path("layout.json")
        partial = f"{path}.partial"
        with open(partial, "w", encoding="utf-8") as file:  # noqa: PTH123  the module stays small
            file.write(_encode({"schema_version": SCHEMA_VERSION, **layout}))
        os.replace(partial, path)  # noqa: PTH105

    def _path(self, kind: str) -> str:
        return os.path.join(self._directory, f"{self._process_id}.{kind}")  # noqa: PTH118

    def _write(self, line: dict[str, Any]) -> None:
        line["host_monotonic_ns"] = time.monotonic_ns()
        text = (_encode(line) + "\n").encode()
        if os.write(self._file, text) != len(text):
            raise OSError(f"{self._path('steps.jsonl')}: a line was written in part: disk full?")


def _filled(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value}
