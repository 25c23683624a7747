"""Counting blocks per launch and per population."""

from collections.abc import Sequence

import polars as pl

from kvtrace_cli.analysis.joined import JoinedEvents
from kvtrace_cli.analysis.launches import IS_MEASURED
from kvtrace_cli.analysis.model import Population, Section
from kvtrace_cli.analysis.outcomes import Outcomes, outcome_columns


def with_outcomes(launches: pl.DataFrame, outcomes: Sequence[Outcomes]) -> pl.DataFrame:
    """Add to each launch what was found for it.

    Args:
        launches: from `launch_frame`.
        outcomes: of the contexts.

    Returns:
        `launches` with `matched_blocks`, `unexpected_blocks` (its key, but a repeated or
        out-of-range block index), and of the matched ones `first_sequence`, `last_sequence`,
        `first_globaltimer_ns`, `last_globaltimer_ns` (null without any); and `stores`, with
        `first_store_sequence` and `last_store_sequence`.

    Units: ns of %globaltimer at block entry.
    """
    return launches.with_columns(outcome_columns(outcomes, launches.height))


def whole_life(launches: pl.DataFrame, contexts: Sequence[JoinedEvents]) -> Section:
    """Count both populations over the whole run, events without a launch included.

    An event without a launch is a graph node's if it carries a stamp or a graph node's grid id.
    """
    strays = sum(context.counts.strays for context in contexts)
    of_graphs = sum(context.counts.graph_strays for context in contexts)
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
