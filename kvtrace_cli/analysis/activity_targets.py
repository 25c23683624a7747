"""Target kernels among what CUPTI saw run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kvtrace_cli.analysis.kernel_names import kernel_base_name
from kvtrace_cli.dumps import abi
from kvtrace_cli.dumps.schema import ActivityDump, Recording

# As the manifest names it.
CUPTI: Final = "cupti"
IN_GRAPH: Final = "in_graph"


@dataclass(frozen=True)
class TargetRuns:
    """How often target kernels ran: as nodes of graphs, and as plain launches."""

    graph_nodes: int
    plain_launches: int


def is_seen_by_cupti(recording: Recording) -> bool:
    """Say whether a run was observed by CUPTI instead of the Sanitizer."""
    return recording.manifest.get("observer") == CUPTI or bool(recording.activities)


def wanted_kernels(manifest: dict[str, Any]) -> tuple[str, ...]:
    """Return the base names that the run asked for; none if the manifest does not say."""
    config = manifest.get("config")
    recording = config.get("recording") if isinstance(config, dict) else None
    kernels = recording.get("kernels") if isinstance(recording, dict) else None
    return tuple(map(str, kernels)) if isinstance(kernels, list) else ()


def target_runs(activity: ActivityDump, kernels: Sequence[str]) -> pl.DataFrame:
    """Return the records of target kernels of one process, in the order in which they began.

    Args:
        activity: of the process.
        kernels: base names.

    Returns:
        The columns of the ABI structure, and `in_graph`.

    Units: `gpu_cupti_*_ns` in ns of CUPTI's clock.
    """
    lines = [line for line, name in enumerate(activity.names) if kernel_base_name(name) in kernels]
    is_kernel = pl.col("activity_kind") == abi.constant("KVTRACE_ACTIVITY_KERNEL")
    return (
        activity.dump.records.filter(is_kernel, pl.col("name_id").is_in(lines))
        .with_columns((pl.col("graph_id") != 0).alias(IN_GRAPH))
        .sort("gpu_cupti_begin_ns", maintain_order=True)
    )


def count_target_runs(recording: Recording) -> TargetRuns:
    """Count how often target kernels ran in all processes."""
    kernels = wanted_kernels(recording.manifest)
    runs = [target_runs(activity, kernels)[IN_GRAPH] for activity in recording.activities]
    return TargetRuns(
        graph_nodes=sum(int(one.sum()) for one in runs),
        plain_launches=sum(int((~one).sum()) for one in runs),
    )
