"""Nodes of a LlamaIndex index, prefilled before anybody asks about them."""

import asyncio

import pytest
from llama_index.core.query_engine import RetrieverQueryEngine

from ragcache_engine import EngineConfig, RAGCacheEngine, UnknownDocument, UnknownTemplate
from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

TEMPLATE = "Answer from these texts.\n\n{context_str}\n\nQuestion: {query_str}\n"
QUESTION = "Why do the tides rise?"


def query_engine_of(retriever, llm):
    from llama_index.core import PromptTemplate

    template = PromptTemplate(TEMPLATE)
    return RetrieverQueryEngine.from_args(retriever, llm=llm, text_qa_template=template)


def cached_by(engine, ask):
    before = engine.stats().cached.total
    ask(QUESTION)
    return engine.stats().cached.total - before


def test_a_filled_index_is_prefilled_with_one_call(index, engine):
    retriever = RAGCacheRetriever.from_index(
        index, engine=engine, similarity_top_k=1, template=TEMPLATE
    )
    warmed = retriever.warm()
    assert warmed.sets == 6
    assert warmed.computed_tokens > 0
    asked = query_engine_of(retriever, RAGCacheLLM(engine=engine))
    assert cached_by(engine, asked.query) >= 32


def test_some_nodes_can_be_chosen_and_coroutines_warm_too(index, engine, nodes):
    retriever = RAGCacheRetriever.from_index(index, engine=engine, template=TEMPLATE)
    assert asyncio.run(retriever.awarm(nodes[:2])).sets == 2
    again = retriever.warm(nodes[:2])
    assert again.computed_tokens < again.prompt_tokens / 2


def test_without_a_template_it_is_asked_for(index, engine):
    retriever = RAGCacheRetriever.from_index(index, engine=engine)
    with pytest.raises(UnknownTemplate, match="give template="):
        retriever.warm()


@pytest.mark.parametrize("donors", ["alone", "neighbours"])
def test_what_a_prompt_borrows_is_prefilled_as_well(index, donors):
    config = EngineConfig(
        backend="memory", reuse="anywhere", recompute_ratio=0.1, donors=donors, speculation="off"
    )
    with RAGCacheEngine(config) as engine:
        retriever = RAGCacheRetriever.from_index(
            index, engine=engine, similarity_top_k=3, template=TEMPLATE
        )
        retriever.warm()
        query_engine_of(retriever, RAGCacheLLM(engine=engine)).query(QUESTION)
        assert engine.stats().borrowed.total >= 32


def test_a_node_that_the_docstore_lacks_is_named(index, engine):
    index.docstore.delete_document("tides")
    retriever = RAGCacheRetriever.from_index(index, engine=engine, template=TEMPLATE)
    with pytest.raises(UnknownDocument, match="tides"):
        retriever.warm()
