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
class Arrangement:
    """How the keys, or the values, of one block lie: a strided array of several dimensions.

    Kernels cut tokens and numbers into tiles, so that a token's place in its block, and a number's place
    in its token, may each take several dimensions, the slowest first.
    offset: where in the block the first number lies. token_sizes, token_strides: the dimensions of the
    tokens, in elements. number_sizes, number_strides: those of a token's numbers.
    """

    offset: int
    token_sizes: tuple[int, ...]
    token_strides: tuple[int, ...]
    number_sizes: tuple[int, ...]
    number_strides: tuple[int, ...]

    def view(self, cache: torch.Tensor) -> torch.Tensor:
        """Return a view of a cache, shape (blocks, *token_sizes, *number_sizes).

        cache: its first dimension are the blocks.
        """
        return cache.as_strided(
            (cache.shape[0], *self.token_sizes, *self.number_sizes),
            (cache.stride(0), *self.token_strides, *self.number_strides),
            cache.storage_offset() + self.offset,
        )

    def index(self, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return where slots are in a view. slots: int64, shape (n,). Returns int64s of that shape."""
        digits: list[torch.Tensor] = []
        rest = slots
        for size in reversed(self.token_sizes):
            digits.insert(0, rest % size)
            rest = rest.div(size, rounding_mode="floor")
        return (rest, *digits)


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where keys and values lie in a cache's blocks.

    block_tokens: tokens in a block of the attention kernel, which may be smaller than those that the
      scheduler gives to requests.
    """

    keys: Arrangement
    values: Arrangement
    block_tokens: int


def find_slots(blocks: Sequence[int], start: int, tokens: int, block_tokens: int) -> torch.Tensor:
    """Return the slots of the positions [start, start + tokens) of a request; int64, on the CPU.

    blocks: the request's blocks, in order. block_tokens: tokens in each of them. Slots are the same
      where the kernel cuts each block into smaller ones.
    """
    at = torch.arange(start, start + tokens)
    table = torch.tensor(blocks, dtype=torch.int64)
    return table[at // block_tokens] * block_tokens + at % block_tokens


def cut_blocks(blocks: Sequence[int], parts: int) -> list[int]:
    """Return the kernel's blocks that these of a request are cut into, in order. parts: of each block."""
    return [block * parts + part for block in blocks for part in range(parts)]


def probe_layout(layer: Any, cache: torch.Tensor, kv_heads: int, head_size: int) -> BlockLayout:
    """Find the layout of a layer's cache by writing into a copy of its form.

    layer: vLLM's Attention module. cache: its cache, whose content is left alone.
    Raises UnknownLayout if a key or a value does not come back as it was written, or blocks are no
    strided arrays.
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

    return BlockLayout(arrange(find(True)), arrange(find(False)), block_tokens)


def arrange(places: torch.Tensor) -> Arrangement:
    """Return the strided array that has its elements at these places of a block.

    places: int64, shape (tokens, numbers). Raises UnknownLayout if there is none.
    """
    offset = int(places[0, 0])
    tokens, numbers = places[:, 0] - offset, places[0] - offset
    if not torch.equal(places, offset + tokens[:, None] + numbers):
        raise UnknownLayout("a number's place in a block depends on the token in an unknown way")
    return Arrangement(offset, *_find_dimensions(tokens), *_find_dimensions(numbers))


def _find_dimensions(places: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes and strides of the fewest dimensions that have elements at these places."""
    at = places.tolist()
    sizes: list[int] = []
    strides: list[int] = []
    step = 1  # from the fastest dimension to the slowest, each as long as its stride holds
    while step < len(at):
        stride, size = at[step], 2
        while size * step < len(at) and at[size * step] == size * stride:
            size += 1
        sizes.insert(0, size)
        strides.insert(0, stride)
        step *= size
    found = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(sizes, strides, strict=True):
        found = (found[:, None] + stride * torch.arange(size)).flatten()
    if found.tolist() != at:
        raise UnknownLayout("the attention kernel cuts its blocks into tiles of an unknown kind")
    return tuple(sizes), tuple(strides)
