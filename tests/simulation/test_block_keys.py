"""Blocks are named by all tokens up to their end, and by the tenant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.simulation.block_keys import KeyChain

tokens = st.lists(st.integers(0, 3), max_size=20)


def keys_of(token_ids: list[int], tenant: str | None = None, block_tokens: int = 4) -> list[bytes]:
    chain = KeyChain(block_tokens, tenant)
    chain.extend(token_ids)
    return chain.keys


@given(tokens, tokens)
@pytest.mark.slow
def test_equal_keys_mean_equal_prefixes(one: list[int], other: list[int]):
    for at, (key, its) in enumerate(zip(keys_of(one), keys_of(other), strict=False), 1):
        assert (key == its) == (one[: 4 * at] == other[: 4 * at])


@given(tokens, st.integers(0, 20))
def test_tokens_may_come_in_parts(token_ids: list[int], cut: int):
    chain = KeyChain(4)
    chain.extend(token_ids[:cut])
    chain.extend(token_ids[cut:])
    assert chain.keys == keys_of(token_ids)
    assert len(chain.keys) == len(token_ids) // 4


def test_tenants_share_no_block():
    assert len({keys_of([1, 2, 3, 4], tenant)[0] for tenant in (None, "", "a", "b")}) == 4
