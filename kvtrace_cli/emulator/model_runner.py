"""What a model's forward passes launch: layers, eager passes and captured decode graphs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtrace_cli.emulator.driver import Driver
from kvtrace_cli.errors import ConfigError

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


@dataclass(frozen=True)
class ModelShape:
    """What of a model decides its launches and its answers."""

    layers: int
    vocabulary: int


def read_shape(model: Path) -> ModelShape:
    """Read the shape from a model's config.json.

    Raises:
        ConfigError: there is none, or it names no number of layers.
    """
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return ModelShape(int(config["num_hidden_layers"]), int(config["vocab_size"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: cannot be used ({error!r}); expected a model's config.json with "
            "num_hidden_layers and vocab_size; with --engine emulator use --weights dummy"
        ) from error


class ModelRunner:
    """Owns the graphs. A pass of n rows launches the target once a layer, one block a row."""

    def __init__(self, driver: Driver, shape: ModelShape, capture_sizes: tuple[int, ...]) -> None:
        self._driver = driver
        self._shape = shape
        self._sizes = tuple(sorted(capture_sizes))
        cache = driver.load_module((TARGET, _ROTARY, _NORM, _SCALES))
        rest = driver.load_module((_GEMM, _ATTENTION))
        self._functions: dict[str, Any] = cache | rest
        self._graphs: dict[int, Any] = {}

    def warm_up(self) -> None:
        """Run each capture size eagerly, then capture it, the largest first, as vLLM does."""
        for rows in reversed(self._sizes):
            self._layers(rows)
            self._driver.synchronize()
            self._driver.begin_capture()
            self._layers(rows)
            self._graphs[rows] = self._driver.end_capture()

    def prefill(self, rows: int) -> None:
        """Run a pass that has prompt rows in it: plain launches.

        Raises:
            DeviceFaultError: a kernel faulted.
        """
        self._layers(self._captured_size(rows) or rows)
        self._driver.synchronize()

    def decode(self, rows: int) -> None:
        """Run a pass with one row for each running request: a replay, if one is large enough.

        Raises:
            DeviceFaultError: a kernel faulted.
        """
        size = self._captured_size(rows)
        if size is None:
            self._layers(rows)
        else:
            self._driver.replay(self._graphs[size])
        self._driver.synchronize()

    @property
    def target_blocks_run(self) -> int:
        """Thread blocks of the target that have run so far."""
        return self._driver.blocks_run(self._functions[TARGET])

    def _captured_size(self, rows: int) -> int | None:
        """Return the smallest captured size that holds these rows; the rest of it is padding."""
        return next((size for size in self._sizes if size >= rows), None)

    def _layers(self, rows: int) -> None:
        for _ in range(self._shape.layers):
            self._driver.launch(self._functions[_NORM], 1)
            self._driver.launch(self._functions[_GEMM], 1)
            self._driver.launch(self._functions[_ROTARY], 1)
            self._driver.launch(self._functions[TARGET], rows)
            self._driver.launch(self._functions[_ATTENTION], 1)
