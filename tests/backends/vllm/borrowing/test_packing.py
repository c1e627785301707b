"""Packed numbers come back within half a step of their scale, and never look infinite."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from ragcache_engine.backends.vllm.borrowing.packing import (  # noqa: E402
    GROUP_TOKENS,
    LEVELS,
    pack_numbers,
    unpack_numbers,
)
from ragcache_engine.tiers.borrowing.donor import Packing  # noqa: E402

pytestmark = pytest.mark.vllm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEADS, HEAD_SIZE = 2, 32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_tokens", [16, 32])
@given(
    tokens=st.integers(1, 140),
    seed=st.integers(0, 2**31),
    exponent=st.integers(-6, 3),
    data=st.data(),
)
@settings(max_examples=30, deadline=None)
def test_numbers_come_back_within_half_a_step(
    dtype: torch.dtype,
    block_tokens: int,
    tokens: int,
    seed: int,
    exponent: int,
    data: st.DataObject,
):
    torch.manual_seed(seed)
    numbers = torch.randn(tokens, HEADS, HEAD_SIZE) * 10.0**exponent
    outlier = data.draw(st.integers(0, tokens - 1))
    numbers[outlier] *= 50
    packed = pack_numbers(numbers, dtype, block_tokens)
    held = Packing(block_tokens, dtype.itemsize).tokens
    assert packed.shape == (-(-tokens // held), block_tokens, HEADS, HEAD_SIZE)
    assert packed.dtype == dtype
    assert torch.isfinite(packed).all(), "kernels multiply by 0 what stands behind a sequence"
    found = unpack_numbers(packed, torch.arange(tokens))
    for begin in range(0, tokens, held):
        for first in range(begin, min(tokens, begin + held), GROUP_TOKENS):
            group = slice(first, min(first + GROUP_TOKENS, begin + held, tokens))
            most = numbers[group].abs().amax(dim=(0, 2), keepdim=True)
            # Half a step, and what rounding the scale to the cache's type costs the largest number.
            bound = most / LEVELS * 0.5 + most * 0.005 + 1e-7 * LEVELS
            assert ((found[group] - numbers[group]).abs() <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_code_of_a_byte_comes_back(dtype: torch.dtype):
    """So each level, in each byte of a number."""
    tokens = Packing(16, dtype.itemsize).tokens
    levels = torch.arange(-LEVELS, LEVELS + 1, dtype=torch.float32)
    numbers = levels.repeat(tokens, HEADS, 1)
    packed = pack_numbers(numbers, dtype, 16)
    assert torch.isfinite(packed).all()
    assert torch.equal(unpack_numbers(packed, torch.arange(tokens)), numbers)


def test_what_is_nothing_stays_nothing():
    numbers = torch.zeros(40, HEADS, HEAD_SIZE)
    packed = pack_numbers(numbers, torch.bfloat16, 16)
    assert not unpack_numbers(packed, torch.arange(40)).any()


def test_a_token_is_packed_alike_in_any_company_of_its_group():
    torch.manual_seed(0)
    numbers = torch.randn(60, HEADS, HEAD_SIZE)
    whole = pack_numbers(numbers, torch.bfloat16, 16)
    second = pack_numbers(numbers[30:], torch.bfloat16, 16)
    assert torch.equal(whole[1:], second), "blocks may be made one by one"
