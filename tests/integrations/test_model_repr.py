"""A model on an engine says in one short line what it is, in both frameworks."""

from __future__ import annotations

from typing import Any

import pytest

from ragcache_engine import RAGCacheEngine

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

from llama_index.core.retrievers import BaseRetriever

from ragcache_integrations import langchain, llamaindex

MODELS = [langchain.RAGCacheLLM, langchain.ChatRAGCache, llamaindex.RAGCacheLLM]


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_shows_its_engine_and_what_was_set(kind: Any, memory_engine: RAGCacheEngine):
    plain = kind(engine=memory_engine)
    assert repr(plain) == str(plain) == f"{kind.__name__}({memory_engine!r})"
    llm = kind(engine=memory_engine, temperature=0, max_tokens=64, tenant="shop")
    told = f"{memory_engine!r}, temperature=0.0, max_new_tokens=64, tenant='shop'"
    assert repr(llm) == f"{kind.__name__}({told})"


def test_a_retriever_of_another_one_names_both(memory_engine: RAGCacheEngine):
    class Nothing(BaseRetriever):
        def _retrieve(self, query_bundle: Any) -> list[Any]:
            return []

    retriever = llamaindex.RAGCacheRetriever.from_retriever(Nothing(), engine=memory_engine)
    assert repr(retriever) == f"ReportingRetriever(Nothing, engine={memory_engine!r})"
