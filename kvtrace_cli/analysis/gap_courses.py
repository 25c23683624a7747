"""The order in which target kernels ran, as each observer saw it: replays and plain launches."""

from dataclasses import dataclass
from itertools import groupby

import polars as pl

from kvtrace_cli.analysis.activity_targets import IN_GRAPH, target_runs, wanted_kernels
from kvtrace_cli.analysis.measured import STRETCH
from kvtrace_cli.dumps.schema import LAUNCH_INDEX, PROCESS_ID, Recording

_DEVICE = "device_ordinal"


@dataclass(frozen=True)
class Item:
    """One replay with target nodes, or one plain launch of a target kernel.

    `shape` has the grid of each target node in order. `began` and `ended` in ns on the observer's
    own clock: the first and last block entry of it, or begin of the first and end of the last
    kernel; None if no block entered. `stretch` is the measured stretch it was launched in, if the
    observer knows.
    """

    is_replay: bool
    shape: tuple[str, ...]
    began: int | None
    ended: int | None
    stretch: int | None = None
    device: int = 0

    @property
    def text(self) -> str:
        """Say what it is, for a reader."""
        if not self.is_replay:
            return f"a plain launch of grid {self.shape[0]}"
        nodes = "node" if len(self.shape) == 1 else "nodes"
        return f"a replay of {len(self.shape)} target {nodes}, grids {grids_text(self.shape)}"


def grids_text(shape: tuple[str, ...]) -> str:
    """Write grids with those alike in a row counted, the first few."""
    runs = [(grid, len(list(alike))) for grid, alike in groupby(shape)]
    shown = [f"{count} x ({grid})" if count > 1 else f"({grid})" for grid, count in runs[:3]]
    return ", ".join([*shown, "..."] if len(runs) > len(shown) else shown)


def launched_courses(launches: pl.DataFrame) -> list[list[Item]]:
    """Return the course of each process, by process id, as the Sanitizer's callbacks saw it.

    Args:
        launches: of a Reconciliation, with outcomes.

    Units: ns on the GPU globaltimer. Assumes: a replay's records are published in the order of its
    nodes.
    """
    items = (
        launches.sort(PROCESS_ID, LAUNCH_INDEX)
        .group_by(
            PROCESS_ID,
            pl.coalesce("first_of_replay", LAUNCH_INDEX).alias("item"),
            maintain_order=True,
        )
        .agg(
            pl.col("is_graph_node").first().alias("is_replay"),
            _grid("grid_dim_x", "grid_dim_y", "grid_dim_z").alias("shape"),
            pl.col("first_globaltimer_ns").min().alias("began"),
            pl.col("last_globaltimer_ns").max().alias("ended"),
            pl.col(STRETCH).first().alias("stretch"),
            pl.col(_DEVICE).first().alias("device"),
        )
    )
    return [_items(part) for part in items.partition_by(PROCESS_ID, maintain_order=True)]


def seen_courses(recording: Recording) -> list[tuple[int, list[Item]]]:
    """Return of each process that ran a target its place among the activities, and its course.

    A replay is what has one correlation id, that of the call that launched the graph.

    Units: ns on CUPTI's clock.
    """
    kernels = wanted_kernels(recording.manifest)
    key = ("context_id", "graph_id", "correlation_id")
    courses = []
    for place, activity in enumerate(recording.activities):
        items = (
            target_runs(activity, kernels)
            .with_row_index("row")
            .group_by(
                *key, pl.when(~pl.col(IN_GRAPH)).then("row").alias("item"), maintain_order=True
            )
            .agg(
                pl.col(IN_GRAPH).first().alias("is_replay"),
                _grid("grid_dim_x", "grid_dim_y", "grid_dim_z").alias("shape"),
                pl.col("gpu_cupti_begin_ns").min().alias("began"),
                pl.col("gpu_cupti_end_ns").max().alias("ended"),
                pl.lit(None, pl.UInt32).alias("stretch"),
                pl.col(_DEVICE).first().alias("device"),
            )
        )
        if not items.is_empty():
            courses.append((place, _items(items)))
    return courses


def _grid(*columns: str) -> pl.Expr:
    return pl.format("{}, {}, {}", *columns)


def _items(frame: pl.DataFrame) -> list[Item]:
    return [
        Item(
            row["is_replay"],
            tuple(row["shape"]),
            row["began"],
            row["ended"],
            row["stretch"],
            row["device"],
        )
        for row in frame.iter_rows(named=True)
    ]
