"""RAGCache's defaults for vLLM's CPU build. Importable without vLLM."""

from __future__ import annotations

import os
from collections.abc import Sequence

BLOCK_TOKENS = 32
"""Tokens in a block. vLLM's CPU build defaults to 128, but only whole blocks are reused, and passages
are short."""

CACHE_MOST_BYTES = 4 << 30
"""The largest device cache that RAGCache chooses."""

PROVISIONAL_STEP_TOKENS = 512
"""The most tokens of a step that prefills a provisional request, which the running search may still take
back: a cancellation takes effect only after the running step. All other requests have vLLM's own steps:
in bfloat16 the answer may change if the prompt is prefilled in other pieces."""


def cache_bytes(free_bytes: int) -> int:
    """Choose the device cache's bytes: a quarter of the free memory. vLLM would take nine tenths."""
    return min(free_bytes // 4, CACHE_MOST_BYTES)


CACHE_SIZES = frozenset(
    {
        "--config",
        "--kv-cache-memory-bytes",
        "--gpu-memory-utilization",
        "--num-gpu-blocks-override",
    }
)
"""Arguments of `vllm serve` that may choose the device cache's size."""


def argument_names(given: Sequence[str]) -> set[str]:
    """Return the names among words for `vllm serve`, whose parser takes underscores for dashes."""
    return {word.split("=")[0].replace("_", "-") for word in given if word.startswith("-")}


def chooses_cache_size(given: Sequence[str]) -> bool:
    """Return whether a user of `vllm serve` on a CPU has chosen the device cache's size."""
    return "VLLM_CPU_KVCACHE_SPACE" in os.environ or not CACHE_SIZES.isdisjoint(
        argument_names(given)
    )
