"""How much slower this CPU is in bfloat16 is measured, and agrees with a larger product."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")

import torch

from ragcache_engine.backends.vllm.cpu_precision import SLOW, bfloat16_slowdown


def seconds(dtype) -> float:
    left, right = torch.ones(256, 576, dtype=dtype), torch.ones(576, 1536, dtype=dtype)
    left @ right
    begun = time.perf_counter()
    left @ right
    return time.perf_counter() - begun


def test_a_small_product_tells_what_a_large_one_would():
    slow = seconds(torch.bfloat16) / seconds(torch.float32)
    if slow > 4 * SLOW or slow < SLOW / 4:  # in between a busy machine decides
        assert (bfloat16_slowdown() >= SLOW) == (slow >= SLOW)
