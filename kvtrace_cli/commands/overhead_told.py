"""A measurement of the overhead -> the samples to analyse, and what limits what they say."""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from kvtrace_cli.analysis.overhead_model import Overhead, Sample
from kvtrace_cli.capture.overhead_file import Measurement

# Above it the client may be what a server waits for.
_BUSY_CLIENT: Final = 0.7
_FEW_STARTS: Final = 2


def samples_of(measured: Measurement) -> list[Sample]:
    """Return every figure of every round and server; one that is 0 can be no part of a ratio."""
    of_rounds = (
        Sample(figure, one.arm, one.start, one.group, one.round, one.begin_s, value)
        for one in measured.rounds
        for figure, value in one.figures().items()
    )
    of_servers = (
        Sample(figure, one.arm, one.start, one.group, 0, 0.0, value)
        for one in measured.servers
        for figure, value in one.figures().items()
    )
    return [sample for sample in chain(of_rounds, of_servers) if sample.value > 0]


def notes_of(measured: Measurement, found: Overhead) -> Iterator[str]:
    """Yield what a reader must know beside the figures."""
    yield from _of_conditions(measured)
    yield from _of_judging(measured, found)
    yield from _of_drops(measured)
    yield from _of_client(measured)


def _of_conditions(measured: Measurement) -> Iterator[str]:
    if measured.setup.emulated:
        yield "Emulated: these are the emulator's times and say nothing of any GPU."
    if measured.ended != "complete":
        yield f"Not complete ({measured.ended}): {measured.error}"
    for arm, why in measured.skipped.items():
        yield f"Arm {arm} was left out: {why}."
    at_once = measured.setup.side_by_side
    yield (
        "One server on the card at a time."
        if at_once == 1
        else f"Up to {at_once} servers on the card at once, started together and asked in turn."
    )


def _of_judging(measured: Measurement, found: Overhead) -> Iterator[str]:
    if len({one.start for one in measured.rounds}) < _FEW_STARTS:
        yield "One start cannot tell how starts differ: no interval is known."
    if not found.bars:
        yield "No bar is judged: that takes the arm blocks on a real engine."
    if not found.drifts:
        yield "No drift over time within a start was significant at 1 %; none was taken out."
    zeros = sum(value <= 0 for one in measured.rounds for value in one.figures().values())
    if zeros:
        yield f"{zeros} figures of a round were 0 and were left out."


def _of_drops(measured: Measurement) -> Iterator[str]:
    for server in measured.servers:
        if server.dropped:
            yield (
                f"Start {server.start}, arm {server.arm}: {server.dropped:,} records were dropped, "
                "so less was recorded than the arm stands for."
            )


def _of_client(measured: Measurement) -> Iterator[str]:
    shares: dict[int, float] = {}
    for batch in chain.from_iterable(one.batches for one in measured.rounds):
        shares[batch.size] = max(shares.get(batch.size, 0.0), batch.client_cpu_share)
    for size, share in shares.items():
        if share > _BUSY_CLIENT:
            yield (
                f"Batch {size}: the client that took the times kept a processor busy for up to "
                f"{share:.0%} of them, so it may hide what the servers cost."
            )
