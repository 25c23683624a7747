"""What a scheduler output changes: whose KV blocks are whose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


class SchedulerChanges:
    """Turns vLLM's scheduler outputs, in their order, into `changes` (docs/format.md).

    Remembers request ids only: a block table is never copied, only what is new in it.
    """

    def __init__(self) -> None:
        self._holding: set[str] = set()
        self._preempted: set[str] = set()  # since they were admitted

    def take(self, output: Any) -> dict[str, list[Any]]:
        """Return what an output changes; fields without a change are left out.

        Args:
            output: vLLM's `SchedulerOutput`.

        Raises:
            AttributeError, TypeError: the output is not as this plug-in knows it.
        """
        if _changes_nothing(output):
            return {}
        finished = self._drop(output.finished_req_ids)
        preempted = self._preempt(getattr(output, "preempted_req_ids", None) or ())
        admitted: list[Any] = []
        resumed: list[Any] = []
        for request in output.scheduled_new_reqs:
            request_id = request.req_id
            line = [request_id, int(request.num_computed_tokens), _plain(request.block_ids)]
            if request_id in self._holding:
                # A streaming session goes on with a whole new table.
                preempted.append(request_id)
                resumed.append(line)
            elif request_id in self._preempted:
                # The second model runner is told of resumed requests as if they were new.
                resumed.append(line)
            else:
                admitted.append(line)
            self._holding.add(request_id)
        cached = output.scheduled_cached_reqs
        if cached.resumed_req_ids:
            self._resume(cached, preempted, resumed)
        changes = {
            "finished": finished,
            "preempted": preempted,
            "admitted": admitted,
            "resumed": resumed,
            "grown": _grown(cached),
            "copied_blocks": [
                [int(copy[0]), int(copy[1])]
                for copy in getattr(output, "kv_cache_block_copies", None) or ()
            ],
        }
        return {name: value for name, value in changes.items() if value}

    def _resume(self, cached: Any, preempted: list[str], resumed: list[Any]) -> None:
        """Add the cached requests that come back from preemption, as the first runner sees it."""
        for index, request_id in enumerate(cached.req_ids):
            if request_id in cached.resumed_req_ids:
                if request_id in self._holding:
                    # Preempted without a word: some versions tell only the second model runner.
                    preempted.append(request_id)
                computed = int(cached.num_computed_tokens[index])
                resumed.append([request_id, computed, _plain(cached.new_block_ids[index] or ())])
                self._holding.add(request_id)

    def _drop(self, request_ids: Iterable[str]) -> list[str]:
        """Forget requests; return those that were known: others ended while they waited."""
        known = [one for one in request_ids if one in self._holding or one in self._preempted]
        self._holding.difference_update(known)
        self._preempted.difference_update(known)
        return sorted(known)

    def _preempt(self, request_ids: Iterable[str]) -> list[str]:
        known = [one for one in request_ids if one in self._holding]
        self._holding.difference_update(known)
        self._preempted.update(known)
        return sorted(known)


def _changes_nothing(output: Any) -> bool:
    """Say whether this is one of the many steps of requests that go on in the blocks they have."""
    cached = output.scheduled_cached_reqs
    return not (
        output.finished_req_ids
        or output.scheduled_new_reqs
        or cached.resumed_req_ids
        or any(cached.new_block_ids)
        or getattr(output, "preempted_req_ids", None)
        or getattr(output, "kv_cache_block_copies", None)
    )


def _grown(cached: Any) -> list[Any]:
    """Return the new blocks of requests that go on."""
    return [
        [request_id, _plain(blocks)]
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids)
        if blocks is not None and any(blocks) and request_id not in cached.resumed_req_ids
    ]


def _plain(block_ids: Iterable[Iterable[int]]) -> list[list[int]]:
    """Return the KV block ids of each group as lists that JSON knows."""
    return [
        group if isinstance(group, list) else [int(kv_block_id) for kv_block_id in group]
        for group in block_ids
    ]
