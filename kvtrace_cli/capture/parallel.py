"""How many ranks an engine was asked for, and whether all of them are on this host."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvtrace_cli.capture.engine_arguments import has_option, option_value

_SIZES = {
    "tensor": ("--tensor-parallel-size", "-tp"),
    "pipeline": ("--pipeline-parallel-size", "-pp"),
    "data": ("--data-parallel-size", "-dp"),
}
_BACKENDS = (
    ("--distributed-executor-backend",),
    ("--data-parallel-backend", "-dpb"),
)
_NODES = ("--nnodes", "-n")
_LOCAL_REPLICAS = ("--data-parallel-size-local", "-dpl")
# Each says that this command serves some of the ranks only.
_PARTIAL = (
    "--headless",
    *("--data-parallel-rank", "-dpn"),
    *("--data-parallel-start-rank", "-dpr"),
    *("--data-parallel-hybrid-lb", "-dph"),
    *("--data-parallel-external-lb", "-dpe"),
)


@dataclass(frozen=True)
class ParallelSizes:
    """Ranks in each dimension of parallelism."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def total(self) -> int:
        """Ranks in all, a GPU each."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True)
class AskedParallel:
    """What the arguments say; `is_partial`: commands on other nodes have the other ranks."""

    sizes: ParallelSizes = ParallelSizes()
    uses_ray: bool = False
    is_partial: bool = False


def asked_parallel(arguments: Sequence[str]) -> AskedParallel:
    """Read vLLM's arguments; what is no number counts as left out, as vLLM itself refuses it."""
    sizes = ParallelSizes(
        **{name: _number(arguments, spellings) or 1 for name, spellings in _SIZES.items()}
    )
    replicas_here = _number(arguments, _LOCAL_REPLICAS)
    return AskedParallel(
        sizes=sizes,
        uses_ray=any(option_value(arguments, *names) == "ray" for names in _BACKENDS),
        is_partial=(
            has_option(arguments, *_PARTIAL)
            or (_number(arguments, _NODES) or 1) > 1
            or (replicas_here is not None and replicas_here < sizes.data)
        ),
    )


def _number(arguments: Sequence[str], names: tuple[str, ...]) -> int | None:
    text = option_value(arguments, *names) or ""
    return int(text) if text.isdecimal() and int(text) else None
