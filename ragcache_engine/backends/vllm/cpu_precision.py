"""Measures whether this CPU computes in bfloat16 itself. Needs torch, not vLLM."""

from __future__ import annotations

import time
from functools import cache

SLOW = 4.0
"""From this slowdown on, a model in bfloat16 is slower than in float32 by more than noise."""

ROWS, INNER, COLUMNS = 64, 576, 576
"""A small layer. A CPU that computes it at 50 times float32's time needs 40 ms for it."""

REPEATS = 3


@cache
def bfloat16_slowdown() -> float:
    """Return how many times longer a matrix product takes in bfloat16 than in float32.

    1 or less where the CPU has instructions for bfloat16, or AVX-512 to emulate them. About 50 on
    processors with AVX2 only, which most laptops have: torch has no fast product there. The first call
    takes up to 0.2 s.
    """
    import torch

    def seconds(dtype: torch.dtype) -> float:
        left = torch.ones(ROWS, INNER, dtype=dtype)
        right = torch.ones(INNER, COLUMNS, dtype=dtype)
        left @ right  # the first one allocates
        taken = []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            left @ right
            taken.append(time.perf_counter() - begun)
        return min(taken)

    return seconds(torch.bfloat16) / seconds(torch.float32)
