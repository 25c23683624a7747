"""Which launches belong to measured requests, where clocks cannot tell: by the engine's steps.

The host times of a process on another host are compared with nothing outside of it, so what was
under way when it launched follows from the requests of the launch's step.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from kvtrace_cli.analysis.attribution import our_request_index, sent_request_ids
from kvtrace_cli.analysis.measured import (
    STRETCH,
    ForeignStretches,
    measured_stretches,
    measured_windows,
)
from kvtrace_cli.analysis.steps import STEP_STAMP
from kvtrace_cli.dumps.schema import PROCESS_ID, REQUEST_INDEX, Recording

_OTHER_HOST: Final = "other host"
_SCHEMA: Final = {
    PROCESS_ID: pl.UInt32,
    STEP_STAMP: pl.UInt32,
    STRETCH: pl.UInt32,
    REQUEST_INDEX: pl.UInt32,
}


def foreign_processes(manifest: Mapping[str, Any]) -> frozenset[int]:
    """Return the processes whose CLOCK_MONOTONIC is another than that of requests.jsonl."""
    ranks = manifest.get("ranks")
    found = (one for one in (ranks if isinstance(ranks, list) else ()) if isinstance(one, dict))
    return frozenset(
        one[PROCESS_ID]
        for one in found
        if one.get("clock") == _OTHER_HOST and isinstance(one.get(PROCESS_ID), int)
    )


def foreign_stretches(recording: Recording) -> ForeignStretches:
    """Return the measured stretch of each step of the processes with another clock."""
    foreign = foreign_processes(recording.manifest)
    rows = _rows(recording, foreign) if foreign else ()
    return ForeignStretches(foreign, pl.DataFrame(list(rows), schema=_SCHEMA, orient="row"))


def _rows(
    recording: Recording, foreign: frozenset[int]
) -> Iterator[tuple[int, int, int, int | None]]:
    sent = sent_request_ids(recording.requests)
    stretches = measured_stretches(recording.requests)
    of_request = {
        index: next(number for number, one in enumerate(stretches) if one[0] <= begin <= one[1])
        for index, begin, _ in measured_windows(recording.requests)
    }
    known: dict[str, int | None] = {}
    for process in recording.steps:
        for line in process.lines if process.process_id in foreign else ():
            for request_id, _, _ in line.get("requests") or ():
                if request_id not in known:
                    index = our_request_index(request_id, sent)
                    known[request_id] = None if index is None else of_request.get(index)
                stretch = known[request_id]
                if stretch is not None:
                    yield process.process_id, line[STEP_STAMP], stretch, stretches[stretch][2]
                    break
