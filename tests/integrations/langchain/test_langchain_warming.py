"""Documents of a LangChain store, prefilled before anybody asks about them."""

import asyncio

import pytest
from langchain_core.callbacks import BaseCallbackHandler

from ragcache_engine import EngineConfig, RAGCacheEngine, UnknownDocument, UnknownTemplate
from ragcache_integrations.langchain import FaissVectorStore, RAGCacheLLM, RAGCacheRetriever

TEMPLATE = "Answer from these texts.\n\n{context}\n\nQuestion: {question}\n"
QUESTION = "Why do the tides rise?"


class Heard(BaseCallbackHandler):
    """Keeps what the last answer cost."""

    def on_llm_end(self, response, **_):
        self.info = response.generations[0][0].generation_info


def cost_of(chain, question=QUESTION):
    heard = Heard()
    chain.invoke(question, config={"callbacks": [heard]})
    return heard.info


def cached_of(info):
    return info["usage_metadata"]["input_token_details"]["cache_read"]


def test_a_filled_store_is_prefilled_with_one_call(store, engine, chain_of):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=1, template=TEMPLATE)
    warmed = retriever.warm()
    assert warmed.sets == 6
    assert warmed.computed_tokens > 0
    info = cost_of(chain_of(retriever, RAGCacheLLM(engine=engine)))
    assert cached_of(info) >= 32


def test_some_documents_can_be_chosen_and_coroutines_warm_too(store, engine):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, template=TEMPLATE)
    found = store.similarity_search(QUESTION, k=2)
    assert asyncio.run(retriever.awarm(found)).sets == 2
    again = retriever.warm(found)
    assert again.computed_tokens < again.prompt_tokens / 2


def test_the_form_of_the_chains_last_prompt_will_do(store, engine, chain_of):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=1)
    with pytest.raises(UnknownTemplate, match="give template="):
        retriever.warm()
    chain_of(retriever, RAGCacheLLM(engine=engine)).invoke(QUESTION)
    assert retriever.warm().sets == 6


def test_documents_are_prefilled_for_the_tenant_of_the_llm(store, engine, chain_of):
    ours = RAGCacheLLM(engine=engine, tenant="ours")
    retriever = RAGCacheRetriever.from_vectorstore(
        store, engine=engine, k=1, template=TEMPLATE, llm=ours
    )
    retriever.warm()
    theirs = RAGCacheLLM(engine=engine, tenant="theirs")
    assert cached_of(cost_of(chain_of(retriever, theirs))) == 0
    assert cached_of(cost_of(chain_of(retriever, ours))) >= 32


@pytest.mark.parametrize("donors", ["alone", "neighbours"])
def test_what_a_prompt_borrows_is_prefilled_as_well(corpus, embeddings, chain_of, donors):
    long = [f"{text} " * 3 for text in corpus.values()]
    store = FaissVectorStore.from_texts(long, embeddings, ids=list(corpus))
    config = EngineConfig(
        backend="memory", reuse="anywhere", recompute_ratio=0.1, donors=donors, speculation="off"
    )
    with RAGCacheEngine(config) as engine:
        retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=3, template=TEMPLATE)
        retriever.warm()
        info = cost_of(chain_of(retriever, RAGCacheLLM(engine=engine)))
    assert info["borrowed_tokens"] >= 100, (
        info["usage_metadata"],
        info.get("why_exact"),
        info.get("reused"),
    )


def test_our_own_store_is_prefilled_too(corpus, embeddings, engine):
    ours = FaissVectorStore.from_texts(list(corpus.values()), embeddings, ids=list(corpus))
    assert [one.id for one in ours.all_documents()] == list(corpus)
    ours.delete(["sky"])
    retriever = RAGCacheRetriever.from_vectorstore(ours, engine=engine, template=TEMPLATE)
    assert retriever.warm().sets == len(corpus) - 1


def test_an_empty_store_needs_nothing(embeddings, engine):
    ours = FaissVectorStore(embeddings)
    retriever = RAGCacheRetriever.from_vectorstore(ours, engine=engine, template=TEMPLATE)
    assert retriever.warm().sets == 0


def test_a_document_that_the_docstore_lacks_is_named(store, engine):
    store.docstore.delete(["tides"])
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, template=TEMPLATE)
    with pytest.raises(UnknownDocument, match="tides"):
        retriever.warm()
