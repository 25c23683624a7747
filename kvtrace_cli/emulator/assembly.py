"""Put an engine together from its arguments: in one process, or with a process for each rank."""

import logging
from argparse import Namespace
from functools import partial
from importlib.util import find_spec

from kvtrace_cli.capture.libraries import find_emulator_library
from kvtrace_cli.emulator.core_process import CoreSettings
from kvtrace_cli.emulator.engine_core import EngineCore
from kvtrace_cli.emulator.executors import Executor, ProcessExecutor
from kvtrace_cli.emulator.faults import Fault
from kvtrace_cli.emulator.front import EngineFront
from kvtrace_cli.emulator.kv_blocks import KvBlockManager
from kvtrace_cli.emulator.kv_cache import KvCache
from kvtrace_cli.emulator.model_shape import ModelShape
from kvtrace_cli.emulator.parallel import Parallel, Rank
from kvtrace_cli.emulator.rank_worker import RankWorker, WorkerSettings
from kvtrace_cli.emulator.scheduler import Scheduler
from kvtrace_cli.emulator.server import Engine
from kvtrace_cli.emulator.slot_faults import slot_mapper
from kvtrace_cli.errors import ConfigError

_LOG = logging.getLogger(__name__)


def assemble(arguments: Namespace, shape: ModelShape) -> Engine:
    """Start an engine; what it has below it is ready then.

    Raises:
        ConfigError: the arguments do not go together.
        ChildLostError: a process of it ended while it started.
    """
    parallel = Parallel(
        arguments.tensor_parallel_size,
        arguments.pipeline_parallel_size,
        arguments.data_parallel_size,
    )
    if arguments.fault_rank is not None and arguments.fault_rank >= parallel.devices:
        raise ConfigError(
            f"--fault-rank: found {arguments.fault_rank}, expected less than {parallel.devices}, "
            "the number of ranks"
        )
    backend = arguments.distributed_executor_backend
    if backend == "ray" and find_spec("ray") is None:
        raise ConfigError(
            "--distributed-executor-backend ray: this interpreter has no Ray; install it, or name "
            "one that has it with `kvtrace run --python`"
        )
    if parallel.devices == 1 and backend in (None, "uni"):
        (settings,) = _workers(arguments, shape, parallel, 0)
        worker = RankWorker(settings)
        return _LocalEngine(worker, _scheduler(arguments, shape), arguments.pass_ms / 1000)
    return EngineFront(
        [f"EngineCore{parallel.replica_name(replica)}" for replica in range(parallel.data)],
        [
            CoreSettings(
                partial(_executor, backend, _workers(arguments, shape, parallel, replica)),
                partial(_scheduler, arguments, shape),
                arguments.pass_ms / 1000,
                in_lockstep=parallel.data > 1,
            )
            for replica in range(parallel.data)
        ],
    )


class _LocalEngine(EngineCore):
    """A core that has its worker in its own process."""

    def __init__(self, worker: RankWorker, scheduler: Scheduler, pass_s: float) -> None:
        super().__init__(worker, scheduler, pass_s=pass_s)
        self._worker = worker

    def stop(self) -> None:
        """Finish the pass that runs, fail what is left, and end the thread."""
        super().stop()
        self._worker.stop()


def _executor(backend: str | None, workers: list[WorkerSettings]) -> Executor:
    if backend == "ray":
        from kvtrace_cli.emulator.ray_executor import RayExecutor  # noqa: PLC0415  few have Ray

        return RayExecutor(workers)
    if len(workers) == 1 and backend != "mp":
        return RankWorker(workers[0])
    return ProcessExecutor(workers)


def _workers(
    arguments: Namespace, shape: ModelShape, parallel: Parallel, replica: int
) -> list[WorkerSettings]:
    """Return what the workers of one replica are made of.

    Raises:
        ConfigError: see `kv_cache` and `Parallel.layers_of`.
    """
    return [
        WorkerSettings(
            library=find_emulator_library(arguments.library),
            cache=_kv_cache(arguments, shape, parallel, rank),
            capture_sizes=arguments.capture_sizes,
            max_batched_tokens=arguments.max_num_batched_tokens,
            rank=rank,
            parallel=parallel,
            fault=_fault_of(arguments, parallel.device(rank)),
            several_hosts=arguments.distributed_executor_backend == "ray",
            flash_attention=arguments.flash_attention,
        )
        for rank in parallel.ranks(replica)
    ]


def _fault_of(arguments: Namespace, device: int) -> Fault:
    fault: Fault = arguments.fault
    return fault if arguments.fault_rank in (None, device) else Fault.NONE


def _kv_cache(arguments: Namespace, shape: ModelShape, parallel: Parallel, rank: Rank) -> KvCache:
    """Return a rank's part of a cache of the size asked for, or of one that never runs out.

    Raises:
        ConfigError: it does not hold one request of the greatest length.
    """
    layers = parallel.layers_of(rank, shape.layers)
    return KvCache(
        layers=len(layers),
        first_layer=layers[0],
        # With more ranks than heads, several ranks have the same head.
        kv_heads=max(1, shape.kv_heads // parallel.tensor),
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        element_size=shape.element_size,
        num_blocks=_num_blocks(arguments),
        block_size=arguments.block_size,
        device=parallel.device(rank),
    )


def _num_blocks(arguments: Namespace) -> int:
    a_request = -(-arguments.max_model_len // arguments.block_size)
    enough = 1 + arguments.max_num_seqs * a_request  # one for the null block
    num_blocks: int = enough if arguments.num_gpu_blocks is None else arguments.num_gpu_blocks
    if num_blocks < 1 + a_request:
        raise ConfigError(
            f"--num-gpu-blocks: found {num_blocks}, expected at least {1 + a_request}: the null "
            f"block, and a request of --max-model-len {arguments.max_model_len} tokens in blocks "
            f"of {arguments.block_size}"
        )
    return num_blocks


def _scheduler(arguments: Namespace, shape: ModelShape) -> Scheduler:
    # A fault of the scheduler's is one of the whole replica.
    cache = _kv_cache(arguments, shape, Parallel(), Rank())
    blocks = KvBlockManager(
        cache.num_blocks, cache.block_size, prefix_caching=arguments.enable_prefix_caching
    )
    return Scheduler(
        blocks,
        max_num_seqs=arguments.max_num_seqs,
        max_batched_tokens=arguments.max_num_batched_tokens,
        choose_shared=slot_mapper(arguments.fault, cache).choose_shared,
    )
