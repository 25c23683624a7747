"""One rank of the engine: the process that owns a GPU, with its part of the model."""

import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from kvtrace_cli.emulator.children import Link
from kvtrace_cli.emulator.driver import DeviceFaultError, Driver
from kvtrace_cli.emulator.faults import Fault
from kvtrace_cli.emulator.kv_cache import KvCache
from kvtrace_cli.emulator.model_runner import ModelRunner
from kvtrace_cli.emulator.parallel import Parallel, Rank
from kvtrace_cli.emulator.scheduler import PassShape, SchedulerOutput
from kvtrace_cli.emulator.slot_faults import slot_mapper
from kvtrace_cli.emulator.step_log import StepLog

INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker is made of; it goes from process to process."""

    library: Path
    cache: KvCache
    capture_sizes: tuple[int, ...]
    max_batched_tokens: int
    rank: Rank
    parallel: Parallel
    # Of this rank; none in a rank that another one has the fault of.
    fault: Fault
    # Whether other ranks may be on other hosts.
    several_hosts: bool = False
    # Only said: no attention is emulated.
    flash_attention: int | None = None


class RankWorker:
    """Runs the passes of one rank."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Open the device, capture the graphs, and begin the steps file."""
        if settings.fault is Fault.NOT_ATTACHED:
            os.environ.pop(INJECTION_VARIABLE, None)
        self._fault = settings.fault
        cache = settings.cache
        layers = cache.layer_indices
        _LOG.info("layers %d to %d", layers[0], layers[-1])
        # As vLLM words it. The cache has the memory layout of this backend's.
        _LOG.info("Using AttentionBackendEnum.FLASH_ATTN backend.")
        if settings.flash_attention is not None:
            _LOG.info("Using FlashAttention version %d", settings.flash_attention)
        driver = Driver(settings.library)
        self._runner = ModelRunner(
            driver,
            cache,
            capture_sizes=settings.capture_sizes,
            max_batched_tokens=settings.max_batched_tokens,
            mapper=slot_mapper(settings.fault, cache),
            steps=StepLog(
                os.environ,
                cache,
                settings.rank,
                settings.parallel,
                several_hosts=settings.several_hosts,
            ),
        )
        _LOG.info("%d KV blocks of %d tokens", cache.num_blocks, cache.block_size)
        _LOG.info("Capturing CUDA graphs of sizes %s", settings.capture_sizes)
        self._runner.warm_up()

    def execute(self, output: SchedulerOutput, shape: PassShape | None = None) -> None:
        """Run a pass; see `ModelRunner.execute`.

        Raises:
            DeviceFaultError: a kernel faulted.
        """
        if self._fault is Fault.RANK_DIES and output.is_measured:
            os.kill(os.getpid(), signal.SIGKILL)
        self._runner.execute(output, shape)

    def stop(self) -> None:
        """Say what really ran, to compare with."""
        _LOG.info("target blocks that really ran: %d", self._runner.target_blocks_run)


def serve_rank(link: Link, settings: WorkerSettings) -> None:
    """Be a worker process: run the passes that the engine core sends, until it is gone."""
    worker = RankWorker(settings)
    link.send("ready")
    for kind, *arguments in link.messages():
        if kind == "stop":
            break
        try:
            worker.execute(*arguments)
        except DeviceFaultError as error:
            link.send("fault", error.code)
        else:
            link.send("done")
    worker.stop()
