"""Counting blocks per launch and per population."""

import polars as pl

from kvtrace_cli.analysis.model import Population, Section
from kvtrace_cli.dumps.schema import LAUNCH_INDEX, REQUEST_INDEX, SEQUENCE


def with_outcomes(launches: pl.DataFrame, block_events: pl.DataFrame) -> pl.DataFrame:
    """Add to each launch what was found for it.

    Args:
        launches: from `launch_frame`.
        block_events: events of all contexts, from `match_blocks`.

    Returns:
        `launches` with `matched_blocks`, `unexpected_blocks` (its key, but a repeated or
        out-of-range block index), and of the matched ones `first_sequence`, `last_sequence`,
        `first_globaltimer_ns`, `last_globaltimer_ns` (null without any).

    Units: ns of %globaltimer at block entry.
    """
    matched = pl.col("matched")
    timer = pl.col("gpu_globaltimer_ns")
    outcomes = (
        block_events.lazy()
        .filter(pl.col(LAUNCH_INDEX).is_not_null())
        .group_by(LAUNCH_INDEX)
        .agg(
            matched.sum().cast(pl.UInt64).alias("matched_blocks"),
            matched.not_().sum().cast(pl.UInt64).alias("unexpected_blocks"),
            pl.col(SEQUENCE).filter(matched).min().alias("first_sequence"),
            pl.col(SEQUENCE).filter(matched).max().alias("last_sequence"),
            timer.filter(matched).min().alias("first_globaltimer_ns"),
            timer.filter(matched).max().alias("last_globaltimer_ns"),
        )
        .collect()
    )
    return launches.join(
        outcomes, on=LAUNCH_INDEX, how="left", validate="1:1", maintain_order="left"
    ).with_columns(pl.col("matched_blocks", "unexpected_blocks").fill_null(0))


def whole_life(launches: pl.DataFrame, block_events: pl.DataFrame) -> Section:
    """Count both populations over the whole run, events without a launch included.

    An event without a launch is a graph node's if it carries a stamp or a graph node's grid id.
    """
    strays = block_events.filter(pl.col(LAUNCH_INDEX).is_null())
    node_grids = launches.filter("is_graph_node").select("process_id", "grid_id").unique()
    of_graphs = strays.filter(pl.col("launch_stamp") != 0).height
    unstamped = strays.filter(pl.col("launch_stamp") == 0)
    of_graphs += unstamped.join(node_grids, on=["process_id", "grid_id"], how="semi").height
    return Section(
        _population(launches.filter("is_graph_node"), of_graphs),
        _population(launches.filter(~pl.col("is_graph_node")), strays.height - of_graphs),
    )


def measured(launches: pl.DataFrame) -> Section:
    """Count both populations of the launches submitted during the measured requests.

    Events without a launch have no host time, so they appear in the whole life only.
    """
    inside = launches.filter(pl.col(REQUEST_INDEX).is_not_null())
    return Section(
        _population(inside.filter("is_graph_node")),
        _population(inside.filter(~pl.col("is_graph_node"))),
    )


def _population(launches: pl.DataFrame, strays: int = 0) -> Population:
    patched = launches.filter("is_patched")
    unpatched = launches.filter(~pl.col("is_patched"))
    return Population(
        launches=launches.height,
        expected_blocks=_total(patched, "expected_blocks"),
        matched_blocks=_total(patched, "matched_blocks"),
        unexpected_blocks=_total(patched, "unexpected_blocks") + strays,
        launches_before_patching=unpatched.height,
        blocks_before_patching=_total(unpatched, "expected_blocks"),
    )


def _total(launches: pl.DataFrame, column: str) -> int:
    return int(launches[column].sum())
