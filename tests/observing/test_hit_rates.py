"""What the cache gave to each chain and to each document."""

from __future__ import annotations

import pytest

from ragcache_engine import (
    CachedTokens,
    Document,
    DocumentReuse,
    HitRate,
    RAGCacheEngine,
    SamplingOptions,
    Usage,
)
from ragcache_engine.observing.hit_rates import HitRates

TIDES = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 9)
SALT = Document("salt", "Rivers wash the salt out of rocks, and it stays in the sea. " * 9)
FEW = SamplingOptions(max_tokens=4)


def ask(
    engine: RAGCacheEngine, question: str, *documents: Document, chain: object = None
) -> HitRate:
    """Retrieve the documents and ask about them, as a chain does; return the answer's own rate."""
    with engine.retrieval(question, chain=chain) as retrieval:
        retrieval.found(documents)
    prompt = "\n\n".join([*(document.text for document in documents), question])
    usage = engine.generate(prompt, options=FEW).usage
    return HitRate("", 1, usage.prompt_tokens, usage.cached.total)


def test_each_chain_has_a_rate_of_its_own(memory_engine: RAGCacheEngine):
    first = ask(memory_engine, "Why?", TIDES, chain="tides chain")
    second = ask(memory_engine, "When does it happen?", TIDES, chain="tides chain")
    third = ask(memory_engine, "Where?", SALT, chain=object())
    stats = memory_engine.stats()
    rates = {one.name: one for one in stats.by_chain}
    assert set(rates) == {"tides chain", "chain 1"}
    assert rates["tides chain"].prompts == 2
    assert rates["tides chain"].tokens == first.tokens + second.tokens
    assert rates["tides chain"].cached_tokens == second.cached_tokens > 0
    assert (rates["chain 1"].tokens, rates["chain 1"].rate) == (third.tokens, 0.0)
    assert sum(one.tokens for one in stats.by_chain) == stats.prompt_tokens


def test_each_document_has_a_rate_of_its_own(memory_engine: RAGCacheEngine):
    ask(memory_engine, "Why?", TIDES, SALT)
    ask(memory_engine, "When?", TIDES)
    rates = {one.name: one for one in memory_engine.stats().by_document}
    assert rates["salt"].prompts == 1
    assert rates["salt"].cached_tokens == 0
    assert rates["tides"].prompts == 2
    assert 0.3 < rates["tides"].rate <= 0.5, "it was cached when it came again"


def test_documents_that_the_caller_names_count_as_well(memory_engine: RAGCacheEngine):
    memory_engine.generate(f"{TIDES.text}\n\nWhy?", [TIDES], FEW)
    stats = memory_engine.stats()
    assert [one.name for one in stats.by_document] == ["tides"]
    assert stats.by_chain == (), "no chain retrieved them"


def used(prompt_tokens: int, cached_tokens: int, *reused: DocumentReuse) -> Usage:
    cached = CachedTokens(device=cached_tokens)
    return Usage(prompt_tokens, 1, cached, ttft_s=0.1, total_s=0.1, reused=reused)


def test_borrowed_tokens_are_counted_apart_from_cached_ones(memory_engine: RAGCacheEngine):
    request = memory_engine._intake.prepare(
        f"{TIDES.text}\n\n{SALT.text}\n\nWhy?", [TIDES, SALT], None, None
    ).request
    rates = HitRates()
    here = DocumentReuse("salt", 20, "device", borrowed=18, recomputed=2)
    rates.count_documents(request, used(len(request.prompt), 0, here))
    new = DocumentReuse("salt", 20, None, borrowed=18, recomputed=2)
    rates.count_documents(request, used(len(request.prompt), 0, new))
    assert {one.name: (one.cached_tokens, one.borrowed_tokens) for one in rates.by_document()} == {
        "tides": (0, 0),
        "salt": (0, 18),
    }


def test_a_document_that_stands_twice_in_a_prompt_counts_once(memory_engine: RAGCacheEngine):
    prompt = f"{TIDES.text}\n\n{SALT.text}\n\n{TIDES.text}\n\nWhy?"
    request = memory_engine._intake.prepare(prompt, [TIDES, SALT], None, None).request
    rates = HitRates()
    again = DocumentReuse("tides", 20, "device", borrowed=18, recomputed=2)
    rates.count_documents(request, used(len(request.prompt), 20, again))
    tides = next(one for one in rates.by_document() if one.name == "tides")
    assert (tides.prompts, tides.borrowed_tokens) == (1, 18)
    lengths = [len(one) for one in request.segments if one.document_id == "tides"]
    assert tides.tokens == sum(lengths)


def test_what_a_forgotten_tenant_asked_is_not_named_any_more(memory_engine: RAGCacheEngine):
    for tenant, document in (("shop::anna", TIDES), ("press", TIDES), ("shop", SALT)):
        memory_engine.generate(f"{document.text}\n\nOf {tenant}?", [document], FEW, tenant=tenant)
    assert {one.name: one.prompts for one in memory_engine.stats().by_document} == {
        "tides": 2,
        "salt": 1,
    }
    memory_engine.forget_tenant("shop")
    assert [one.question for one in memory_engine.recent_requests()] == ["Of press?"]
    assert [one.name for one in memory_engine.stats().by_document] == ["tides"], "others' too"


def test_forgotten_documents_are_not_named_any_more(memory_engine: RAGCacheEngine):
    ask(memory_engine, "Why?", TIDES)
    memory_engine.forget(["tides"])
    assert memory_engine.stats().by_document == ()


def test_only_the_chains_and_documents_used_last_are_remembered(memory_engine: RAGCacheEngine):
    rates = HitRates(most_chains=2, most_documents=1)
    for chain in ("a", "b", "a", "c"):
        rates.count_chain(chain, used(100, 50))
    assert {one.name: one.prompts for one in rates.by_chain()} == {"a": 2, "c": 1}
    request = memory_engine._intake.prepare(
        f"{TIDES.text}\n\n{SALT.text}\n\nWhy?", [TIDES, SALT], None, None
    ).request
    rates.count_documents(request, used(len(request.prompt), 0))
    assert [one.name for one in rates.by_document()] == ["salt"]


@pytest.mark.parametrize("cached_share", [0.0, 0.3, 1.0])
def test_a_document_has_the_cached_tokens_that_lie_in_it(
    memory_engine: RAGCacheEngine, cached_share: float
):
    request = memory_engine._intake.prepare(
        f"{TIDES.text}\n\n{SALT.text}\n\nWhy?", [TIDES, SALT], None, None
    ).request
    cached = int(cached_share * len(request.prompt))
    rates = HitRates()
    rates.count_documents(request, used(len(request.prompt), cached))
    documents = [one for one in request.segments if one.document_id]
    expected = {
        one.document_id: len([at for at in range(one.start, one.end) if at < cached])
        for one in documents
    }
    assert {one.name: one.cached_tokens for one in rates.by_document()} == expected
