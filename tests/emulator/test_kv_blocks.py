"""The emulated engine's KV blocks: given out, shared, taken back."""

import pytest

from kvtrace_cli.emulator.kv_blocks import KvBlockManager, KvBlockPool


def manager(num_blocks=8, *, prefix_caching=True):
    return KvBlockManager(num_blocks, 4, prefix_caching=prefix_caching)


def admit(blocks, request_id, token_ids):
    """Give a request room for all its tokens; return how many of its blocks were found."""
    found = blocks.find_prefix(request_id, token_ids)
    assert blocks.allocate(request_id, token_ids, len(token_ids), found) is not None
    return len(found)


def test_blocks_come_as_tokens_need_them_and_never_the_null_block():
    blocks = manager()
    tokens = list(range(100))
    assert blocks.allocate("a", tokens, 3) == [1]
    assert blocks.allocate("a", tokens, 4) == []
    assert blocks.allocate("a", tokens, 13) == [2, 3, 4]
    assert list(blocks.table("a")) == [1, 2, 3, 4]
    assert blocks.free_count == 3


def test_too_few_free_blocks_change_nothing():
    blocks = manager(num_blocks=4)
    blocks.allocate("a", [1] * 8, 8)
    assert blocks.allocate("b", [2] * 8, 8) is None
    assert blocks.table("b") == ()
    assert blocks.free_count == 1
    assert blocks.allocate("b", [2] * 8, 4) == [3]


def test_freed_blocks_that_hold_nothing_known_are_given_out_first_the_last_one_in_front():
    blocks = manager(prefix_caching=False)
    blocks.allocate("a", [1] * 12, 12)
    blocks.free("a")
    assert blocks.allocate("b", [2] * 16, 16) == [3, 2, 1, 4]


def test_cached_blocks_are_kept_longest():
    blocks = manager()
    blocks.allocate("a", [1] * 10, 10)
    blocks.free("a")
    # Block 3 was not full; 1 and 2 can be found again and so come last, 2 before 1.
    assert blocks.allocate("b", [2] * 28, 28) == [3, 4, 5, 6, 7, 2, 1]


def test_a_full_block_is_shared_by_who_begins_with_the_same_tokens():
    blocks = manager()
    assert admit(blocks, "a", [1, 2, 3, 4, 5, 6]) == 0
    assert admit(blocks, "b", [1, 2, 3, 4, 9]) == 1
    assert list(blocks.table("a")) == [1, 2]
    assert list(blocks.table("b")) == [1, 3]
    blocks.free("a")
    # "b" still holds block 1.
    assert blocks.allocate("c", [7] * 20, 20) == [2, 4, 5, 6, 7]
    assert blocks.free_count == 0


def test_the_whole_prefix_must_be_the_same():
    blocks = manager()
    admit(blocks, "a", [1, 1, 1, 1, 2, 2, 2, 2, 3])
    assert blocks.find_prefix("b", [9, 9, 9, 9, 2, 2, 2, 2, 3]) == []
    assert blocks.find_prefix("c", [1, 1, 1, 1, 2, 2, 2, 2, 3]) == [1, 2]


def test_the_last_token_is_always_computed():
    blocks = manager()
    admit(blocks, "a", [1] * 8)
    assert blocks.find_prefix("b", [1] * 8) == [1]
    assert blocks.find_prefix("c", [1] * 9) == [1, 2]


def test_a_freed_block_is_found_until_it_is_given_out_again():
    blocks = manager(num_blocks=4)
    admit(blocks, "a", [1] * 5)
    blocks.free("a")
    assert admit(blocks, "b", [1] * 5) == 1
    blocks.free("b")
    admit(blocks, "c", [2] * 12)
    blocks.free("c")
    assert blocks.find_prefix("d", [1] * 5) == []


def test_a_block_that_fills_up_later_can_be_found_then():
    blocks = manager()
    blocks.allocate("a", [1, 2, 3], 3)
    assert blocks.find_prefix("b", [1, 2, 3, 4, 5]) == []
    blocks.allocate("a", [1, 2, 3, 4], 4)
    assert blocks.find_prefix("c", [1, 2, 3, 4, 5]) == [1]


def test_found_blocks_that_are_free_count_as_taken():
    blocks = manager(num_blocks=4)
    admit(blocks, "a", [1] * 9)
    blocks.free("a")
    blocks.allocate("b", [2], 1)
    found = blocks.find_prefix("c", [1] * 13)
    assert found == [1, 2]
    # Two of the three blocks are found and free, the third belongs to "b".
    assert blocks.allocate("c", [1] * 13, 13, found) is None
    assert blocks.allocate("c", [1] * 13, 8, found) == [1, 2]


def test_without_prefix_caching_nothing_is_found():
    blocks = manager(prefix_caching=False)
    admit(blocks, "a", [1] * 8)
    assert blocks.find_prefix("b", [1] * 9) == []


def test_an_empty_pool_gives_nothing_out():
    pool = KvBlockPool(2)
    assert pool.take() == 1
    with pytest.raises(KeyError):
        pool.take()
