"""Any retriever, over any store, may tell the engine what it finds: RAGCacheRetriever.from_retriever."""

import asyncio
from copy import deepcopy
from hashlib import sha256
from pickle import dumps

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from waiting import eventually

from ragcache_engine import EngineConfig, EngineNeeded, InvalidArgument, UnsupportedStore
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.langchain import EngineRetriever, RAGCacheLLM, RAGCacheRetriever

QUESTION = "Why is the sky blue?"


class NoSuchDatabase(RuntimeError):
    pass


class Keywords(BaseRetriever):
    """Finds the texts with most of the question's words; they have no ids."""

    texts: list[str]

    def _get_relevant_documents(self, query, *, run_manager, k=2):
        if "down" in query:
            raise NoSuchDatabase("the database is down")
        words = set(query.lower().split())
        ranked = sorted(self.texts, key=lambda text: -len(words & set(text.lower().split())))
        return [Document(text) for text in ranked[:k]]


class Runs(BaseCallbackHandler):
    """The names and tags of each retriever's run, and how it ended."""

    def __init__(self):
        self.seen = []

    def on_retriever_start(self, serialized, query, *, tags=None, metadata=None, name=None, **_):
        self.seen.append(("start", name, query, tags, (metadata or {}).get("of")))

    def on_retriever_end(self, documents, **_):
        self.seen.append(("end", len(documents)))

    def on_retriever_error(self, error, **_):
        self.seen.append(("error", str(error)))


@pytest.fixture
def memory_store(corpus, embeddings):
    documents = [Document(text, id=name) for name, text in corpus.items()]
    return InMemoryVectorStore.from_documents(documents, embeddings)


@pytest.fixture
def keywords(corpus):
    return Keywords(texts=list(corpus.values()), tags=["mine"], metadata={"of": "us"}, name="found")


@pytest.fixture(params=["store", "keywords", "sequence"])
def stock(request, memory_store, keywords):
    """A store's own retriever, a retriever of one's own, and a sequence that reranks."""
    turn_round = RunnableLambda(lambda documents: documents[::-1])
    return {
        "store": memory_store.as_retriever(search_kwargs={"k": 3}),
        "keywords": keywords,
        "sequence": keywords | turn_round,
    }[request.param]


@pytest.fixture
def ours(stock, engine):
    return RAGCacheRetriever.from_retriever(stock, engine=engine)


def test_it_finds_what_the_other_retriever_finds_in_every_way_of_asking(stock, ours):
    found = stock.invoke(QUESTION)
    assert len(found) >= 2
    assert ours.invoke(QUESTION) == found
    assert asyncio.run(ours.ainvoke(QUESTION)) == found
    assert ours.batch([QUESTION]) == asyncio.run(ours.abatch([QUESTION])) == [found]
    assert list(ours.stream(QUESTION)) == [found]


def test_a_calls_options_reach_the_other_retriever(keywords, engine):
    ours = RAGCacheRetriever.from_retriever(keywords, engine=engine)
    assert len(ours.invoke(QUESTION, k=5)) == 5
    assert len(ours.bind(k=1).invoke(QUESTION)) == 1


def test_the_engine_recognises_the_documents_in_the_prompt_by_id_or_by_content(
    stock, ours, engine, chain_of
):
    prompts = chain_of(ours, RAGCacheLLM(engine=engine, temperature=0))
    prompts.invoke(QUESTION)
    found = stock.invoke(QUESTION)
    names = [each.id or sha256(each.page_content.encode()).hexdigest() for each in found]
    prompt = "\n".join(each.page_content for each in found)
    assert list(engine.generate(prompt).usage.document_ids) == names


def test_documents_come_in_the_order_that_the_engine_is_set_to(keywords, engine_on):
    engine = engine_on(MemoryBackend(), document_order="canonical")
    turned_round = keywords | RunnableLambda(lambda documents: documents[::-1])
    assert turned_round.invoke(QUESTION) != keywords.invoke(QUESTION)
    one, other = (
        RAGCacheRetriever.from_retriever(stock, engine=engine).invoke(QUESTION)
        for stock in (keywords, turned_round)
    )
    assert one == other


def test_the_first_prompt_is_begun_early_if_the_template_is_given(keywords, engine_on):
    engine = engine_on(MemoryBackend(), speculation="on")
    llm = RAGCacheLLM(engine=engine, temperature=0)
    template = PromptTemplate.from_template("{context}\n\nQuestion: {question}\n")
    ours = RAGCacheRetriever.from_retriever(keywords, engine=engine, template=template, llm=llm)
    context = "\n\n".join(document.page_content for document in ours.invoke(QUESTION))
    assert eventually(lambda: engine.stats().speculation.started == 1)
    llm.invoke(template.format(context=context, question=QUESTION))
    assert engine.stats().speculation.adopted == 1


def test_callbacks_see_one_run_with_the_stock_name_tags_and_metadata(stock, ours):
    theirs, seen = Runs(), Runs()
    stock.invoke(QUESTION, {"callbacks": [theirs], "tags": ["call"]})
    ours.invoke(QUESTION, {"callbacks": [seen], "tags": ["call"]})
    assert seen.seen == theirs.seen
    assert [each[0] for each in seen.seen] == ["start", "end"]
    asyncio.run(ours.ainvoke(QUESTION, {"callbacks": [seen], "tags": ["call"]}))
    assert seen.seen == theirs.seen * 2
    assert ours.get_name() == stock.get_name()


def test_the_other_retrievers_errors_come_out_unchanged(keywords, engine):
    ours = RAGCacheRetriever.from_retriever(keywords, engine=engine)
    seen = Runs()
    with pytest.raises(NoSuchDatabase, match=r"^the database is down$"):
        ours.invoke("down?", {"callbacks": [seen]})
    assert [each[0] for each in seen.seen] == ["start", "error"]
    with pytest.raises(NoSuchDatabase):
        asyncio.run(ours.ainvoke("down?"))
    assert ours.invoke(QUESTION)  # and the next question is answered


@pytest.mark.parametrize("question", [QUESTION, {"question": QUESTION}])
def test_what_the_engine_cannot_be_told_passes_through(question, engine):
    odd = RunnableLambda(lambda asked: ("no", "documents", asked))
    ours = RAGCacheRetriever.from_retriever(odd, engine=engine)
    assert ours.invoke(question) == ("no", "documents", question)
    assert asyncio.run(ours.ainvoke(question)) == ("no", "documents", question)


def test_a_copy_shares_the_engine_the_retriever_and_the_chain(ours):
    twin = deepcopy(ours)
    assert (twin.engine, twin.retriever, twin.chain) == (ours.engine, ours.retriever, ours.chain)
    with pytest.raises(EngineNeeded, match="from_retriever"):
        dumps(ours)


def test_what_is_no_retriever_is_refused(memory_store, store, engine):
    with pytest.raises(InvalidArgument, match=r"give store\.as_retriever\(\)"):
        RAGCacheRetriever.from_retriever(memory_store, engine=engine)
    with pytest.raises(InvalidArgument, match="takes a retriever, got str"):
        RAGCacheRetriever.from_retriever("documents", engine=engine)
    told = RAGCacheRetriever.from_vectorstore(store, engine=engine)
    with pytest.raises(InvalidArgument, match="tells an engine already"):
        RAGCacheRetriever.from_retriever(told, engine=engine)


def test_engine_llm_and_template_are_checked_as_elsewhere(keywords, engine, make_engine, recording):
    with pytest.raises(InvalidArgument, match="engine= takes a RAGCacheEngine"):
        RAGCacheRetriever.from_retriever(keywords, engine=EngineConfig(backend="memory"))
    other = RAGCacheLLM(engine=make_engine(recording()))
    with pytest.raises(InvalidArgument, match="two engines"):
        RAGCacheRetriever.from_retriever(keywords, engine=engine, llm=other)
    with pytest.raises(ValueError, match="template"):
        RAGCacheRetriever.from_retriever(keywords, engine=engine, template=3)


def test_the_error_about_another_store_names_the_way(memory_store, engine):
    with pytest.raises(UnsupportedStore, match=r"from_retriever\(store\.as_retriever\(\), engine="):
        RAGCacheRetriever.from_vectorstore(memory_store, engine=engine)


def test_retrievers_of_every_store_have_one_base_that_warms(store, engine, corpus):
    template = "{context}\n\n{question}"
    other = RunnableLambda(lambda question: [Document(text) for text in corpus.values()])
    ours = RAGCacheRetriever.from_vectorstore(store, engine=engine, template=template)
    told = RAGCacheRetriever.from_retriever(other, engine=engine, template=template)
    for retriever in (ours, told):
        assert isinstance(retriever, EngineRetriever)
        assert retriever.warm(other.invoke("")).sets == len(corpus)
    assert asyncio.run(ours.awarm(only_missing=True)).sets == len(corpus)
    with pytest.raises(InvalidArgument, match=r"RunnableLambda does not tell .* give those"):
        told.warm()
