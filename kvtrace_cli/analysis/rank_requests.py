"""Whether data ranks have requests of their own, and call a step without any a dummy step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from kvtrace_cli.analysis.rank_model import Rank, RankDifference, RankRule
from kvtrace_cli.analysis.row_owners import is_engine_own
from kvtrace_cli.dumps.schema import ProcessSteps

_SCHEMA: Final = {
    "request_id": pl.String,
    "order": pl.UInt32,
    "step_stamp": pl.UInt32,
    "begin": pl.UInt64,
    "end": pl.UInt64,
}


def request_differences(
    heads: Sequence[Rank], processes: Mapping[int, ProcessSteps]
) -> Iterator[RankDifference]:
    """Yield the first request of each data rank that another one ran at the same time.

    Args:
        heads: of each data rank its first rank, on one host, whose clock is then the same.
        processes: the plug-in's lines by process.

    The engine's own warm-up requests have the same ids in every rank, so they are left out.
    Units: ns of CLOCK_MONOTONIC, of steps.
    """
    runs = pl.concat(
        [
            pl.DataFrame(schema=_SCHEMA),
            *(_runs(processes[rank.process_id or 0], at) for at, rank in enumerate(heads)),
        ]
    )
    runs = runs.filter(~is_engine_own())
    pairs = (
        runs.join(runs, on="request_id", suffix="_other")
        .filter(
            pl.col("order") > pl.col("order_other"),
            pl.col("begin") <= pl.col("end_other"),
            pl.col("begin_other") <= pl.col("end"),
        )
        .sort("order", "step_stamp")
        .unique("order", keep="first", maintain_order=True)
    )
    for row in pairs.iter_rows(named=True):
        rank, other = heads[row["order"]], heads[row["order_other"]]
        yield RankDifference(
            rule=RankRule.REQUESTS,
            rank=rank.name,
            other=other.name,
            text=(
                f"Request {row['request_id']} ran on {rank.name} from step {row['step_stamp']} on "
                f"while it ran on {other.name}."
            ),
            step_stamp=row["step_stamp"],
            request_id=row["request_id"],
        )


def _runs(process: ProcessSteps, order: int) -> pl.DataFrame:
    """Return when each request ran in a process, from its first step to its last."""
    found: dict[str, list[int]] = {}
    for line in process.lines:
        at = line.get("host_monotonic_ns")
        if line["event"] != "step" or at is None:
            continue
        for request_id, _, _ in line.get("requests") or ():
            found.setdefault(request_id, [line["step_stamp"], at, at])[2] = at
    rows = [(request_id, order, *run) for request_id, run in found.items()]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def unlabelled_idle(
    ranks: Sequence[Rank], processes: Mapping[int, ProcessSteps]
) -> Iterator[RankDifference]:
    """Yield the first step of each rank that has no request and is not called a dummy step."""
    for rank in ranks:
        steps = (
            line["step_stamp"]
            for line in processes[rank.process_id or 0].lines
            if line["event"] == "step" and line["kind"] == "forward" and not line.get("requests")
        )
        stamp = next(steps, None)
        if stamp is not None:
            yield RankDifference(
                rule=RankRule.IDLE,
                rank=rank.name,
                other=rank.name,
                text=f"Step {stamp} of {rank.name} has no request and is not labelled dummy.",
                step_stamp=stamp,
            )
