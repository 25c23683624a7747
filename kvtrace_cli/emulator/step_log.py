"""What each pass runs, written as the engine plug-in writes it inside vLLM."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from kvtrace_cli import __version__
from kvtrace_cli.emulator.kv_cache import KvCache
from kvtrace_cli.emulator.parallel import Parallel, Rank
from kvtrace_cli.emulator.scheduler import Changes, SchedulerOutput
from kvtrace_cli.engine_site.kvtrace_engine_plugin.recorder import StepRecorder


class StepLog:
    """Steps and layout of this process; without KVTRACE_STEPS it writes nothing."""

    def __init__(
        self,
        environment: Mapping[str, str],
        cache: KvCache,
        rank: Rank | None = None,
        parallel: Parallel | None = None,
        *,
        several_hosts: bool = False,
    ) -> None:
        """Begin the files.

        Args:
            environment: KVTRACE_STEPS is the directory, KVTRACE_INJECTOR the library that takes
                the stamps; it must be loaded already.
            cache: what the layout file describes.
            rank: of this process; null for that of an engine with one.
            parallel: how many ranks there are; null for one.
            several_hosts: whether other ranks may be on other hosts.

        Raises:
            OSError: a file cannot be written.
        """
        self._recorder: StepRecorder | None = None
        directory = environment.get("KVTRACE_STEPS")
        if directory:
            injector = environment.get("KVTRACE_INJECTOR")
            self._recorder = StepRecorder(
                os.path.abspath(directory),  # noqa: PTH100  resolves no link
                engine="emulator",
                engine_version=__version__,
                model_runner="v2",
                ranks=asdict(rank or Rank()),
                world_sizes=asdict(parallel or Parallel()),
                several_hosts=several_hosts,
                block_sizes=[cache.block_size],
                injector_path=injector or environment.get("CUDA_INJECTION64_PATH"),
            )
            self._recorder.write_layout(cache.layout())

    @contextmanager
    def forward(self, output: SchedulerOutput, padded_rows: int, graph_mode: str) -> Iterator[None]:
        """Be in a pass of requests: what is launched meanwhile carries its stamp."""
        recorder = self._recorder
        if recorder is None:
            yield
            return
        recorder.begin_step(
            "forward",
            rows=output.rows,
            padded_rows=padded_rows,
            graph_mode=graph_mode,
            requests=[
                (one.request.request_id, one.rows, one.first_position) for one in output.scheduled
            ],
            changes=output.changes.fields(),
        )
        yield
        recorder.end_step()

    @contextmanager
    def dummy(self, rows: int, graph_mode: str) -> Iterator[None]:
        """Be in a pass of no request."""
        recorder = self._recorder
        if recorder is None:
            yield
            return
        recorder.begin_step("dummy", rows=rows, padded_rows=rows, graph_mode=graph_mode)
        yield
        recorder.end_step()

    def idle(self, changes: Changes) -> None:
        """Write what changed in an output that runs nothing."""
        if self._recorder is not None:
            self._recorder.idle(changes.fields())
