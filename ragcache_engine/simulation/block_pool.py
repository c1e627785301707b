"""The blocks of simulated device memory: how many requests use each, and which prefix it holds.

The pool does what vLLM's BlockPool does. An EvictionOrder decides which free block to overwrite next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ragcache_engine.tiers.node_record import Key


class Block:
    """One block of device memory.

    key: the key by which the prefix index finds the block; None if the index does not have it.
    holds: the key of the tensors that the block really holds; tests compare it with `key`.
    users: how many requests compute with the block now.
    """

    __slots__ = ("block_id", "holds", "key", "users")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.key: Key | None = None
        self.holds: Key | None = None
        self.users = 0


class EvictionOrder(Protocol):
    """Keeps the blocks that no request uses, and says which of them to overwrite next."""

    def take(self, count: int) -> list[Block]: ...

    def return_blocks(self, blocks: Iterable[Block]) -> None: ...

    def claim(self, block: Block) -> None: ...

    def free_blocks(self) -> list[Block]: ...


class BlockPool:
    """A pool of `count` blocks, all of them free at first.

    order: holds the free blocks. The caller hands all blocks to it before the first call here.
    """

    def __init__(self, count: int, order: EvictionOrder) -> None:
        self.blocks = [Block(number) for number in range(count)]
        self.free_count = count
        self._order = order
        self._found: dict[Key, Block] = {}
        # More blocks with a key that the index has: two requests computed the same tokens at once.
        self._copies: dict[Key, dict[int, Block]] = {}

    @property
    def cached_count(self) -> int:
        """How many different blocks the prefix index finds."""
        return len(self._found)

    def find(self, key: Key) -> Block | None:
        return self._found.get(key)

    def longest_prefix(self, keys: Iterable[Key]) -> list[Block]:
        """Return the blocks of the longest run of keys, from the first, that the device holds."""
        found, prefix = self._found, []
        for key in keys:
            block = found.get(key)
            if block is None:
                break
            prefix.append(block)
        return prefix

    def use(self, blocks: Iterable[Block]) -> None:
        """Note that one more request computes with each of these blocks."""
        claim = self._order.claim
        for block in blocks:
            if not block.users:
                claim(block)
                self.free_count -= 1
            block.users += 1

    def take(self, count: int) -> list[Block]:
        """Return free blocks for one request to overwrite. Raises ValueError if there are fewer."""
        if count > self.free_count:
            raise ValueError(f"{count} blocks asked for, {self.free_count} are free")
        self.free_count -= count
        taken = self._order.take(count)
        for block in taken:
            if block.key is not None:
                self._lose(block)
            block.users, block.holds = 1, None
        return taken

    def release(self, blocks: Sequence[Block]) -> None:
        """Note that one request has stopped computing with each of these blocks, given in prompt order.

        Blocks that no request uses any more become free: first those without a key, then the others, in
        both groups from the last of the prompt to the first, as vLLM frees them.
        """
        unused = []
        for block in reversed(blocks):
            block.users -= 1
            if not block.users:
                unused.append(block)
        self.free_count += len(unused)
        for group in (
            [block for block in unused if block.key is None],
            [block for block in unused if block.key is not None],
        ):
            if group:
                self._order.return_blocks(group)

    def cache(self, block: Block, key: Key) -> None:
        """Make a block that was just computed or loaded findable by its key."""
        if block.key is not None:
            return
        block.key = key
        if key in self._found:
            self._copies.setdefault(key, {})[block.block_id] = block
        else:
            self._found[key] = block

    def uncache(self, blocks: Iterable[Block]) -> None:
        """Make blocks unfindable."""
        for block in blocks:
            if block.key is not None:
                self._lose(block)

    def clear(self) -> None:
        """Make every block unfindable."""
        self._found.clear()
        self._copies.clear()
        for block in self.blocks:
            block.key = None

    def check(self) -> None:
        """Raise AssertionError unless books and contents agree. For tests: O(blocks)."""
        free = [block.block_id for block in self._order.free_blocks()]
        assert len(free) == len(set(free)) == self.free_count
        assert set(free) == {block.block_id for block in self.blocks if not block.users}
        cached = [block for block in self.blocks if block.key is not None]
        for block in cached:
            assert block.holds == block.key, (
                f"block {block.block_id} is found for another's content"
            )
        assert self._found.keys() == {block.key for block in cached}
        listed = [*self._found.values()]
        listed += [block for copies in self._copies.values() for block in copies.values()]
        assert {block.block_id for block in listed} == {block.block_id for block in cached}
        assert len(listed) == len(cached)

    def _lose(self, block: Block) -> None:
        key = block.key
        assert key is not None
        block.key = None
        copies = self._copies.get(key)
        if copies is None:
            del self._found[key]
            return
        if self._found[key] is block:
            self._found[key] = copies.pop(next(iter(copies)))
        else:
            del copies[block.block_id]
        if not copies:
            del self._copies[key]
