"""The free blocks of device memory, in the order in which vLLM is to overwrite them.

Empty blocks come first. Then come blocks that no node of the knowledge tree owns (answers, and second
copies), oldest first. Blocks that the tree gives up come last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic

from ragcache_engine.tiers.node_record import B, Key


class FreeDeviceBlocks(Generic[B]):
    """Blocks that no request computes with, in three groups: empty, unowned, owned by a node.

    key_of: returns the key of what a block holds; None for an empty block.
    cached_block: returns a block that holds this now, in use or free; None if there is none.
    suspects: numbers of blocks that were in use when documents were forgotten, and may still hold their
      tensors.
    """

    def __init__(self) -> None:
        self.key_of: Callable[[B], Key | None] = lambda block: None
        self.cached_block: Callable[[Key], B | None] = lambda key: None
        self._drop_cached: Callable[[Iterable[B]], None] = lambda blocks: None
        self._numbers: frozenset[int] = frozenset()  # the numbers of all blocks
        self.suspects: set[int] = set()
        self._empty: OrderedDict[int, B] = OrderedDict()
        self._unowned: OrderedDict[int, B] = OrderedDict()
        self._owned: dict[int, B] = {}

    def attach(
        self,
        blocks: Iterable[B],
        key_of: Callable[[B], Key | None],
        cached_block: Callable[[Key], B | None],
        drop_cached: Callable[[Iterable[B]], None],
    ) -> None:
        """Take over all blocks of device memory; all of them are free and empty.

        key_of, cached_block: as above. drop_cached: makes vLLM forget what blocks hold.
        """
        self._empty = OrderedDict((block.block_id, block) for block in blocks)
        self._numbers = frozenset(self._empty)
        self.key_of, self.cached_block, self._drop_cached = key_of, cached_block, drop_cached

    def __len__(self) -> int:
        """Return how many blocks are free."""
        return len(self._empty) + len(self._unowned) + len(self._owned)

    def all(self) -> list[B]:
        """Return all free blocks by group: empty ones, unowned ones, owned ones."""
        return [*self._empty.values(), *self._unowned.values(), *self._owned.values()]

    def is_owned(self, block: B) -> bool:
        """Return whether the block is free and a node owns what it holds."""
        return block.block_id in self._owned

    # -- blocks come back --------------------------------------------------------------------------

    def refuse_suspect(self, block: B, *, has_owner: bool) -> bool:
        """Make vLLM forget a block that comes back, if it may hold forgotten tensors; return whether."""
        if block.block_id not in self.suspects:
            return False
        self.suspects.discard(block.block_id)
        if has_owner:
            return False
        self._drop_cached([block])
        return True

    def add_empty(self, block: B) -> None:
        """Take back a block that holds nothing."""
        self._empty[block.block_id] = block
        self.suspects.discard(block.block_id)

    def add_unowned(self, block: B) -> None:
        """Take back a block whose content no node owns, or that is a second copy."""
        self._unowned[block.block_id] = block

    def add_owned(self, block: B) -> None:
        """Take back a block whose content a node owns."""
        self._owned[block.block_id] = block

    # -- blocks go ---------------------------------------------------------------------------------

    def pop_spares(self, count: int) -> list[B]:
        """Take the next empty and unowned blocks to overwrite; fewer if there are not so many."""
        empty, unowned = self._empty, self._unowned
        taken = [empty.popitem()[1] for _ in range(min(count, len(empty)))]
        missing = min(count - len(taken), len(unowned))
        taken += [unowned.popitem(last=False)[1] for _ in range(missing)]
        return taken

    def has_empty(self) -> bool:
        """Return whether there is an empty block."""
        return bool(self._empty)

    def claim(self, block: B) -> None:
        """Take out a block because a request computes with it now. Raises KeyError if it is not free."""
        for free in (self._owned, self._unowned, self._empty):
            if free.pop(block.block_id, None) is not None:
                return
        raise KeyError(f"block {block.block_id} is not free")

    def disown(self, block: B) -> None:
        """Move a free block from the owned to the unowned ones."""
        self._unowned[block.block_id] = self._owned.pop(block.block_id)

    def empty_owned(self, blocks: Iterable[B]) -> None:
        """Empty blocks that the tree has given up. Those in use by requests come back later."""
        for block in blocks:
            if self._owned.pop(block.block_id, None) is not None:
                self._empty[block.block_id] = block

    def empty_any_owned(self) -> B:
        """Empty the free block that a node came to own last, and return it."""
        _, block = self._owned.popitem()
        self._empty[block.block_id] = block
        return block

    def hide(self, keys: Iterable[Key]) -> None:
        """Make vLLM find nothing under these keys, even in blocks that requests compute with."""
        for key in keys:
            while (block := self.cached_block(key)) is not None:
                self._drop_cached([block])

    def sweep(self) -> None:
        """Make vLLM forget every free block that no node owns.

        A block in use becomes a suspect: if no node owns it when it comes back, it is emptied then.
        """
        self._empty.update(self._unowned)
        self._unowned.clear()
        self.suspects = set(self._numbers - self._empty.keys() - self._owned.keys())
        self._drop_cached(
            [block for block in self._empty.values() if self.key_of(block) is not None]
        )

    def clear(self) -> None:
        """Count all free blocks as empty."""
        self._empty.update(self._unowned)
        self._empty.update(self._owned)
        self._unowned.clear()
        self._owned.clear()
