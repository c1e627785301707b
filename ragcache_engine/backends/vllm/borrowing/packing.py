"""Packs keys and values: eight bits for a number, and a scale for each head of sixteen tokens.

The block of a cache holds so the tokens of two to four. Whatever its bytes are, read as numbers of the
cache's own type they are finite: an attention kernel may read behind a sequence's end, and multiplies
what it finds there by 0, so that an infinite number would harm whoever gets the block next.
"""

from __future__ import annotations

from math import ceil

import torch
from vllm.config import VllmConfig

LEVELS = 123
"""Numbers become integers from -LEVELS to LEVELS."""

GAP = 4
"""Negative integers are written as smaller ones by so much. The bytes from -GAP to -1, and those above
LEVELS, would, as the highest byte of a number, make it infinite or not a number in float16, bfloat16 or
float32."""

GROUP_TOKENS = 16
"""Tokens that share their scales."""


def count_groups(tokens: int) -> int:
    """Count the groups of so many tokens of one block. Each has a scale for each head, in one row."""
    return ceil(tokens / GROUP_TOKENS)


def pack_numbers(numbers: torch.Tensor, dtype: torch.dtype, block_tokens: int) -> torch.Tensor:
    """Return numbers in the form of whole blocks: shape (blocks, block_tokens, heads, head_size).

    numbers: float32, shape (tokens, heads, head_size); behind the last ones, blocks are filled with 0.
    dtype: the cache's. The last row of a block holds its scales.
    """
    count, heads, size = numbers.shape
    rows = block_tokens - 1
    tokens = rows * dtype.itemsize
    blocks, groups = ceil(count / tokens), count_groups(tokens)
    padded = numbers.new_zeros((blocks * tokens, heads, size))
    padded[:count] = numbers
    grouped = numbers.new_zeros((blocks, groups * GROUP_TOKENS, heads, size))
    grouped[:, :tokens] = padded.view(blocks, tokens, heads, size)
    grouped = grouped.view(blocks, groups, GROUP_TOKENS, heads, size)
    scales = (grouped.abs().amax(dim=(2, 4)) / LEVELS).to(dtype)  # as they are read again
    steps = scales.float()[:, :, None, :, None]
    levels = torch.where(steps > 0, grouped / steps, 0.0).round_().clamp_(-LEVELS, LEVELS)
    levels -= GAP * (levels < 0)
    codes = levels.view(blocks, -1, heads * size)[:, :tokens].to(torch.int8)
    packed = torch.zeros((blocks, block_tokens, heads * size), dtype=dtype, device=numbers.device)
    # Each row has the room of one token, and gets those that follow each other.
    packed[:, :rows] = codes.view(blocks, rows, -1).view(dtype)
    packed[:, rows, : groups * heads] = scales.view(blocks, -1)
    return packed.view(blocks, block_tokens, heads, size)


def unpack_numbers(packed: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the numbers of some tokens of packed blocks: float32, shape (n, heads, head_size).

    packed: as `pack_numbers` returns them, contiguous. places: int64, shape (n,); which tokens.
    """
    blocks, block_tokens, heads, size = packed.shape
    rows, width = block_tokens - 1, packed.element_size()
    tokens = rows * width
    groups = count_groups(tokens)
    flat = packed.view(blocks, block_tokens, heads * size)
    block, token = places.div(tokens, rounding_mode="floor"), places % tokens
    codes = flat.view(torch.int8).view(blocks, block_tokens * width, heads, size)[block, token]
    scales = flat[:, rows, : groups * heads].float().view(blocks, groups, heads, 1)
    levels = codes.float()
    levels += GAP * (codes < 0)
    group = token.div(GROUP_TOKENS, rounding_mode="floor")
    return levels.mul_(scales[block, group])


def number_bytes(config: VllmConfig) -> int:
    """Return the bytes of one number in the cache; support.py has refused all but plain types."""
    kind = config.cache_config.cache_dtype
    dtype = config.model_config.dtype if kind == "auto" else getattr(torch, kind)
    assert isinstance(dtype, torch.dtype)
    return dtype.itemsize
