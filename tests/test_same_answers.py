"""The promise of promises: swapping the classes does not change a token.

In float32, greedy, against stock vLLM run by itself: the demo's questions and some real ones.
(`make same-answers` asks hundreds, in bfloat16 too; this test takes its parts from there.)
"""

from __future__ import annotations

from typing import Any

import pytest
import same_answers as same
from question_files import DATA, has_sets

from ragcache_engine import RAGCacheEngine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

QUESTIONS = 20
AT_ONCE = 8


@pytest.fixture(scope="module")
def demo_prompts() -> list[Any]:
    from ragcache_cli.embedding import load_embedder
    from ragcache_cli.folders import cache_home
    from ragcache_cli.index import update_index
    from ragcache_cli.prompts import CHATML
    from ragcache_cli.python_topics import python_topics
    from ragcache_cli.questions import QUESTIONS as DEMO_QUESTIONS

    embedder = load_embedder()
    index = update_index(cache_home() / "python-topics", python_topics(), embedder).index
    prompts = []
    for question in DEMO_QUESTIONS:
        passages = index.nearest(embedder.embed([question])[0], 3)
        text = CHATML.filled([passage.shown for passage in passages], question)
        prompts.append(same.Prompt(text, {passage.id: passage.shown for passage in passages}))
    return prompts


@pytest.fixture(scope="module")
def real_prompts() -> list[Any]:
    """None where the question sets are not at hand."""
    return list(same.data_prompts(QUESTIONS)) if has_sets() else []


@pytest.fixture(scope="module")
def stock_tokens(
    stock_vllm: Any, demo_prompts: list[Any], real_prompts: list[Any]
) -> dict[str, list[int]]:
    """The answer to each prompt by its text."""
    texts = [prompt.text for prompt in (*demo_prompts, *real_prompts)]
    return dict(zip(texts, same.tokens_by(stock_vllm, texts, len(texts)), strict=True))


def test_every_demo_question_gets_the_tokens_of_stock_vllm(
    vllm_engine: RAGCacheEngine,
    demo_prompts: list[Any],
    stock_tokens: dict[str, list[int]],
):
    assert_same(vllm_engine, demo_prompts, stock_tokens)


def test_real_questions_get_the_tokens_of_stock_vllm(
    vllm_engine: RAGCacheEngine,
    real_prompts: list[Any],
    stock_tokens: dict[str, list[int]],
):
    if not real_prompts:
        pytest.skip(f"the question sets are not at {DATA} (RAGCACHE_DATA names another folder)")
    assert_same(vllm_engine, real_prompts, stock_tokens)


def assert_same(engine: RAGCacheEngine, prompts: list[Any], stock: dict[str, list[int]]) -> None:
    before = engine.stats().cached.total
    ours = same.ragcache_tokens(engine, prompts, AT_ONCE)
    differing = [
        n for n, (a, b) in enumerate(zip(ours, prompts, strict=True)) if a != stock[b.text]
    ]
    assert differing == []
    assert engine.stats().cached.total > before  # or nothing was tried
