"""What the instruction sets tell about bfloat16 is what a matrix product shows."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")

import torch

from ragcache_engine.backends.vllm.cpu_precision import is_slow_in_bfloat16

SURELY_SLOW, SURELY_NOT = 16.0, 2.0
"""Times of float32. Between them the other programs of a busy machine decide."""


def seconds(dtype: torch.dtype) -> float:
    """Return the shortest of three: what another program takes in between does not count."""
    left, right = torch.ones(256, 576, dtype=dtype), torch.ones(576, 1536, dtype=dtype)
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        left @ right
        taken.append(time.perf_counter() - begun)
    return min(taken)


@pytest.mark.slow
def test_a_cpu_is_called_slow_if_a_product_in_bfloat16_is():
    slowdown = seconds(torch.bfloat16) / seconds(torch.float32)
    if slowdown > SURELY_SLOW or slowdown < SURELY_NOT:
        assert is_slow_in_bfloat16() == (slowdown > SURELY_SLOW)
