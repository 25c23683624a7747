"""Which KV slot each row of a pass writes: the scheduler's answer, told to the kernels."""

from collections.abc import Sequence

from kvtrace_cli.emulator.kv_cache import KvCache
from kvtrace_cli.emulator.scheduler import ScheduledRequest

# A row that writes nothing.
NO_SLOT = -1


def owned_slots(scheduled: Sequence[ScheduledRequest], block_size: int) -> list[int]:
    """Return the slot of each row that a request owns, in row order, see docs/format.md."""
    slots: list[int] = []
    for one in scheduled:
        table = one.kv_block_ids
        positions = range(one.first_position, one.first_position + one.rows)
        slots += [
            table[position // block_size] * block_size + position % block_size
            for position in positions
        ]
    return slots


class SlotMapper:
    """The slots as they should be; slot_faults.py has the ways to get them wrong."""

    # The layer whose slots are not those of all the others.
    odd_layer: int | None = None
    # Whether a pass of no request follows when all requests have ended, as on an idle rank.
    runs_idle_pass = False

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache

    def slots(self, scheduled: Sequence[ScheduledRequest], padded_rows: int) -> list[int]:
        """Return the slots of a pass, one a row."""
        slots = owned_slots(scheduled, self._cache.block_size)
        return slots + [NO_SLOT] * (padded_rows - len(slots))

    def odd_layer_slots(
        self,
        scheduled: Sequence[ScheduledRequest],  # noqa: ARG002  for who needs it
        slots: list[int],
    ) -> list[int]:
        """Return what the odd layer gets in place of a pass's `slots`."""
        return slots

    def unlaunched_layer(
        self,
        scheduled: Sequence[ScheduledRequest],  # noqa: ARG002  for who needs it
    ) -> int | None:
        """Return the layer whose kernel a pass without a graph leaves out."""
        return None

    def dummy_slots(self, rows: int) -> list[int]:
        """Return the slots of a pass that no request is in."""
        return [NO_SLOT] * rows

    def choose_shared(
        self,
        scheduled: Sequence[ScheduledRequest],  # noqa: ARG002  for who needs it
        cached: Sequence[int],
    ) -> Sequence[int]:
        """Return the KV blocks of others that a new request's table begins with."""
        return cached
