"""The pool counts who uses each block, and finds the blocks of a prompt by their keys."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ragcache_engine.simulation.block_pool import Block, BlockPool


class OldestFirst:
    """The block that has been free for longest is overwritten next."""

    def __init__(self) -> None:
        self.free: list[Block] = []

    def take(self, count: int) -> list[Block]:
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def return_blocks(self, blocks: Iterable[Block]) -> None:
        self.free += blocks

    def claim(self, block: Block) -> None:
        self.free.remove(block)

    def free_blocks(self) -> list[Block]:
        return self.free


def pool_of(count: int) -> BlockPool:
    order = OldestFirst()
    pool = BlockPool(count, order)
    order.free = list(pool.blocks)
    return pool


def computed(pool: BlockPool, *keys: bytes) -> list[Block]:
    """Blocks just computed, with these contents."""
    blocks = pool.take(len(keys))
    for block, key in zip(blocks, keys, strict=True):
        block.holds = key
        pool.cache(block, key)
    return blocks


def test_a_prompt_finds_its_longest_cached_beginning():
    pool = pool_of(4)
    blocks = computed(pool, b"a", b"b")
    assert pool.longest_prefix([b"a", b"b", b"c"]) == blocks
    assert pool.longest_prefix([b"b"]) == blocks[1:]
    assert pool.longest_prefix([b"c", b"a"]) == []
    pool.check()


def test_a_block_is_free_when_its_last_user_releases_it():
    pool = pool_of(3)
    blocks = computed(pool, b"a")
    pool.use(blocks)
    pool.release(blocks)
    assert pool.free_count == 2
    pool.release(blocks)
    assert pool.free_count == 3
    pool.check()


def test_a_free_block_is_found_until_it_is_overwritten():
    pool = pool_of(2)
    pool.release(computed(pool, b"a"))
    assert pool.find(b"a")
    pool.take(2)
    assert not pool.find(b"a")
    pool.check()


def test_two_blocks_with_one_content_are_found_as_long_as_one_is_left():
    pool = pool_of(4)
    first, second = computed(pool, b"a"), computed(pool, b"a")
    assert pool.cached_count == 1
    pool.uncache(first)
    assert pool.longest_prefix([b"a"]) == second
    pool.check()
    pool.uncache(second)
    assert not pool.find(b"a")
    pool.check()


def test_blocks_without_a_key_and_the_end_of_a_prompt_are_freed_first():
    pool = pool_of(3)
    first, second = computed(pool, b"a", b"b")
    rest = pool.take(1)
    pool.release([first, second, *rest])
    assert pool.take(3) == [*rest, second, first]


def test_more_blocks_than_are_free_are_not_given():
    pool = pool_of(2)
    with pytest.raises(ValueError, match="3 blocks asked for, 2 are free"):
        pool.take(3)
    assert pool.free_count == 2


def test_a_block_found_for_what_it_does_not_hold_is_an_error():
    pool = pool_of(2)
    (block,) = computed(pool, b"a")
    block.holds = b"b"
    with pytest.raises(AssertionError, match="another's content"):
        pool.check()
