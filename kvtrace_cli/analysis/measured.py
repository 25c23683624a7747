"""When measured requests were under way: which launches belong to one, or to several at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kvtrace_cli.analysis.steps import STEP_KEY
from kvtrace_cli.dumps.schema import PROCESS_ID, REQUEST_INDEX

# A measured stretch: requests that overlap in time are one. Counted from 0 in the order of time.
STRETCH: Final = "measured_stretch"

_MAX_UINT64: Final = (1 << 64) - 1
_STRETCH_SCHEMA: Final = {"begin": pl.UInt64, "end": pl.UInt64, REQUEST_INDEX: pl.UInt32}


def measured_windows(requests: Sequence[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """Return (request_index, begin, end) of each measured request, ns of CLOCK_MONOTONIC.

    A request that never ended has an end in the far future.
    """
    return [
        (
            request["request_index"],
            request["host_monotonic_begin_ns"],
            request.get("host_monotonic_end_ns") or _MAX_UINT64,
        )
        for request in requests
        if request.get("role") == "measured" and request.get("host_monotonic_begin_ns")
    ]


def measured_stretches(
    requests: Sequence[dict[str, Any]],
) -> list[tuple[int, int, int | None]]:
    """Return (begin, end, request_index if it is one request's) of the stretches, by time.

    Units: ns of CLOCK_MONOTONIC.
    """
    found: list[tuple[int, int, int | None]] = []
    for index, begin, end in sorted(measured_windows(requests), key=lambda window: window[1:]):
        if found and begin < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end), None)
        else:
            found.append((begin, max(begin, end), index))
    return found


@dataclass(frozen=True)
class ForeignStretches:
    """What is measured of processes whose host times are on another clock than the requests'.

    `by_step` has process_id, step_stamp, measured_stretch and request_index of those of their
    steps that had a row of a measured request.
    """

    processes: frozenset[int]
    by_step: pl.DataFrame

    def put_into(self, launches: pl.DataFrame) -> pl.DataFrame:
        """Replace what the clock says of the launches of these processes."""
        if not self.processes:
            return launches
        is_foreign = launches.select(pl.col(PROCESS_ID).is_in(list(self.processes))).to_series()
        found = launches.select(STEP_KEY).join(
            self.by_step, on=STEP_KEY, how="left", maintain_order="left", validate="m:1"
        )
        return launches.with_columns(
            found[name].zip_with(is_foreign, launches[name]) for name in (STRETCH, REQUEST_INDEX)
        )


def with_stretches(
    launches: pl.DataFrame, requests: Sequence[dict[str, Any]], foreign: ForeignStretches
) -> pl.DataFrame:
    """Add to each launch the measured stretch it was submitted in.

    Args:
        launches: with `host_monotonic_ns`, `process_id` and `step_stamp`.
        requests: lines of requests.jsonl.
        foreign: of the processes with another clock.

    Returns:
        `launches` with `measured_stretch` (null outside), and `request_index`: set where exactly
        one measured request was under way in the whole stretch.

    Units: ns of CLOCK_MONOTONIC on both sides; both ends belong to a stretch.
    """
    stretches = pl.DataFrame(measured_stretches(requests), schema=_STRETCH_SCHEMA, orient="row")
    launched = pl.col("host_monotonic_ns")
    # Two stretches may meet in one instant, which is the earlier one's.
    number = stretches["end"].search_sorted(launches["host_monotonic_ns"], side="left")
    found = (
        launches.select("host_monotonic_ns", number.cast(pl.UInt32).alias(STRETCH))
        .join(stretches.with_row_index(STRETCH), on=STRETCH, how="left", maintain_order="left")
        .select(
            pl.when((launched >= pl.col("begin")).fill_null(value=False)).then(name).alias(name)
            for name in (STRETCH, REQUEST_INDEX)
        )
    )
    return foreign.put_into(launches.hstack(found))
