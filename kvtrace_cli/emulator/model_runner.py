"""What a model's forward passes launch: layers, eager passes and captured decode graphs."""

from typing import Any

from kvtrace_cli.emulator.driver import CacheWrites, Driver, SlotMapping
from kvtrace_cli.emulator.kv_cache import KvCache
from kvtrace_cli.emulator.scheduler import PassShape, ScheduledRequest, SchedulerOutput
from kvtrace_cli.emulator.slot_mapper import SlotMapper
from kvtrace_cli.emulator.step_log import StepLog

# Names as vLLM 0.26 has them; of the target's module, only the target may be recorded.
TARGET = (
    "_ZN4vllm30reshape_and_cache_flash_kernelI13__nv_bfloat16S1_LNS_18Fp8KVCacheDataTypeE0EEE"
    "vPKT_S5_PT0_S7_PKliiiiiiPKfS9_"
)
_SCALES = "_ZN4vllm24concat_and_cache_mla_kernelI13__nv_bfloat16S1_LNS_18Fp8KVCacheDataTypeE0EEE"
_ROTARY = "_ZN4vllm23rotary_embedding_kernelIN3c108BFloat16ELb1EEEvPKlPT_S5_PKS4_illiii"
_NORM = "_ZN4vllm15rms_norm_kernelIN3c108BFloat16ELi8ELi2EEEvPT_PKS3_lS6_fii"
_GEMM = "nvjet_tst_128x64_64x10_1x2_h_bz_coopA_TNT"
_ATTENTION = "_ZN5flash24flash_fwd_splitkv_kernelI23Flash_fwd_kernel_traitsEEv"


class ModelRunner:
    """Owns the graphs. A pass of n rows launches the target once a layer, one block a row."""

    def __init__(
        self,
        driver: Driver,
        cache: KvCache,
        *,
        capture_sizes: tuple[int, ...],
        max_batched_tokens: int,
        mapper: SlotMapper,
        steps: StepLog,
    ) -> None:
        """Load the kernels.

        Args:
            driver: runs them.
            cache: what the target writes.
            capture_sizes: rows of the passes that become graphs.
            max_batched_tokens: rows that a pass may have.
            mapper: says which slot a row writes.
            steps: is told of every pass.
        """
        self._driver = driver
        self._sizes = tuple(sorted(capture_sizes))
        self._mapper = mapper
        self._steps = steps
        kernels = driver.load_module((TARGET, _ROTARY, _NORM, _SCALES))
        rest = driver.load_module((_GEMM, _ATTENTION))
        self._functions: dict[str, Any] = kernels | rest
        self._graphs: dict[int, Any] = {}
        most_rows = max(max_batched_tokens, *self._sizes)
        self._slots = SlotMapping(driver, most_rows)
        self._odd_slots: SlotMapping | None = None
        if mapper.odd_layer is not None:
            self._odd_slots = SlotMapping(driver, most_rows)
        self._writes = {layer: self._layer_writes(cache, layer) for layer in cache.layer_indices}

    def warm_up(self) -> None:
        """Run each capture size eagerly, then capture it, the largest first, as vLLM does."""
        for rows in reversed(self._sizes):
            self._run_dummy(rows)
            with self._steps.dummy(rows, "FULL"):
                self._driver.begin_capture()
                self._layers(rows)
                self._graphs[rows] = self._driver.end_capture()

    def execute(self, output: SchedulerOutput, shape: PassShape | None = None) -> None:
        """Run a pass, or only take in what an output without rows changed.

        One row for each request is a replay, if a graph is large enough; else it is plain launches.

        Args:
            output: the requests of this replica.
            shape: what all data-parallel replicas agreed on, if there are several; one without
                requests then runs a pass of nobody's rows.

        Raises:
            DeviceFaultError: a kernel faulted.
        """
        if not output.scheduled:
            self._idle(output, shape)
            return
        shape = shape or output.shape
        size = self._captured_size(shape.rows)
        padded_rows = size or output.rows
        graph_mode = _graph_mode(size, shape)
        with self._steps.forward(output, padded_rows, graph_mode):
            self._set_slots(output.scheduled, padded_rows)
            if graph_mode == "FULL":
                self._driver.replay(self._graphs[padded_rows])
            else:
                self._layers(padded_rows, self._mapper.unlaunched_layer(output.scheduled))
            self._driver.synchronize()

    @property
    def target_blocks_run(self) -> int:
        """Thread blocks of the target that have run so far."""
        return self._driver.blocks_run(self._functions[TARGET])

    def _captured_size(self, rows: int) -> int | None:
        """Return the smallest captured size that holds these rows; the rest of it is padding."""
        return next((size for size in self._sizes if size >= rows), None)

    def _idle(self, output: SchedulerOutput, shape: PassShape | None) -> None:
        self._steps.idle(output.changes)
        if shape is not None and shape.rows:
            size = self._captured_size(shape.rows)
            self._run_dummy(size or 1, _graph_mode(size, shape))
        elif self._mapper.runs_idle_pass:
            self._run_dummy(self._sizes[0])

    def _run_dummy(self, rows: int, graph_mode: str = "NONE") -> None:
        with self._steps.dummy(rows, graph_mode):
            slots = self._mapper.dummy_slots(rows)
            self._slots.set(slots)
            if self._odd_slots is not None:
                self._odd_slots.set(slots)
            if graph_mode == "FULL":
                self._driver.replay(self._graphs[rows])
            else:
                self._layers(rows)
            self._driver.synchronize()

    def _set_slots(self, scheduled: tuple[ScheduledRequest, ...], padded_rows: int) -> None:
        slots = self._mapper.slots(scheduled, padded_rows)
        self._slots.set(slots)
        if self._odd_slots is not None:
            self._odd_slots.set(self._mapper.odd_layer_slots(scheduled, slots))

    def _layer_writes(self, cache: KvCache, layer_index: int) -> CacheWrites:
        is_odd = layer_index == self._mapper.odd_layer
        return CacheWrites(
            slots=self._odd_slots if is_odd and self._odd_slots is not None else self._slots,
            key_address=cache.key_address(layer_index),
            value_address=cache.value_address(layer_index),
            block_stride=cache.block_stride,
            offset_stride=cache.offset_stride,
            block_size=cache.block_size,
        )

    def _layers(self, rows: int, without: int | None = None) -> None:
        for layer_index, writes in self._writes.items():
            self._driver.launch(self._functions[_NORM], 1)
            self._driver.launch(self._functions[_GEMM], 1)
            self._driver.launch(self._functions[_ROTARY], 1)
            if layer_index != without:
                self._driver.launch(self._functions[TARGET], rows, writes=writes)
            self._driver.launch(self._functions[_ATTENTION], 1)


def _graph_mode(size: int | None, shape: PassShape) -> str:
    """Return the mode of a pass that a graph of this size holds, if one does."""
    if size is None:
        return "NONE"
    return "FULL" if shape.is_decode else "PIECEWISE"
