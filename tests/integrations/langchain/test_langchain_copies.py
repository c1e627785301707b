"""Copies of what runs on an engine share the engine; what is pickled says why it cannot be."""

import copy
import json
import pickle

import pytest
from langchain_core.load import dumps, load
from langchain_core.prompts import PromptTemplate

from ragcache_engine import EngineNeeded
from ragcache_integrations.langchain import (
    ChatRAGCache,
    FaissVectorStore,
    RAGCacheLLM,
    RAGCacheRetriever,
)
from ragcache_integrations.langchain.retriever import engine_document

QUESTION = "Why is the sky blue?"
KINDS = [RAGCacheLLM, ChatRAGCache]


@pytest.fixture
def own_store(corpus, embeddings):
    return FaissVectorStore.from_texts(list(corpus.values()), embeddings, ids=list(corpus))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copied_model_shares_the_engine(engine, kind, duplicate):
    model = kind(engine=engine, temperature=0, stop=["x"])
    twin = duplicate(model)
    assert twin == model
    assert twin.engine is engine
    assert twin.invoke(QUESTION)


def test_a_deep_copy_of_a_model_has_settings_of_its_own(engine):
    llm = RAGCacheLLM(engine=engine, stop=["x"])
    copy.deepcopy(llm).stop.append("y")
    assert llm.stop == ["x"]


@pytest.mark.parametrize("which", ["store", "own_store"])
def test_a_deep_copy_of_a_chain_shares_engine_and_store(chain_of, request, engine, which):
    store = request.getfixturevalue(which)
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
    chain = chain_of(retriever, RAGCacheLLM(engine=engine, temperature=0))
    twin = copy.deepcopy(chain)
    assert twin.invoke(QUESTION) == chain.invoke(QUESTION)
    assert twin.middle[-1].engine is engine
    copied = copy.deepcopy(retriever)
    assert (copied.engine, copied.vectorstore) == (engine, store)
    assert copied.invoke(QUESTION) == retriever.invoke(QUESTION)


def test_a_deep_copy_of_a_retriever_writes_prompts_as_the_chain_it_was_copied_from(
    chain_of, store, engine, corpus
):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
    chain = chain_of(retriever, RAGCacheLLM(engine=engine, temperature=0))
    for question in (QUESTION, "Why does bread rise?", "How do bees dance?"):
        chain.invoke(question)
    found = [engine_document(document) for document in retriever.invoke(QUESTION)]
    assert engine.warm([found], chain=copy.deepcopy(retriever).chain).sets == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_model_is_refused_with_what_to_do_instead(engine, kind):
    with pytest.raises(EngineNeeded, match=r"dumps\(model\).*secrets_map"):
        pickle.dumps(kind(engine=engine))
    with pytest.raises(EngineNeeded, match="cannot be pickled"):
        pickle.dumps(kind(engine=engine) | str)


@pytest.mark.parametrize("which", ["store", "own_store"])
def test_a_pickled_retriever_is_refused_with_what_to_do_instead(request, engine, which):
    retriever = RAGCacheRetriever.from_vectorstore(request.getfixturevalue(which), engine=engine)
    with pytest.raises(EngineNeeded, match="from_vectorstore"):
        pickle.dumps(retriever)


def test_a_chain_that_was_saved_as_text_runs_on_the_engine_given_at_loading(engine):
    chain = PromptTemplate.from_template("{question}") | RAGCacheLLM(engine=engine, temperature=0)
    loaded = load(
        json.loads(dumps(chain)),
        allowed_objects=[RAGCacheLLM, PromptTemplate, type(chain)],
        valid_namespaces=["ragcache_integrations"],
        secrets_map={"RAGCACHE_ENGINE": engine},
    )
    assert loaded.invoke({"question": QUESTION}) == chain.invoke({"question": QUESTION})
