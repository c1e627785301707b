"""However an answer ends, its account is right, or says that it is not known."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine import (
    Document,
    EngineConfig,
    GenerationFailed,
    Guide,
    RAGCacheEngine,
    SamplingOptions,
    Usage,
)
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.protocols import BackendRequest, Delta

SEA = [Document(f"sea-{n}", f"What is known about the sea, page {n}. " * 20) for n in range(4)]
ENDS = {
    "by itself": SamplingOptions(),
    "stop string": SamplingOptions(stop=("word-7",)),
    "length": SamplingOptions(max_tokens=5),
    "guide": SamplingOptions(guide=Guide.choice(["yes", "no"])),
    "context": SamplingOptions(max_tokens=None),
    "resumed": SamplingOptions(),
    "left by its reader": SamplingOptions(),
    "error": SamplingOptions(),
}


def answer_with(prompt: str) -> str:
    return " ".join(f"word-{number}" for number in range(12))


class Breaking(MemoryBackend):
    """Fails in the middle of the next answers, as often as it is told to."""

    def __init__(self) -> None:
        super().__init__(
            answer_with,
            fault=self._break,
            recompute_ratio=0.1,
            host_blocks=512,
            context_tokens=700,
        )
        self.breaks_in, self.breaks = -1, 0

    def _break(self, step: int) -> None:
        self.breaks_in -= 1
        if self.breaks_in == 0 and self.breaks:
            self.breaks -= 1
            self.breaks_in = 8
            raise GenerationFailed("a step broke")


def ask(
    engine: RAGCacheEngine, backend: Breaking, order: list[int], end: str, is_exact: bool
) -> Usage | None:
    """Ask about these documents, and let the answer end so; return its usage, if anybody gets one."""
    documents = [SEA[place] for place in order]
    prompt = "\n\n".join(["You know the sea.", *(one.text for one in documents), "Why?"])
    backend.breaks_in, backend.breaks = 8, {"resumed": 1, "error": 2}.get(end, 0)
    if end == "left by its reader":
        with engine.stream(prompt, documents, ENDS[end], exact=is_exact) as pieces:
            next(iter(pieces))
        return None
    try:
        return engine.generate(prompt, documents, ENDS[end], exact=is_exact).usage
    except GenerationFailed:
        assert end == "error"
        return None


@settings(max_examples=examples(45))
@given(
    st.lists(
        st.tuples(
            st.permutations(range(4)).map(lambda order: order[:3]), st.sampled_from(sorted(ENDS))
        ),
        min_size=2,
        max_size=6,
    ),
    st.booleans(),
)
def test_answers_and_tiers_have_counted_the_same(
    asked: list[tuple[list[int], str]], is_exact: bool
):
    backend = Breaking()
    config = EngineConfig(
        backend="memory", reuse="anywhere", recompute_ratio=0.1, recheck_share=0, speculation="off"
    )
    with RAGCacheEngine(config, backend=backend) as engine:
        told = [ask(engine, backend, order, end, is_exact) for order, end in asked]
        stats = engine.stats()
    usages = [usage for usage in told if usage is not None]
    ends = [end for _, end in asked]
    assert all(usage.has_account for usage in usages)
    assert all(usage.computed_tokens >= 0 for usage in usages)
    assert stats.retried == ends.count("resumed") + ends.count("error")
    # An answer may have ended before its reader left.
    left = ends.count("left by its reader")
    assert len(usages) <= stats.finished <= len(usages) + left
    # Of a resumed answer the tiers saw a part as a prompt, and they counted those that nobody got.
    is_whole = not stats.retried and not left
    for tier in ("device", "host", "disk"):
        cached = sum(getattr(usage.cached, tier) for usage in usages)
        engines, tiers = getattr(stats.cached, tier), getattr(stats.tiers, f"{tier}_tokens")
        assert cached <= engines <= tiers
        assert cached == engines or left
        assert engines == tiers or not is_whole
    borrowed = sum(usage.borrowed.total for usage in usages)
    assert borrowed <= stats.borrowed.total <= stats.tiers.borrowed_tokens
    assert borrowed == stats.tiers.borrowed_tokens or not is_whole
    approximate = sum(not usage.is_exact for usage in usages)
    assert approximate <= stats.approximate <= approximate + left
    assert not (is_exact and stats.approximate)


class Untold(MemoryBackend):
    """Does not tell at the end where the prompt came from."""

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        async for delta in super().generate(request):
            if delta.finish_reason:
                delta = replace(delta, cached=None, reuse=None, why_exact=None)
            yield delta


@pytest.mark.parametrize("speculation", ["off", "auto"])
def test_what_nobody_told_is_not_taken_for_exact_and_not_for_computed(
    engine_on: Callable[..., RAGCacheEngine], speculation: str
):
    engine = engine_on(Untold(), speculation=speculation)
    for _ in range(2):
        usage = engine.generate(f"{SEA[0].text}\n\nWhy?", SEA[:1]).usage
    assert not usage.has_account
    assert not usage.is_exact
    assert usage.cached.total == 0
    assert "not known" in str(usage)
    assert "cached=unknown" in repr(usage)
    stats = engine.stats()
    assert stats.unaccounted_tokens == stats.prompt_tokens == 2 * usage.prompt_tokens
    assert stats.known_tokens == stats.computed_tokens == 0
    assert "not told" in str(stats)
    assert not stats.by_document


def test_answers_without_an_account_leave_the_rates_of_the_others_alone(
    engine_on: Callable[..., RAGCacheEngine],
):
    backend = Untold()
    engine = engine_on(backend)
    engine.generate(f"{SEA[0].text}\n\nWhy?", SEA[:1])
    backend.generate = super(Untold, backend).generate  # type: ignore[method-assign]
    usage = engine.generate(f"{SEA[0].text}\n\nWhy?", SEA[:1]).usage
    assert engine.stats().hit_rate == usage.cached.total / usage.prompt_tokens > 0.5
