"""How an engine and its values show themselves: in a log, in a terminal, and in a notebook."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from ragcache_engine import (
    Answer,
    CachedTokens,
    CacheStats,
    Document,
    EngineConfig,
    FinishReason,
    RAGCacheEngine,
    Usage,
)

TIDES = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 9)


def two_answers(engine: RAGCacheEngine) -> Answer:
    engine.generate(f"{TIDES.text}\n\nWhy?", [TIDES])
    return engine.generate(f"{TIDES.text}\n\nWhen?", [TIDES])


def test_an_engine_says_in_one_line_what_it_is(memory_engine: RAGCacheEngine):
    two_answers(memory_engine)
    rate = memory_engine.stats().hit_rate
    assert repr(memory_engine) == f"RAGCacheEngine('any', 2 answers, hit rate {rate:.0%})"
    memory_engine.close()
    assert repr(memory_engine) == "RAGCacheEngine('any', closed)"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_engine_shows_itself_in_a_forked_child_too(memory_engine: RAGCacheEngine):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(
        target=lambda: results.put((repr(memory_engine), memory_engine._repr_html_()))
    )
    child.start()
    text, page = results.get()
    child.join()
    assert text == "RAGCacheEngine('any', of another process)"
    assert "of another process" in page


def test_counters_are_short_in_a_log_and_a_table_when_printed(memory_engine: RAGCacheEngine):
    two_answers(memory_engine)
    stats = memory_engine.stats()
    assert len(repr(stats)) < 100
    assert repr(stats).startswith("CacheStats(finished=2, running=0, prompt_tokens=")
    printed = str(stats).splitlines()
    assert printed[0] == "Cache"
    assert f"{stats.hit_rate:.0%} of {stats.prompt_tokens:,} prompt tokens" in printed[2]
    assert any("document 'tides'" in line for line in printed)
    assert "device" in printed[-1]
    assert "computed" in printed[-1]


def test_the_hit_rate_is_the_share_of_prompt_tokens_from_any_tier():
    stats = CacheStats(prompt_tokens=100, cached=CachedTokens(device=30, host=20, disk=10))
    assert stats.hit_rate == stats.hit_ratio() == 0.6
    assert CacheStats().hit_rate == 0.0


def test_counters_before_any_request_can_be_shown():
    assert "none yet" in str(CacheStats())
    assert repr(CacheStats()) == "CacheStats(finished=0, running=0, prompt_tokens=0, hit_rate=0%)"
    assert "none yet" in CacheStats()._repr_html_()


def test_failures_are_in_the_short_form():
    assert "failed=1, retried=2" in repr(CacheStats(failed=1, retried=2))


def test_a_notebook_shows_engine_counters_answer_and_usage(memory_engine: RAGCacheEngine):
    answer = two_answers(memory_engine)
    for shown in (memory_engine, memory_engine.stats(), answer, answer.usage):
        page = shown._repr_html_()
        assert page.startswith("<div")
        assert "device" in page
        assert "computed" in page
    assert "tides" in answer.usage._repr_html_()
    assert "context" in memory_engine._repr_html_()


def test_usage_and_answer_are_short_in_a_log_and_a_table_when_printed(
    memory_engine: RAGCacheEngine,
):
    answer = two_answers(memory_engine)
    usage = answer.usage
    assert len(repr(usage)) < 110
    assert repr(usage).startswith(f"Usage(prompt_tokens={usage.prompt_tokens}, cached=")
    assert repr(answer) == f"Answer({answer.text!r}, 'stop', {usage!r})"
    assert str(usage).splitlines()[0] == "Usage"
    assert "computed" in str(usage).splitlines()[-1]
    assert answer.text in str(answer)
    long = replace(answer, text="word " * 100)
    assert len(repr(long)) < 200
    _, borrowed = borrowed_answer()
    assert f"borrowed={borrowed.usage.borrowed.total}, " in repr(borrowed.usage)


def test_an_answer_is_shown_as_text_and_not_as_a_part_of_the_page():
    usage = Usage(10, 2, CachedTokens(), ttft_s=0.1, total_s=0.2, document_ids=("<b>",) * 8)
    page = Answer("<img src=x>", (1, 2), FinishReason.STOP, usage)._repr_html_()
    assert "<img" not in page
    assert "&lt;img src=x&gt;" in page
    assert "&lt;b&gt; and 3 more" in page


def borrowed_answer() -> tuple[RAGCacheEngine, Answer]:
    """An engine that borrows, closed, and its second answer."""
    config = EngineConfig(
        backend="memory",
        reuse="anywhere",
        recompute_ratio=0.25,
        donors="alone",
        missing_donors="compute",
        recheck_share=0,
    )
    sea = [
        Document(f"sea-{n}", f"The sea has tides and salt, says page {n}. " * 20) for n in range(4)
    ]
    with RAGCacheEngine(config) as engine:
        for order in ([0, 1, 2], [3, 2, 1, 0]):
            found = [sea[n] for n in order]
            prompt = "\n\n".join(["You know the sea.", *(one.text for one in found), "Why?"])
            answer = engine.generate(prompt, found)
        return engine, answer


def test_borrowed_tokens_are_shown_apart_from_exact_and_computed_ones():
    engine, answer = borrowed_answer()
    usage, stats = answer.usage, engine.stats()
    share = f"borrowed (approximate) {usage.borrowed.total / usage.prompt_tokens:.0%}"
    computed = f"computed {usage.computed_tokens / usage.prompt_tokens:.0%}"
    for shown in (usage, answer):
        page = shown._repr_html_()
        assert share in page
        assert computed in page
        assert "recomputed" in page
    for page in (engine._repr_html_(), stats._repr_html_(), str(stats)):
        assert f"borrowed (approximate) {stats.borrowed_rate:.0%}" in page
        assert f"computed {stats.computed_tokens / stats.prompt_tokens:.0%}" in page
    assert f"borrowed_rate={stats.borrowed_rate:.0%}" in repr(stats)
    borrowed = next(one for one in stats.by_document if one.borrowed_tokens)
    assert f"% exact, {borrowed.borrowed_rate:.0%} borrowed of" in str(stats)


def test_counters_of_an_engine_that_borrows_tell_whether_it_still_may():
    stats = CacheStats(
        finished=80,
        prompt_tokens=1000,
        borrowed=CachedTokens(host=600),
        approximate=70,
        rechecked=50,
        drift=0.3125,
        is_switched_off=True,
    )
    rows = {" ".join(line.split()) for line in str(stats).splitlines()}
    assert "borrowed (approximate) 60% of 1,000 prompt tokens" in rows
    assert "approximate answers 70 of 80" in rows
    assert "drift 0.31 over 50 rechecked answers" in rows
    assert "borrowing switched off: answers drifted" in rows
    assert not any(word in str(CacheStats(prompt_tokens=9)) for word in ("borrow", "drift"))


def test_a_prompt_that_borrowed_nothing_says_why():
    usage = Usage(10, 2, CachedTokens(), ttft_s=0.1, total_s=0.2, why_exact="asked to be exact")
    assert "asked to be exact" in usage._repr_html_()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"model": "org/name"}, "org/name"),
        ({"model": "/models/tiny-v1"}, "tiny-v1"),
        ({"model": "/models/tiny-v1/"}, "tiny-v1"),
        ({"model": "./models/tiny"}, "tiny"),
        ({"model": "~/models/tiny"}, "tiny"),
        ({"model": "/models/tiny-v1", "served_model_name": "tiny"}, "tiny"),
        ({"model": "/m/x", "vllm_args": {"served_model_name": ["tiny", "other"]}}, "tiny"),
        ({"model": "/m/x", "vllm_args": {"served_model_name": "tiny"}}, "tiny"),
    ],
)
def test_a_model_has_a_name_that_is_no_path(settings: dict[str, object], name: str):
    assert EngineConfig.model_validate(settings).model_name == name


def test_a_folder_that_looks_like_a_hub_id_is_named_without_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert EngineConfig(model="models/tiny").model_name == "tiny"
