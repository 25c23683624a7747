"""Which KV block belongs to whom: a pool with a prefix cache, and the requests' block tables."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

# Stands for no block; no request ever gets it.
NULL_BLOCK = 0

# A full block and everything before it: (key of the block before, its tokens), hashed.
PrefixKey = int


class KvBlockPool:
    """Free KV blocks in the order they are given out, and full blocks by what they hold.

    As in vLLM, a freed block keeps its content until it is given out again, so a prefix can be
    found in it; blocks that nothing can be found in are given out first.
    """

    def __init__(self, num_blocks: int) -> None:
        ids = range(NULL_BLOCK + 1, num_blocks)
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(ids)
        self._holders = [0] * num_blocks
        self._by_key: dict[PrefixKey, int] = {}
        self._keys: dict[int, PrefixKey] = {}

    @property
    def free_count(self) -> int:
        """KV blocks that nobody holds."""
        return len(self._free)

    def is_free(self, kv_block_id: int) -> bool:
        """Whether nobody holds this block."""
        return kv_block_id in self._free

    def take(self) -> int:
        """Give out the block that has been free longest, and forget what it held.

        Raises:
            KeyError: none is free.
        """
        kv_block_id, _ = self._free.popitem(last=False)
        key = self._keys.pop(kv_block_id, None)
        if key is not None:
            del self._by_key[key]
        self._holders[kv_block_id] = 1
        return kv_block_id

    def share(self, kv_block_id: int) -> None:
        """Give a block to one more holder; a free one is free no more, and keeps its content."""
        self._free.pop(kv_block_id, None)
        self._holders[kv_block_id] += 1

    def release(self, kv_block_ids: Iterable[int]) -> None:
        """Take blocks back from one holder each, the one to be given out first in front."""
        fresh = []
        for kv_block_id in kv_block_ids:
            self._holders[kv_block_id] -= 1
            if not self._holders[kv_block_id]:
                self._free[kv_block_id] = None
                if kv_block_id not in self._keys:
                    fresh.append(kv_block_id)
        for kv_block_id in reversed(fresh):
            self._free.move_to_end(kv_block_id, last=False)

    def register(self, key: PrefixKey, kv_block_id: int) -> None:
        """Let a full block be found, unless another one is already found for the same prefix."""
        if key not in self._by_key:
            self._by_key[key] = kv_block_id
            self._keys[kv_block_id] = key

    def find(self, key: PrefixKey) -> int | None:
        """Return the block that holds this prefix's last part."""
        return self._by_key.get(key)


class KvBlockManager:
    """The block tables of all requests: `blocks[p // block_size]` holds position p."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool) -> None:
        self._pool = KvBlockPool(num_blocks)
        self._block_size = block_size
        self._prefix_caching = prefix_caching
        self._tables: dict[str, list[int]] = {}
        self._prefix_keys: dict[str, list[PrefixKey]] = {}

    @property
    def free_count(self) -> int:
        """KV blocks that no request holds."""
        return self._pool.free_count

    def positions(self, block_count: int) -> int:
        """Return how many positions so many KV blocks hold."""
        return block_count * self._block_size

    def table(self, request_id: str) -> Sequence[int]:
        """Return a request's KV blocks in the order of its positions; empty if it has none."""
        return self._tables.get(request_id, ())

    def find_prefix(self, request_id: str, token_ids: Sequence[int]) -> list[int]:
        """Return the cached KV blocks that these tokens begin with.

        The last token is never among them: its logits are what the pass is for.
        """
        if not self._prefix_caching:
            return []
        found: list[int] = []
        for key in self._keys_of(request_id, token_ids, len(token_ids) - 1):
            kv_block_id = self._pool.find(key)
            if kv_block_id is None:
                break
            found.append(kv_block_id)
        return found

    def allocate(
        self, request_id: str, token_ids: Sequence[int], count: int, shared: Sequence[int] = ()
    ) -> list[int] | None:
        """Let a request's table hold its first `count` tokens; full blocks can be found then.

        Args:
            request_id: whose table.
            token_ids: all its tokens that are known, at least `count`.
            count: positions from 0 that need a place.
            shared: blocks of others that its table, still empty, begins with.

        Returns:
            The blocks that were appended, the shared ones first, or None if too few are free;
            then nothing has changed.
        """
        held = len(self.table(request_id)) + len(shared)
        wanted = max(0, -(-count // self._block_size) - held)
        if wanted > self._pool.free_count - sum(map(self._pool.is_free, shared)):
            return None
        for kv_block_id in shared:
            self._pool.share(kv_block_id)
        added = [*shared, *(self._pool.take() for _ in range(wanted))]
        table = self._tables.setdefault(request_id, [])
        table += added
        if added or not count % self._block_size:
            self._register_full(request_id, token_ids, count)
        return added

    def free(self, request_id: str) -> None:
        """Take all blocks of a request back; its last ones are given out again first."""
        self._pool.release(reversed(self._tables.pop(request_id, [])))
        self._prefix_keys.pop(request_id, None)

    def _register_full(self, request_id: str, token_ids: Sequence[int], count: int) -> None:
        if not self._prefix_caching:
            return
        keys = self._keys_of(request_id, token_ids, count)
        for key, kv_block_id in zip(keys, self._tables[request_id], strict=False):
            self._pool.register(key, kv_block_id)

    def _keys_of(self, request_id: str, token_ids: Sequence[int], count: int) -> list[PrefixKey]:
        """Return the keys of the full blocks in the first `count` tokens."""
        keys = self._prefix_keys.setdefault(request_id, [])
        size = self._block_size
        full = count // size
        for index in range(len(keys), full):
            before = keys[-1] if keys else None
            keys.append(hash((before, *token_ids[index * size : (index + 1) * size])))
        return keys[:full]
