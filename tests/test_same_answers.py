"""The promise of promises: swapping the classes does not change a token.

In float32, greedy, against stock vLLM run by itself: the demo's questions and a hundred real ones.
(What bfloat16 does is measured by benchmarks/same_answers.py, which this test takes its parts from.)
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from ragcache_engine import RAGCacheEngine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

QUESTIONS = 100
AT_ONCE = 8


@pytest.fixture(scope="module")
def same() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "same_answers.py"
    spec = spec_from_file_location("same_answers", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_demo_question_gets_the_tokens_of_stock_vllm(
    vllm_engine: RAGCacheEngine, same: ModuleType
):
    from ragcache_cli.embedding import load_embedder
    from ragcache_cli.folders import cache_home
    from ragcache_cli.index import up_to_date
    from ragcache_cli.prompts import CHATML
    from ragcache_cli.python_topics import python_topics
    from ragcache_cli.questions import QUESTIONS as DEMO_QUESTIONS

    embedder = load_embedder()
    index = up_to_date(cache_home() / "python-topics", python_topics(), embedder).index
    prompts = []
    for question in DEMO_QUESTIONS:
        passages = index.nearest(embedder.embed([question])[0], 3)
        text = CHATML.filled([passage.shown for passage in passages], question)
        prompts.append(same.Prompt(text, {passage.id: passage.shown for passage in passages}))
    assert_same(vllm_engine, same, prompts)


def test_a_hundred_real_questions_get_the_tokens_of_stock_vllm(
    vllm_engine: RAGCacheEngine, same: ModuleType
):
    if not same.DATA.is_dir():
        pytest.skip(
            f"the question sets are not at {same.DATA} (RAGCACHE_DATA names another folder)"
        )
    assert_same(vllm_engine, same, same.data_prompts(QUESTIONS))


def assert_same(engine: RAGCacheEngine, same: ModuleType, prompts: list[object]) -> None:
    before = engine.stats().cached.total
    ours = same.ragcache_tokens(engine, prompts, AT_ONCE)
    stock = same.tokens_of("vLLM", engine.config.model, "float32", prompts, len(prompts))
    differing = [n for n, (a, b) in enumerate(zip(ours, stock, strict=True)) if a != b]
    assert differing == []
    assert engine.stats().cached.total > before  # or nothing was tried
