"""Counting blocks per launch and per population."""

from collections.abc import Sequence
from itertools import chain

import polars as pl

from kvtrace_cli.analysis.joined import JoinedEvents, slices, store_slices
from kvtrace_cli.analysis.launches import IS_MEASURED
from kvtrace_cli.analysis.model import Population, Section
from kvtrace_cli.dumps.schema import LAUNCH_INDEX, SEQUENCE


def with_outcomes(launches: pl.DataFrame, contexts: Sequence[JoinedEvents]) -> pl.DataFrame:
    """Add to each launch what was found for it.

    Args:
        launches: from `launch_frame`.
        contexts: the joined events.

    Returns:
        `launches` with `matched_blocks`, `unexpected_blocks` (its key, but a repeated or
        out-of-range block index), and of the matched ones `first_sequence`, `last_sequence`,
        `first_globaltimer_ns`, `last_globaltimer_ns` (null without any); and `stores`, with
        `first_store_sequence` and `last_store_sequence`.

    Units: ns of %globaltimer at block entry.
    """
    nothing = JoinedEvents.nothing().frame()
    parts = pl.concat(_outcomes(part) for part in chain([nothing], slices(contexts)))
    outcomes = parts.group_by(LAUNCH_INDEX).agg(
        pl.col("matched_blocks", "unexpected_blocks").sum(),
        pl.col("first_sequence", "first_globaltimer_ns").min(),
        pl.col("last_sequence", "last_globaltimer_ns").max(),
    )
    launches = launches.join(
        outcomes, on=LAUNCH_INDEX, how="left", validate="1:1", maintain_order="left"
    ).with_columns(pl.col("matched_blocks", "unexpected_blocks").fill_null(0))
    stores = pl.concat(_stores(part) for part in chain([nothing], store_slices(contexts)))
    if stores.is_empty():
        # A column of one value takes no memory, one that a join makes does.
        return launches.with_columns(
            pl.lit(None if name.endswith("sequence") else 0, dtype).alias(name)
            for name, dtype in stores.schema.items()
            if name != LAUNCH_INDEX
        )
    stores = stores.group_by(LAUNCH_INDEX).agg(
        pl.col("stores").sum(),
        pl.col("first_store_sequence").min(),
        pl.col("last_store_sequence").max(),
    )
    return launches.join(
        stores, on=LAUNCH_INDEX, how="left", validate="1:1", maintain_order="left"
    ).with_columns(pl.col("stores").fill_null(0))


def _stores(stores: pl.DataFrame) -> pl.DataFrame:
    return (
        stores.filter("matched")
        .group_by(LAUNCH_INDEX)
        .agg(
            pl.len().cast(pl.UInt64).alias("stores"),
            pl.col(SEQUENCE).min().alias("first_store_sequence"),
            pl.col(SEQUENCE).max().alias("last_store_sequence"),
        )
    )


def _outcomes(block_events: pl.DataFrame) -> pl.DataFrame:
    matched = pl.col("matched")
    timer = pl.col("gpu_globaltimer_ns")
    return (
        block_events.filter(pl.col(LAUNCH_INDEX).is_not_null())
        .group_by(LAUNCH_INDEX)
        .agg(
            matched.sum().cast(pl.UInt64).alias("matched_blocks"),
            matched.not_().sum().cast(pl.UInt64).alias("unexpected_blocks"),
            pl.col(SEQUENCE).filter(matched).min().alias("first_sequence"),
            pl.col(SEQUENCE).filter(matched).max().alias("last_sequence"),
            timer.filter(matched).min().alias("first_globaltimer_ns"),
            timer.filter(matched).max().alias("last_globaltimer_ns"),
        )
    )


def whole_life(launches: pl.DataFrame, contexts: Sequence[JoinedEvents]) -> Section:
    """Count both populations over the whole run, events without a launch included.

    An event without a launch is a graph node's if it carries a stamp or a graph node's grid id.
    """
    node_grids = launches.filter("is_graph_node").select("process_id", "grid_id").unique()
    strays, of_graphs = 0, 0
    for part in slices(contexts):
        strange = part.filter(pl.col(LAUNCH_INDEX).is_null())
        unstamped = strange.filter(pl.col("launch_stamp") == 0)
        strays += strange.height
        of_graphs += strange.height - unstamped.height
        of_graphs += unstamped.join(node_grids, on=["process_id", "grid_id"], how="semi").height
    return Section(
        _population(launches.filter("is_graph_node"), of_graphs),
        _population(launches.filter(~pl.col("is_graph_node")), strays - of_graphs),
    )


def measured(launches: pl.DataFrame) -> Section:
    """Count both populations of the launches submitted during the measured requests.

    Events without a launch have no host time, so they appear in the whole life only.
    """
    inside = launches.filter(IS_MEASURED)
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
