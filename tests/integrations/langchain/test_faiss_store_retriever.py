"""RAGCacheRetriever over FaissVectorStore, on an engine without a model."""

import asyncio

import pytest

from ragcache_engine import InvalidTopK, QueryShapeError
from ragcache_integrations.langchain import (
    FaissVectorStore,
    HNSWIndex,
    IVFIndex,
    RAGCacheLLM,
    RAGCacheRetriever,
)

QUESTIONS = ["Why is the sky blue?", "Why does bread rise in the oven?", "How do bees dance?"]


@pytest.fixture(params=["flat", IVFIndex(nlist=2, nprobe=2, train_from=2), HNSWIndex()], ids=str)
def ours(request, corpus, embeddings):
    metadatas = [{"length": len(text)} for text in corpus.values()]
    return FaissVectorStore.from_texts(
        list(corpus.values()), embeddings, metadatas, ids=list(corpus), index=request.param
    )


@pytest.mark.parametrize(
    ("search_type", "options"),
    [
        ("similarity", {}),
        ("similarity", {"filter": {"length": {"$lt": 150}}}),
        ("similarity", {"filter": lambda metadata: metadata["length"] > 150}),
        ("mmr", {"fetch_k": 5, "lambda_mult": 0.2}),
        ("similarity_score_threshold", {"score_threshold": 0.15}),
    ],
)
def test_it_finds_what_the_stores_own_retriever_finds(ours, engine, search_type, options):
    retriever = RAGCacheRetriever.from_vectorstore(
        ours, engine=engine, k=3, search_type=search_type, **options
    )
    stock = ours.as_retriever(search_type=search_type, search_kwargs={"k": 3, **options})
    assert retriever.invoke(QUESTIONS[0])
    for question in QUESTIONS:
        found = retriever.invoke(question)
        assert found == stock.invoke(question)
        assert found == asyncio.run(retriever.ainvoke(question))
    assert retriever.batch(QUESTIONS) == stock.batch(QUESTIONS)


def test_the_query_is_embedded_once_in_every_kind_of_search(ours, engine, embeddings):
    for count, (search_type, options) in enumerate(
        [("similarity", {}), ("mmr", {}), ("similarity_score_threshold", {"score_threshold": 0.1})],
        start=1,
    ):
        RAGCacheRetriever.from_vectorstore(
            ours, engine=engine, search_type=search_type, **options
        ).invoke(QUESTIONS[0])
        assert embeddings.queries == count


def test_the_engine_recognises_what_was_found_in_a_whole_chain(ours, engine, chain_of, recorded):
    retriever = RAGCacheRetriever.from_vectorstore(ours, engine=engine, k=2)
    chain = chain_of(retriever, RAGCacheLLM(engine=engine, temperature=0))
    assert chain.invoke(QUESTIONS[0])
    ((prompt, _),) = recorded
    answer = engine.generate(prompt)
    assert answer.usage.document_ids[0] == "sky"


def test_what_cannot_be_found_is_named(ours, engine, embeddings):
    retriever = RAGCacheRetriever.from_vectorstore(ours, engine=engine)
    with pytest.raises(InvalidTopK):
        retriever.invoke(QUESTIONS[0], k=0)
    embeddings.size = 32
    with pytest.raises(QueryShapeError, match="32 dimensions, the index 64"):
        retriever.invoke(QUESTIONS[0])
    ours.delete()
    asked = embeddings.queries
    assert retriever.invoke(QUESTIONS[0]) == []
    assert embeddings.queries == asked


def test_a_store_may_be_filled_after_its_retriever_was_made(engine, embeddings):
    store = FaissVectorStore(embeddings)
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=1)
    store.add_texts(["Snow is white since its crystals scatter all light."], ids=["snow"])
    assert retriever.invoke("Why is snow white?")[0].id == "snow"
    store.add_texts(["Snow is frozen water."], ids=["snow"])
    assert retriever.invoke("Why is snow white?")[0].page_content == "Snow is frozen water."
