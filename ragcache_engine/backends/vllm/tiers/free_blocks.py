"""Replaces vLLM's queue of free blocks: the knowledge tree decides which one is overwritten next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from ragcache_engine.tiers.device_tier import DeviceTier


class FreeBlocks(FreeKVCacheBlockQueue):
    """Takes the place of a block pool's `free_block_queue`, with every method that the pool calls.

    It gives blocks out in the order of the knowledge tree; vLLM's own queue is LRU.
    """

    def __init__(self, device: DeviceTier[KVCacheBlock]) -> None:
        # The parent's linked list stays empty: the device tier keeps the blocks.
        super().__init__([])
        self._device = device
        self.num_free_blocks = len(device)

    def popleft(self) -> KVCacheBlock:
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        if n > self.num_free_blocks:
            raise ValueError(f"{n} blocks asked for, {self.num_free_blocks} are free")
        self.num_free_blocks -= n
        return self._device.take(n)

    def remove(self, block: KVCacheBlock) -> None:
        self._device.claim(block)
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        self._put_back([block])

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        self._put_back(blocks)

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        self._put_back(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        return self._device.free_blocks()

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        blocks = iter(self.get_all_free_blocks())
        if cursor is not None:
            for block in blocks:
                if block is cursor:
                    break
        return blocks

    def _put_back(self, blocks: Iterable[KVCacheBlock]) -> None:
        returned = list(blocks)
        self._device.return_blocks(returned)
        self.num_free_blocks += len(returned)
