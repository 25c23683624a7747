"""What the engine says of itself: version, ranks, and what its positions are worth."""

from __future__ import annotations

import sys
from typing import Any

_WORLD_SIZES = {
    "tensor": "tensor_parallel_size",
    "pipeline": "pipeline_parallel_size",
    "data": "data_parallel_size",
}
_RANK_GROUPS = {"tensor": "get_tp_group", "pipeline": "get_pp_group"}


def engine_version() -> str:
    """Return vLLM's version, as vLLM has it."""
    return str(getattr(sys.modules.get("vllm"), "__version__", "unknown"))


def ranks(runner: Any) -> dict[str, int]:
    """Return this process's ranks; one that the engine does not tell is left out."""
    found = {name: _rank_in_group(getter) for name, getter in _RANK_GROUPS.items()}
    parallel = runner.parallel_config
    found["data"] = _data_rank(parallel)
    found["world"] = getattr(parallel, "rank", None)
    return {name: int(rank) for name, rank in found.items() if rank is not None}


def world_sizes(runner: Any) -> dict[str, int]:
    """Return how many ranks the whole engine has in each dimension, as far as it is known here."""
    parallel = runner.parallel_config
    found = {name: getattr(parallel, field, None) for name, field in _WORLD_SIZES.items()}
    if found["data"] == 1 and hasattr(parallel, "data_parallel_index"):
        # Each replica of a dense model is told that it is the only one.
        del found["data"]
    return {name: int(size) for name, size in found.items() if size is not None}


def several_hosts(runner: Any) -> bool:
    """Say whether other ranks of this engine may be on other hosts."""
    parallel = runner.parallel_config
    backends = (
        getattr(parallel, "distributed_executor_backend", None),
        getattr(parallel, "data_parallel_backend", None),
    )
    replicas = getattr(parallel, "data_parallel_size", None) or 1
    replicas_here = getattr(parallel, "data_parallel_size_local", None) or replicas
    return (
        any("ray" in str(backend).lower() for backend in backends)
        or (getattr(parallel, "nnodes", None) or 1) > 1
        or replicas_here < replicas
    )


def inexact(runner: Any) -> list[str]:
    """Return why positions and slots may be others than those that the GPU writes."""
    config = runner.vllm_config
    parallel = runner.parallel_config
    reasons = []
    speculative = getattr(config, "speculative_config", None) is not None
    if speculative and getattr(config.scheduler_config, "async_scheduling", False):
        reasons.append("speculative decoding with asynchronous scheduling")
    if getattr(parallel, "decode_context_parallel_size", 1) > 1:
        reasons.append("decode context parallelism")
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        reasons.append("prefill context parallelism")
    specs = [group.kv_cache_spec for group in runner.kv_cache_config.kv_cache_groups]
    if any("CrossAttention" in type(spec).__name__ for spec in specs):
        reasons.append("cross-attention: its slots follow the encoder's tokens")
    return reasons


def missing_fields(module: str, name: str, fields: tuple[str, ...]) -> list[str]:
    """Return which fields a dataclass of the engine lacks, as `Class.field`.

    A class that cannot be looked at lacks them all.
    """
    known = getattr(getattr(sys.modules.get(module), name, None), "__dataclass_fields__", {})
    return [f"{name}.{field}" for field in fields if field not in known]


def _data_rank(parallel: Any) -> int | None:
    """Return the replica's number.

    Versions that have an index for it too set the rank of a dense model's replicas to 0.
    """
    index = getattr(parallel, "data_parallel_index", None)
    return index if index is not None else getattr(parallel, "data_parallel_rank", None)


def _rank_in_group(getter: str) -> int | None:
    state = sys.modules.get("vllm.distributed.parallel_state")
    try:
        return int(getattr(state, getter)().rank_in_group)
    except (AssertionError, AttributeError):
        return None  # no such group: the engine is not distributed, or not yet
