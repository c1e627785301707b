"""In which order documents are handed over, and that it is a permutation whatever happens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine import Document, RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.knowledge import DOCUMENT_ORDERS, policy_of_tiers
from ragcache_engine.retrievals.document_order import DocumentOrdering

names = st.lists(st.sampled_from("abcdefg"), max_size=6)


def documents(*ids: str) -> list[Document]:
    return [Document(name, f"text of {name} " * 20) for name in ids]


def ordering(order: str, capacity_tokens: int = 10_000) -> DocumentOrdering:
    return DocumentOrdering(order, capacity_tokens, policy_of_tiers("halflife"))


@given(
    order=st.sampled_from(sorted(DOCUMENT_ORDERS)),
    before=st.lists(names, max_size=6),
    now=names,
    capacity=st.integers(0, 2_000),
)
def test_every_order_is_a_permutation(
    order: str, before: list[list[str]], now: list[str], capacity: int
):
    ordered = ordering(order, capacity)
    for ids in before:
        ordered.note_prompt(documents(*ids), "chain")
    assert sorted(ordered.positions(documents(*now), "chain")) == list(range(len(now)))


def test_retrieved_leaves_them_as_they_were_found():
    assert ordering("retrieved").positions(documents("c", "a", "b"), None) == [0, 1, 2]


def test_canonical_sorts_by_id():
    assert ordering("canonical").positions(documents("c", "a", "b"), None) == [1, 2, 0]


def test_cached_puts_first_what_another_prompt_began_with():
    ordered = ordering("cached")
    ordered.note_prompt(documents("b", "c"), "chain")
    assert ordered.positions(documents("a", "c", "b"), "chain") == [2, 1, 0]
    assert ordered.positions(documents("a", "c", "b"), "another chain") == [0, 1, 2]


def test_one_tenants_prompts_order_no_others_documents(engine_on: Callable[..., RAGCacheEngine]):
    engine = engine_on(MemoryBackend(), document_order="cached")
    a, b = documents("a", "b")

    def ask(tenant: str, *found: Document) -> list[str]:
        with engine.retrieval("Why?", tenant=tenant) as retrieval:
            ordered = [found[at] for at in retrieval.order(found)]
            retrieval.found(ordered)
        engine.generate("\n\n".join([*(one.text for one in ordered), "Why?"]), tenant=tenant)
        return [one.id for one in ordered]

    assert ask("shop", b) == ["b"]
    assert ask("press", a, b) == ["a", "b"]
    assert ask("shop", a, b) == ["b", "a"]
    engine.forget_tenant("shop")
    assert ask("shop", a, b) == ["a", "b"]


@pytest.mark.parametrize(("order", "first"), [("retrieved", "a"), ("cached", "b")])
def test_an_engine_tells_retrievers_the_order_it_was_set_up_with(
    engine_on: Callable[..., RAGCacheEngine], order: str, first: str
):
    engine = engine_on(MemoryBackend(), document_order=order)
    found = documents("b", "c")
    with engine.retrieval("one", chain="chain") as retrieval:
        retrieval.found(found)
    engine.generate("\n\n".join(document.text for document in found))
    with engine.retrieval("two", chain="chain") as retrieval:
        later = documents("a", "b")
        assert later[retrieval.order(later)[0]].id == first
