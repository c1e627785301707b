"""What RAGCache chooses for vLLM's CPU build where the user says nothing. Importable without vLLM."""

from __future__ import annotations

BLOCK_TOKENS = 32
"""vLLM's CPU build defaults to 128. Only whole blocks are reused, and passages are short."""

CACHE_MOST_BYTES = 4 << 30

PROVISIONAL_STEP_TOKENS = 512
"""Tokens of a step, at most, while something is computed that the running search may still take back: a
cancel takes effect after the running step. All else has vLLM's steps: in bfloat16 a prompt prefilled in
other pieces may be answered otherwise."""


def cache_bytes(free_bytes: int) -> int:
    """Bytes for the device cache: a quarter of the free memory, where vLLM would take nine tenths."""
    return min(free_bytes // 4, CACHE_MOST_BYTES)
