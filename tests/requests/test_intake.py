"""How a prompt is taken in: which documents it holds, and which prompts are refused."""

from __future__ import annotations

import pytest
from slices import SLICES, TWELVE, WITH, prompt_of

from ragcache_engine import (
    EmptyPrompt,
    InvalidArgument,
    PromptTooLong,
    RAGCacheEngine,
)


def test_documents_may_be_given_with_the_prompt(engine: RAGCacheEngine):
    usage = engine.generate(prompt_of(SLICES, WITH), [SLICES], options=TWELVE).usage
    assert usage.document_ids == ("slices",)


def test_an_empty_prompt_is_refused(engine: RAGCacheEngine):
    with pytest.raises(EmptyPrompt, match="template"):
        engine.generate("")


def test_a_prompt_longer_than_the_context_is_refused_before_any_work(engine: RAGCacheEngine):
    before = engine.stats()
    with pytest.raises(PromptTooLong, match="fewer or shorter documents"):
        engine.stream("word " * (engine.limits.context_tokens + 1))
    assert engine.stats() == before


def test_a_prompt_that_is_no_text_is_refused(engine: RAGCacheEngine):
    with pytest.raises(TypeError, match="string"):
        engine.generate(["a", "list"])  # type: ignore[arg-type]


def test_a_ratio_for_an_engine_that_borrows_nothing_is_refused(memory_engine: RAGCacheEngine):
    with pytest.raises(InvalidArgument, match="anywhere"):
        memory_engine.generate("Why?", recompute_ratio=0.1)
