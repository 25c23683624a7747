"""Per graph exec: nodes, replays, their order, and when their blocks entered."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from kvtrace_cli.analysis.joined import JoinedEvents
from kvtrace_cli.analysis.measured import STRETCH
from kvtrace_cli.analysis.model import Durations, GraphShape
from kvtrace_cli.dumps.schema import LAUNCH_INDEX, LAYER_INDEX

_NS_PER_MS = 1_000_000
_NODE_COLUMNS = (
    LAUNCH_INDEX,
    LAYER_INDEX,
    STRETCH,
    "process_id",
    "context_index",
    "graph_exec",
    "exec_generation",
    "graph_node",
    "grid_id",
    "launch_id",
    "first_of_exec",
    "first_of_replay",
    "is_patched",
    "expected_blocks",
    "matched_blocks",
    "stores",
    "first_sequence",
    "last_sequence",
    "first_store_sequence",
    "last_store_sequence",
    "first_globaltimer_ns",
    "last_globaltimer_ns",
)


def graph_shapes(
    launches: pl.DataFrame, contexts: Sequence[JoinedEvents], *, measured_only: bool = False
) -> tuple[GraphShape, ...]:
    """Describe each graph exec that the launches belong to.

    Args:
        launches: from `with_outcomes`.
        contexts: the joined events.
        measured_only: look only at launches of the measured stretches.

    Returns:
        One GraphShape per graph exec, by first launch. Gaps are taken between replays of one
        measured stretch only, or of none.

    Units: times in ms, both ends on the GPU globaltimer. Source: block-entry times, which say
    when a block began and nothing of how long it ran.
    """
    is_wanted = pl.col("is_graph_node")
    if measured_only:
        is_wanted &= pl.col(STRETCH).is_not_null()
    # There can be a million launches of 50 columns: only what is looked at is copied.
    nodes = launches.lazy().filter(is_wanted).select(_NODE_COLUMNS).collect()
    if nodes.is_empty():
        return ()
    replays = _replays(nodes)
    steps = _timer_steps_backwards(contexts, measured_only=measured_only)
    execs = _execs(nodes).join(_same_nodes(nodes), on="first_of_exec", validate="1:1")
    execs = execs.join(steps, on="first_of_exec", how="left", validate="1:1").sort("first_of_exec")
    return tuple(
        _shape(row, replays.filter(pl.col("first_of_exec") == row["first_of_exec"]))
        for row in execs.iter_rows(named=True)
    )


def _execs(nodes: pl.DataFrame) -> pl.DataFrame:
    return nodes.group_by("first_of_exec").agg(
        pl.col("process_id", "context_index", "graph_exec", "exec_generation").first(),
        (pl.col(LAYER_INDEX).max() + 1).alias("nodes"),
        pl.col("launch_id").min().alias("first_launch_id"),
        pl.col("launch_id").max().alias("last_launch_id"),
        pl.col("expected_blocks").filter("is_patched").sum(),
        pl.col("matched_blocks").sum(),
        pl.col("first_sequence").min(),
        pl.col("last_sequence").max(),
        _is_consecutive().alias("consecutive"),
    )


def _is_consecutive() -> pl.Expr:
    """Say whether no other launch's events lie between an exec's first and last, stores or not."""
    first = pl.min_horizontal(pl.col("first_sequence").min(), pl.col("first_store_sequence").min())
    last = pl.max_horizontal(pl.col("last_sequence").max(), pl.col("last_store_sequence").max())
    events = pl.col("matched_blocks").sum() + pl.col("stores").sum()
    return (last - first + 1 == events).fill_null(value=False)


def _replays(nodes: pl.DataFrame) -> pl.DataFrame:
    """One row per replay: first entry of its first node, last entry of its last node."""
    replays = (
        nodes.sort(LAUNCH_INDEX)
        .group_by("first_of_exec", "first_of_replay", maintain_order=True)
        .agg(
            pl.col(STRETCH).first(),
            pl.col("first_globaltimer_ns").first().cast(pl.Int64).alias("began"),
            pl.col("last_globaltimer_ns").last().cast(pl.Int64).alias("ended"),
        )
    )
    next_began = pl.col("began").shift(-1).over("first_of_exec", STRETCH)
    return replays.with_columns(
        ((pl.col("ended") - pl.col("began")) / _NS_PER_MS).alias("span_ms"),
        ((next_began - pl.col("ended")) / _NS_PER_MS).alias("gap_ms"),
    )


def _same_nodes(nodes: pl.DataFrame) -> pl.DataFrame:
    """Say per exec whether every replay has the same nodes with the same grid ids in one order."""
    replay_count = pl.col("first_of_replay").n_unique()
    per_layer = nodes.group_by("first_of_exec", LAYER_INDEX).agg(
        (pl.struct("graph_node", "grid_id").n_unique() == 1).alias("same"),
        replay_count.alias("layer_replays"),
    )
    replays = nodes.group_by("first_of_exec").agg(replay_count.alias("replays"))
    return (
        per_layer.join(replays, on="first_of_exec", validate="m:1")
        .group_by("first_of_exec")
        .agg(
            (pl.col("same") & (pl.col("layer_replays") == pl.col("replays"))).all(),
            pl.col("replays").first(),
        )
    )


def _timer_steps_backwards(
    contexts: Sequence[JoinedEvents], *, measured_only: bool
) -> pl.DataFrame:
    """Return per exec the steps back from one of its events to the next."""
    counts = [context.counts for context in contexts]
    nothing = pl.DataFrame(schema={"first_of_exec": pl.UInt32, "timer_steps_backwards": pl.UInt32})
    return pl.concat(
        [nothing, *(one.measured_exec_steps if measured_only else one.exec_steps for one in counts)]
    )


def _shape(row: dict[str, Any], replays: pl.DataFrame) -> GraphShape:
    return GraphShape(
        process_id=row["process_id"],
        context_index=row["context_index"],
        graph_exec=row["graph_exec"],
        exec_generation=row["exec_generation"],
        nodes=row["nodes"],
        replays=row["replays"],
        first_launch_id=row["first_launch_id"],
        last_launch_id=row["last_launch_id"],
        same_nodes_in_every_replay=row["same"],
        expected_blocks=row["expected_blocks"],
        matched_blocks=row["matched_blocks"],
        first_sequence=row["first_sequence"],
        last_sequence=row["last_sequence"],
        sequences_consecutive=row["consecutive"],
        timer_steps_backwards=row["timer_steps_backwards"] or 0,
        replay_span=_durations(replays["span_ms"]),
        replay_gap=_durations(replays["gap_ms"]),
    )


def _durations(values: pl.Series) -> Durations | None:
    known = values.drop_nulls()
    if known.is_empty():
        return None
    low, middle, high = (known.quantile(share, "linear") for share in (0.0, 0.5, 1.0))
    return Durations(known.len(), float(low or 0), float(middle or 0), float(high or 0))
