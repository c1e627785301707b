"""The engine without a model, with reuse at any position: it tells what vLLM's would tell."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from math import ceil
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ragcache_engine import (
    Answer,
    Document,
    EngineConfig,
    MemoryBackend,
    RAGCacheEngine,
    SamplingOptions,
)

A, B, C, D = (Document(name, f"What is known about {name}. " * 20 + "The end.") for name in "abcd")
PARAGRAPH = "\n\n"
SYSTEM = "Answer from the passages, and say so if you cannot. " * 2


def engine(ratio: float = 0.25, **changes: Any) -> RAGCacheEngine:
    settings: dict[str, Any] = {
        "backend": "memory",
        "reuse": "anywhere",
        "recompute_ratio": ratio,
        "donors": "alone",
        "missing_donors": "compute",
    }
    return RAGCacheEngine(EngineConfig.model_validate({**settings, **changes}))


def prompt_of(*documents: Document, question: str = "Why?") -> str:
    return f"{SYSTEM}\n\n{PARAGRAPH.join(document.text for document in documents)}\n\n{question}"


def ask(engine: RAGCacheEngine, *documents: Document, **options: Any) -> Answer:
    return engine.generate(prompt_of(*documents), documents, **options)


def test_a_document_is_borrowed_at_another_position():
    with engine() as one:
        first, second = ask(one, A, B, C).usage, ask(one, D, C, B).usage
    assert not first.is_exact
    assert first.borrowed.total == 0  # nothing was there yet
    assert [each.document for each in second.reused] == ["d", "c", "b"]
    _, c, b = second.reused
    assert (c.tier, b.tier) == ("device", "device")
    assert second.borrowed.device == c.borrowed + b.borrowed > 0
    assert second.recomputed_tokens == c.recomputed + b.recomputed
    assert c.recomputed == ceil(0.25 * c.tokens) + 1, "and its last token"


def test_it_takes_less_time_than_an_exact_answer():
    with engine(0.0) as borrowing, engine(0.0) as exact:
        for one in (borrowing, exact):
            ask(one, A, B, C)
        borrowed = ask(borrowing, D, C, B).usage
        computed = ask(exact, D, C, B, exact=True).usage
    assert borrowed.ttft_s < computed.ttft_s


def test_a_request_can_ask_to_be_exact_and_finds_nothing_approximate():
    with engine() as one:
        ask(one, A, B, C)
        usage = ask(one, A, B, C, exact=True).usage
        again = ask(one, A, B, C, exact=True).usage
    assert usage.is_exact
    assert "exact" in (usage.why_exact or "")
    # Behind the first document the first prompt left nothing that is exact here.
    first_two = usage.prompt_tokens * 2 // 3
    assert usage.cached.total < first_two < again.cached.total


def test_a_prompt_with_one_document_says_why_it_borrows_nothing():
    with engine() as one:
        assert ask(one, A).usage.why_exact == "the prompt has fewer than two documents"
    with RAGCacheEngine(EngineConfig(backend="memory")) as prefix:
        assert ask(prefix, A).usage.why_exact is None


def test_the_ratio_of_one_request_counts_for_it_alone():
    with engine(0.0) as one:
        ask(one, A, B)
        assert ask(one, C, B, recompute_ratio=1.0).usage.borrowed.total == 0
        assert ask(one, D, B).usage.recomputed_tokens == 1, "the last token, at any ratio"


def test_warmed_documents_are_borrowed():
    with engine(0.1) as one:
        warmed = one.warm([["a", "b"], ["c", "d"]], template=f"{SYSTEM}\n\n{{context}}\n\n{{question}}",
                          corpus=[A, B, C, D])  # fmt: skip
        assert warmed.sets == 2
        usage = ask(one, C, D, B).usage
    assert [each.tier for each in usage.reused] == ["device"] * 3


def test_stats_count_approximate_answers_and_borrowed_tokens():
    with engine() as one:
        ask(one, A, B)
        borrowed = ask(one, C, B).usage.borrowed.total
        ask(one, C, B, exact=True)
        stats = one.stats()
    assert stats.approximate == 2
    assert stats.borrowed.total == borrowed > 0


def test_a_forgotten_document_lends_nothing():
    with engine(0.0) as one:
        ask(one, A, B)
        one.forget(["b"])
        _, b = ask(one, C, B).usage.reused
    assert b.tier is None


def test_tenants_lend_each_other_nothing():
    with engine(0.0) as one:
        ask(one, A, B, tenant="x")
        _, b = ask(one, C, B, tenant="y").usage.reused
    assert b.tier is None


def test_evicted_donors_come_from_slower_tiers():
    sizes = {"device_cache": "25MiB", "host_cache": "300MiB", "disk_cache": "1GiB"}
    many = [Document(f"d{n}", f"What is known about number {n}. " * 20) for n in range(12)]
    with engine(0.0, **sizes) as one:
        for first, second in pairwise(many):
            ask(one, first, second)
        _, last = ask(one, many[-1], many[1]).usage.reused
    assert last.tier in ("host", "disk")


def test_after_requests_that_were_cancelled_while_donors_came_the_cache_can_be_cleared():
    async def cancel_and_clear(one: RAGCacheEngine) -> Answer:
        tasks = [
            asyncio.create_task(one.agenerate(prompt_of(A, B, C, question=str(n)), [A, B, C]))
            for n in range(6)
        ]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await one.agenerate(prompt_of(D, B), [D, B])

    with engine() as one:
        assert not asyncio.run(cancel_and_clear(one)).usage.is_exact
        one.clear_cache()
        assert ask(one, D, B).usage.cached.total == 0


DOCUMENTS = st.lists(st.sampled_from([A, B, C, D]), min_size=1, max_size=4, unique=True)


@settings(max_examples=25)
@given(st.lists(st.tuples(DOCUMENTS, st.booleans()), min_size=1, max_size=8))
def test_whatever_is_asked_together_everyone_is_answered_and_tokens_add_up(
    asked: list[tuple[list[Document], bool]],
):
    async def ask_all(one: RAGCacheEngine) -> list[Answer]:
        options = SamplingOptions(max_tokens=3)
        return await asyncio.gather(
            *(
                one.agenerate(prompt_of(*documents), documents, options, exact=exact)
                for documents, exact in asked
            )
        )

    with engine(0.1, device_cache="28MiB", host_cache="40MiB") as one:
        answers = asyncio.run(ask_all(one))
    for answer, (documents, exact) in zip(answers, asked, strict=True):
        usage = answer.usage
        assert usage.is_exact == (exact or len(documents) < 2 or usage.why_exact is not None)
        assert (
            usage.cached.total + usage.borrowed.total + usage.recomputed_tokens
            <= usage.prompt_tokens
        )


def test_with_any_donors_nothing_is_computed_beside_the_first_prompt():
    with engine(0.0, donors="any", missing_donors="later") as one:
        first = ask(one, A, B, C).usage
        computed = one.stats().computed_tokens
        second = ask(one, D, C, B).usage
    assert first.is_exact
    assert first.why_exact == "every document is exact here, or was in no prompt before"
    assert computed == first.prompt_tokens
    assert [each.tier for each in second.reused] == [None, "device", "device"]
    assert second.borrowed.device > 0.5 * second.prompt_tokens


def test_any_donors_keep_nothing_of_a_document_that_was_forgotten_while_it_was_asked():
    backend = MemoryBackend(lambda prompt: "word " * 2000, recompute_ratio=0.1, any_donors=True)
    config = EngineConfig(model="any", reuse="anywhere", recompute_ratio=0.1, donors="any")
    with RAGCacheEngine(config, backend=backend) as one:
        stream = one.stream(prompt_of(A, B, C), [A, B, C], SamplingOptions(max_tokens=1500))
        next(stream)
        one.forget(["b"])
        stream.answer()
        kept = backend._served
        assert kept is not None
        assert not kept._variants, "its text stands in all that the prompt could lend"
        ask(one, C, D)
        usage = ask(one, D, C).usage
        assert [reuse.borrowed > 0 for reuse in usage.reused] == [False, True], "others still lend"
