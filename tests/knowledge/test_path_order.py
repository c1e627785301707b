"""The three orders of documents in a prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.knowledge import DOCUMENT_ORDERS, POLICIES, DocumentCache, Segment

S = Segment("S", 4)


def path(*names: str, **tokens: int) -> tuple[Segment, ...]:
    return (S, *(Segment(name, tokens.get(name, 4)) for name in names))


def cache_with(
    *paths: tuple[Segment, ...], blocks: int = 1000, block_tokens: int = 1
) -> DocumentCache:
    cache = DocumentCache(blocks, POLICIES["lru"], block_tokens=block_tokens)
    for one in paths:
        cache.admit(cache.use(cache.match(one)))
    return cache


def named(segments: tuple[Segment, ...]) -> str:
    return " ".join(segment.name for segment in segments)


def ordered(order: str, cache: DocumentCache, asked: tuple[Segment, ...]) -> str:
    return named(DOCUMENT_ORDERS[order](cache, asked))


def test_the_retrieved_order_is_left_alone():
    cache = cache_with(path("a", "b"))
    assert ordered("retrieved", cache, path("b", "a")) == "S b a"


def test_the_canonical_order_is_that_of_the_ids_behind_the_system_text():
    assert ordered("canonical", cache_with(), path("c", "T", "a")) == "S T a c"


def test_the_cached_order_puts_first_what_is_cached_behind_the_system_text():
    cache = cache_with(path("b", "a"))
    assert ordered("cached", cache, path("a", "c", "b")) == "S b a c"


def test_the_cached_order_prefers_more_tokens_to_better_rank():
    cache = cache_with(path("short", short=2), path("long", long=9))
    assert ordered("cached", cache, path("short", "long", short=2, long=9)) == "S long short"


def test_ties_and_uncached_documents_stay_as_retrieved():
    cache = cache_with(path("a"), path("b"))
    assert ordered("cached", cache, path("x", "b", "y", "a")) == "S b x y a"


def test_nothing_cached_leaves_the_retrieved_order():
    for cache in (cache_with(), cache_with(path("a"))):
        assert ordered("cached", cache, path("x", "y")) == "S x y"


def test_greed_never_makes_a_shorter_cached_prefix_than_the_retrieved_order_has():
    cache = cache_with(path("big", big=5), path("a", "b"))
    assert ordered("cached", cache, path("a", "b", "big", big=5)) == "S a b big"


def test_behind_a_document_that_is_only_partly_cached_nothing_counts():
    cache = cache_with(path("a", "b"), blocks=6)
    assert cache.match(path("a")).cached_tokens == 6
    assert ordered("cached", cache, path("b", "a")) == "S a b"


def test_a_document_too_short_for_a_block_leads_to_those_behind_it():
    asked = path("tiny", "b", tiny=1, b=16)
    cache = cache_with(asked, block_tokens=4)
    assert ordered("cached", cache, path("b", "tiny", tiny=1, b=16)) == "S tiny b"


@pytest.mark.parametrize("order", DOCUMENT_ORDERS)
def test_a_path_without_documents_stays_as_it_is(order):
    cache = cache_with(path("a"))
    assert DOCUMENT_ORDERS[order](cache, [S]) == (S,)
    assert DOCUMENT_ORDERS[order](cache, []) == ()


@pytest.mark.parametrize("order", DOCUMENT_ORDERS)
def test_a_document_named_twice_stays_twice(order):
    assert sorted(DOCUMENT_ORDERS[order](cache_with(path("a")), path("a", "b", "a"))) == sorted(
        path("a", "b", "a")
    )


SIZES = {name: 1 + 3 * at for at, name in enumerate("abcdef")}
DOCUMENTS = st.permutations("abcdef").flatmap(
    lambda names: st.integers(0, 6).map(lambda count: path(*names[:count], **SIZES))
)


@given(
    st.lists(DOCUMENTS, max_size=12),
    DOCUMENTS,
    st.integers(4, 60),
    st.sampled_from([1, 4]),
)
def test_an_order_is_a_permutation_and_the_cached_one_is_never_worse_than_the_retrieved(
    before, asked, blocks, block_tokens
):
    cache = cache_with(*before, blocks=blocks, block_tokens=block_tokens)
    for order in DOCUMENT_ORDERS.values():
        made = order(cache, asked)
        assert made[0] == S
        assert sorted(made) == sorted(asked)
    cached = cache.match(DOCUMENT_ORDERS["cached"](cache, asked)).cached_tokens
    assert cached >= cache.match(asked).cached_tokens
    cache.tree.check()


def test_ordering_many_documents_looks_up_about_the_square_of_their_number():
    names = [f"d{at:03}" for at in range(60)]
    cache = cache_with(path(*names), blocks=10_000)
    looks = 0

    class Counted(Segment):
        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return super().__hash__()

    asked = [Counted(*segment) for segment in path(*reversed(names))]
    assert named(DOCUMENT_ORDERS["cached"](cache, asked)) == named(path(*names))
    assert looks <= 60 * 60
