"""Tells whether this CPU has a fast matrix product in bfloat16. Needs torch, not vLLM."""

from __future__ import annotations

from functools import cache

FAST_WITH = ("avx512_bw", "avx10_1", "avx_ne_convert", "amx_bf16")
"""Any of these instruction sets of x86 is enough for the library that torch multiplies with (oneDNN)."""


@cache
def is_slow_in_bfloat16() -> bool:
    """Return whether a model takes many times as long in bfloat16 as in float32 on this CPU.

    So it is on x86 processors with AVX2 only, which most laptops have: 25 to 75 times were measured.
    torch has no fast product for 16 bits there. On processors other than x86 the answer is False.
    """
    import torch

    has = torch.cpu.get_capabilities()
    return has.get("architecture") == "x86_64" and not any(has.get(name) for name in FAST_WITH)
