"""Finds out where, in a block of vLLM's cache, each number of a key and of a value lies.

Each attention kernel packs blocks in its own way: AVX stores keys transposed, AMX in tiles, GPUs one
token after the other. vLLM writes by slot, and has no public way to read by slot. So the kernel's own
write is asked: it writes patterns into a small cache, and where they turn up tells the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


class UnknownLayout(Exception):
    """A cache does not keep keys and values as they are, one number each."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where the numbers of one block lie, counted in elements from the block's beginning.

    keys, values: int64, shape (block_tokens, kv_heads * head_size): the places of each token's numbers.
    block_stride: elements from one block to the next. block_tokens: tokens in a block.
    """

    keys: torch.Tensor
    values: torch.Tensor
    block_stride: int
    block_tokens: int

    def key_places(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the places of the keys of these slots in a whole cache. slots: int64, shape (n,)."""
        return self._places(self.keys, slots)

    def value_places(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the places of the values of these slots in a whole cache. slots: int64, shape (n,)."""
        return self._places(self.values, slots)

    def _places(self, within: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        starts = slots.div(self.block_tokens, rounding_mode="floor") * self.block_stride
        return within[slots % self.block_tokens] + starts[:, None]


def find_slots(blocks: Sequence[int], start: int, tokens: int, block_tokens: int) -> torch.Tensor:
    """Return the slots of the positions [start, start + tokens) of a request; int64, on the CPU.

    blocks: the request's blocks, in order.
    """
    at = torch.arange(start, start + tokens)
    table = torch.tensor(blocks, dtype=torch.int64)
    return table[at // block_tokens] * block_tokens + at % block_tokens


def flatten_cache(cache: torch.Tensor) -> torch.Tensor:
    """Return a view of everything from a cache's first element to its last, in memory's order."""
    last = sum(
        (size - 1) * stride for size, stride in zip(cache.shape, cache.stride(), strict=True)
    )
    return cache.as_strided((last + 1,), (1,))


def probe_layout(layer: Any, cache: torch.Tensor, kv_heads: int, head_size: int) -> BlockLayout:
    """Find the layout of a layer's cache by writing into a copy of its form.

    layer: vLLM's Attention module. cache: its cache, whose content is left alone.
    Raises UnknownLayout if a key or a value does not come back as it was written.
    """
    block_tokens = cache.shape[-2] if cache.dim() == 4 else cache.shape[2]
    numbers = block_tokens * kv_heads * head_size
    shape = (2, *cache.shape[1:])
    span = sum((size - 1) * stride for size, stride in zip(shape, cache.stride(), strict=True)) + 1
    memory = torch.zeros(span, dtype=cache.dtype, device=cache.device)
    scratch = memory.as_strided(shape, cache.stride())
    slots = torch.arange(block_tokens, 2 * block_tokens, dtype=torch.int64, device=cache.device)

    def write(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        memory.zero_()
        form = (block_tokens, kv_heads, head_size)
        layer.impl.do_kv_cache_update(
            layer,
            keys.to(cache.dtype).reshape(form).contiguous(),
            values.to(cache.dtype).reshape(form).contiguous(),
            scratch,
            slots,
        )
        return memory[cache.stride(0) :] if cache.stride(0) < span else memory

    def find(are_keys: bool) -> torch.Tensor:
        """Number the places by bits: 0s and 1s come back whatever the data type."""
        zeros = torch.zeros(numbers, device=cache.device)
        ordinals = torch.arange(numbers, device=cache.device)
        ones = torch.ones_like(zeros)
        written = write(ones, zeros) if are_keys else write(zeros, ones)
        places = written.nonzero().flatten()
        if len(places) != numbers or not bool((written[places] == 1).all()):
            raise UnknownLayout("the attention kernel stores keys or values in a form of its own")
        found = torch.zeros(numbers, dtype=torch.int64, device=cache.device)
        for bit in range(max(1, (numbers - 1).bit_length())):
            pattern = ((ordinals >> bit) & 1).float()
            written = write(pattern, zeros) if are_keys else write(zeros, pattern)
            found += written[places].to(torch.int64) << bit
        if not torch.equal(found.sort().values, ordinals):
            raise UnknownLayout("the attention kernel mixes the numbers of keys or values")
        result = torch.empty(numbers, dtype=torch.int64, device=cache.device)
        result[found] = places
        return result.reshape(block_tokens, kv_heads * head_size)

    return BlockLayout(find(True), find(False), cache.stride(0), block_tokens)
