"""Classes of bugs that vLLM had, to be found: each makes one thing of SlotMapper wrong.

They strike in passes with a request for more than one token, as the warm-up request is not; in
passes without a request, always.
"""

from collections.abc import Sequence

from kvtrace_cli.emulator.faults import Fault
from kvtrace_cli.emulator.kv_cache import KvCache
from kvtrace_cli.emulator.scheduler import ScheduledRequest
from kvtrace_cli.emulator.slot_mapper import NO_SLOT, SlotMapper, owned_slots

_ODD_LAYER = 7


def slot_mapper(fault: Fault, cache: KvCache) -> SlotMapper:
    """Return the mapper that has this fault; for a fault of another kind, the right one."""
    return _MAPPERS.get(fault, SlotMapper)(cache)


def _is_struck(scheduled: Sequence[ScheduledRequest]) -> bool:
    return any(one.request.max_tokens > 1 for one in scheduled)


def _odd_layer(cache: KvCache) -> int:
    return cache.layer_indices[min(_ODD_LAYER, cache.layers - 1)]


def _rows(scheduled: Sequence[ScheduledRequest]) -> int:
    return sum(one.rows for one in scheduled)


class _DummySlotZero(SlotMapper):
    runs_idle_pass = True

    def dummy_slots(self, rows: int) -> list[int]:
        return [0] * rows


class _StalePaddingSlots(SlotMapper):
    """The buffer of slots is not cleared behind the rows of the pass after one with a prompt."""

    def __init__(self, cache: KvCache) -> None:
        super().__init__(cache)
        self._before: list[int] = []

    def slots(self, scheduled: Sequence[ScheduledRequest], padded_rows: int) -> list[int]:
        slots = super().slots(scheduled, padded_rows)
        rows = _rows(scheduled)
        if _is_struck(scheduled):
            stale = self._before[rows:padded_rows]
            slots[rows : rows + len(stale)] = stale
        has_prompt = any(one.rows > 1 for one in scheduled)
        self._before = slots if has_prompt else []
        return slots


class _PaddingLastSlot(SlotMapper):
    """-1 is taken as an index: in Python and in a tensor it is the last one."""

    def slots(self, scheduled: Sequence[ScheduledRequest], padded_rows: int) -> list[int]:
        slots = super().slots(scheduled, padded_rows)
        if not _is_struck(scheduled):
            return slots
        return [slot if slot != NO_SLOT else self._cache.slots - 1 for slot in slots]


class _FreedBlockReused(SlotMapper):
    """Once, a new request gets the block that another one writes in this pass and the next."""

    def __init__(self, cache: KvCache) -> None:
        super().__init__(cache)
        self._has_struck = False

    def choose_shared(
        self, scheduled: Sequence[ScheduledRequest], cached: Sequence[int]
    ) -> Sequence[int]:
        writing = [
            one
            for one in scheduled
            if one.request.max_tokens > 1
            and (one.first_position + one.rows) % self._cache.block_size
        ]
        if self._has_struck or not writing:
            return cached
        self._has_struck = True
        return [*cached, writing[0].kv_block_ids[-1]]


class _BlockSizeMixup(SlotMapper):
    """The kernel's side takes blocks for twice as large as the scheduler does."""

    def slots(self, scheduled: Sequence[ScheduledRequest], padded_rows: int) -> list[int]:
        slots = super().slots(scheduled, padded_rows)
        if _is_struck(scheduled):
            slots[: _rows(scheduled)] = owned_slots(scheduled, 2 * self._cache.block_size)
        return slots


class _SkippedLayer(SlotMapper):
    """In one decode pass, one layer writes nothing."""

    def __init__(self, cache: KvCache) -> None:
        super().__init__(cache)
        self.odd_layer = _odd_layer(cache)
        self._has_struck = False

    def odd_layer_slots(self, scheduled: Sequence[ScheduledRequest], slots: list[int]) -> list[int]:
        is_decode = all(one.rows == 1 for one in scheduled)
        if self._has_struck or not is_decode or not _is_struck(scheduled):
            return slots
        self._has_struck = True
        return [NO_SLOT] * len(slots)


class _ShiftedLayer(SlotMapper):
    """One layer writes each row one slot further."""

    def __init__(self, cache: KvCache) -> None:
        super().__init__(cache)
        self.odd_layer = _odd_layer(cache)

    def odd_layer_slots(self, scheduled: Sequence[ScheduledRequest], slots: list[int]) -> list[int]:
        if not _is_struck(scheduled):
            return slots
        return [slot + 1 if slot != NO_SLOT else NO_SLOT for slot in slots]


class _ShiftedSlots(SlotMapper):
    """All layers write each row one slot further."""

    def slots(self, scheduled: Sequence[ScheduledRequest], padded_rows: int) -> list[int]:
        slots = super().slots(scheduled, padded_rows)
        if not _is_struck(scheduled):
            return slots
        return [slot + 1 if slot != NO_SLOT else NO_SLOT for slot in slots]


class _UnlaunchedLayer(SlotMapper):
    """One layer's kernel is not launched for prompts."""

    def unlaunched_layer(self, scheduled: Sequence[ScheduledRequest]) -> int | None:
        return _odd_layer(self._cache) if _is_struck(scheduled) else None


_MAPPERS: dict[Fault, type[SlotMapper]] = {
    Fault.DUMMY_SLOT_ZERO: _DummySlotZero,
    Fault.STALE_PADDING_SLOTS: _StalePaddingSlots,
    Fault.PADDING_LAST_SLOT: _PaddingLastSlot,
    Fault.FREED_BLOCK_REUSED: _FreedBlockReused,
    Fault.BLOCK_SIZE_MIXUP: _BlockSizeMixup,
    Fault.SKIPPED_LAYER: _SkippedLayer,
    Fault.SHIFTED_LAYER: _ShiftedLayer,
    Fault.SHIFTED_SLOTS: _ShiftedSlots,
    Fault.UNLAUNCHED_LAYER: _UnlaunchedLayer,
}
