"""A Bloom filter of documents knows all its members, and few strangers, whatever their number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.tiers.bloom_filter import BloomFilter


def filter_of(documents: list[str]) -> BloomFilter:
    bloom_filter = BloomFilter(len(documents))
    for document in documents:
        bloom_filter.add(document)
    return bloom_filter


@given(st.lists(st.text(), max_size=50))
def test_every_member_is_known_on_the_other_side_too(documents: list[str]):
    bloom_filter = filter_of(documents)
    again = BloomFilter.from_text(bloom_filter.to_text())
    assert again == bloom_filter
    assert all(document in again for document in documents)


@pytest.mark.parametrize("count", [600, 5000, 52_000])
def test_few_strangers_look_like_members(count: int):
    bloom_filter = filter_of([f"member {number}" for number in range(count)])
    strangers = sum(f"stranger {number}" in bloom_filter for number in range(20_000))
    assert strangers / 20_000 < 0.015


def test_a_filter_of_more_documents_than_it_can_tell_apart_stays_small_and_forgets_none():
    documents = [f"member {number}" for number in range(100_000)]
    bloom_filter = filter_of(documents)
    assert bloom_filter.size_bytes == 64 << 10
    assert all(document in bloom_filter for document in documents)
    assert any(f"stranger {number}" not in bloom_filter for number in range(100))


@pytest.mark.parametrize("text", ["", "no base64!", "AAAA"])
def test_what_is_no_filter_is_refused(text: str):
    with pytest.raises(ValueError, match=r"power of two|base64"):
        BloomFilter.from_text(text)
