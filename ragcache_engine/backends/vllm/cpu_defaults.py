"""RAGCache's defaults for vLLM's CPU build. Importable without vLLM."""

from __future__ import annotations

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
