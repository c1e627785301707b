import asyncio
from hashlib import sha256

import pytest
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.runnables import ConfigurableField

from ragcache_engine import InvalidArgument
from ragcache_integrations.langchain import RAGCacheLLM, RAGCacheRetriever
from ragcache_integrations.langchain.retriever import engine_document

QUESTIONS = ["Why is the sky blue?", "Why does bread rise in the oven?", "How do bees dance?"]
SEARCHES = [
    ("similarity", {}),
    ("similarity", {"filter": lambda metadata: metadata["length"] > 150, "fetch_k": 6}),
    ("similarity", {"filter": {"length": {"$lt": 150}}, "fetch_k": 6}),
    ("similarity", {"score_threshold": 1.75}),
    ("mmr", {"fetch_k": 5, "lambda_mult": 0.2}),
    ("similarity_score_threshold", {"score_threshold": -0.24}),
]


@pytest.mark.parametrize("k", [1, 3, 100])
@pytest.mark.parametrize("question", QUESTIONS)
def test_it_finds_what_the_stock_retriever_finds(store, engine, question, k):
    ours = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=k)
    assert ours.invoke(question) == store.as_retriever(search_kwargs={"k": k}).invoke(question)


@pytest.mark.filterwarnings("ignore:Relevance scores must be between")
@pytest.mark.parametrize(("search_type", "options"), SEARCHES)
def test_every_kind_of_search_finds_what_the_stock_retriever_finds(
    store, engine, search_type, options
):
    ours = RAGCacheRetriever.from_vectorstore(
        store, engine=engine, k=3, search_type=search_type, **options
    )
    stock = store.as_retriever(search_type=search_type, search_kwargs={"k": 3, **options})
    for question in QUESTIONS:
        found = ours.invoke(question)
        assert found == stock.invoke(question)
        assert found == asyncio.run(ours.ainvoke(question))


def test_it_asks_for_four_documents_unless_told_otherwise(store, engine):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine)
    assert len(retriever.invoke("the")) == 4
    assert len(retriever.invoke("the", k=2)) == 2


def test_it_takes_what_the_stores_own_retriever_takes(store, engine):
    given = {"search_kwargs": {"k": 2}, "tags": ["mine"], "metadata": {"of": "us"}, "name": "found"}
    ours, stock = (
        RAGCacheRetriever.from_vectorstore(store, engine=engine, **given),
        store.as_retriever(**given),
    )
    assert ours.invoke(QUESTIONS[0]) == stock.invoke(QUESTIONS[0])
    assert (ours.tags, ours.metadata, ours.name) == (stock.tags, stock.metadata, stock.name)
    assert ours.search_kwargs == {"k": 2}
    assert RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2).search_kwargs == {"k": 2}


def test_its_traces_have_the_tags_of_the_stores_own_retriever(store, engine):
    ours, stock = RAGCacheRetriever.from_vectorstore(store, engine=engine), store.as_retriever()
    assert ours.tags == stock.tags == ["FAISS", "HashedWords"]


def test_two_different_numbers_of_documents_are_refused(store, engine):
    with pytest.raises(InvalidArgument, match=r"k=3 and search_kwargs=.*give one of them"):
        RAGCacheRetriever.from_vectorstore(store, engine=engine, k=3, search_kwargs={"k": 2})


@pytest.mark.parametrize("k", ["3", 3.0, True, [3]], ids=repr)
def test_a_number_of_documents_that_is_no_whole_number_is_refused(store, engine, k):
    with pytest.raises(InvalidArgument, match="must be a whole number, such as 4"):
        RAGCacheRetriever.from_vectorstore(store, engine=engine, k=k)
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine)
    with pytest.raises(InvalidArgument, match="must be a whole number, such as 4"):
        retriever.invoke(QUESTIONS[0], k=k)


def test_a_question_that_is_no_text_is_refused_by_name(store, engine):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine)
    for question in (None, 3, {"question": "Why?"}):
        with pytest.raises(InvalidArgument, match="a question must be a string"):
            retriever.invoke(question)


def test_documents_of_langchain_are_refused_where_the_engine_wants_its_own(engine):
    found = [Document("Tides follow the moon.")]
    advice = r"ragcache_engine.*Document\(id, text\)"
    with pytest.raises(InvalidArgument, match=advice) as caught:
        engine.generate("Tides follow the moon. Why?", found)
    assert "got a langchain_core.documents.base.Document" in str(caught.value)
    with pytest.raises(InvalidArgument, match=advice) as caught:
        engine.generate("Tides follow the moon. Why?", found[0])
    assert "got a langchain_core.documents.base.Document" in str(caught.value)


def test_a_batch_finds_what_single_questions_find(store, engine):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
    single = [retriever.invoke(question) for question in QUESTIONS]
    assert retriever.batch(QUESTIONS) == single
    assert asyncio.run(retriever.abatch(QUESTIONS)) == single


def test_the_query_is_embedded_once(store, engine, embeddings):
    RAGCacheRetriever.from_vectorstore(
        store, engine=engine, search_type="similarity_score_threshold", score_threshold=0.1
    ).invoke("Why is the sky blue?")
    assert embeddings.queries == 1


def test_a_store_with_a_plain_embedding_function_works_in_both_worlds(store, engine, bag_of_words):
    plain = FAISS(bag_of_words, store.index, store.docstore, store.index_to_docstore_id)
    retriever = RAGCacheRetriever.from_vectorstore(plain, engine=engine, k=2)
    found = retriever.invoke("Why is the sky blue?")
    assert found == store.similarity_search("Why is the sky blue?", k=2)
    assert asyncio.run(retriever.ainvoke("Why is the sky blue?")) == found


@pytest.mark.parametrize("slow", ["embedding", "search"])
def test_the_event_loop_runs_on_while_documents_are_found(
    store, engine, embeddings, gate, slow, monkeypatch
):
    if slow == "embedding":
        embeddings.gate = gate
    else:
        search = store.similarity_search_by_vector

        def gated(*args, **kwargs):
            gate.pass_through()
            return search(*args, **kwargs)

        monkeypatch.setattr(store, "similarity_search_by_vector", gated)

    async def ask():
        retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=1)
        asking = asyncio.create_task(retriever.ainvoke("Why is the sky blue?"))
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        gate.open()
        return await asking

    assert asyncio.run(ask())[0].id == "sky"
    assert gate.was_opened


def test_the_engine_recognises_what_was_found(store, engine, corpus):
    RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2).invoke("Why is the sky blue?")
    answer = engine.generate(f"Read this.\n{corpus['sky']}\nWhy is the sky blue?")
    assert answer.usage.document_ids == ("sky",)


def test_documents_may_be_added_after_the_retriever_was_made(store, engine):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=1)
    store.add_documents(
        [Document("Snow is white since its crystals scatter all light.", id="snow")]
    )
    assert retriever.invoke("Why is snow white?")[0].id == "snow"


def test_a_document_without_an_id_is_named_by_its_content():
    named = engine_document(Document("Some text."))
    assert named.id == sha256(b"Some text.").hexdigest()
    assert engine_document(Document("Some text.", id="7")).id == "7"


def test_the_engine_stays_out_of_what_is_serialized(store, engine):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine)
    assert "engine" not in retriever.model_dump(exclude={"vectorstore"})
    assert "engine=" not in repr(retriever)


def test_a_retriever_configured_for_each_call_still_learns_its_chain(chain_of, store, engine):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
    configurable = retriever.configurable_fields(search_kwargs=ConfigurableField(id="search"))
    chain = chain_of(configurable, RAGCacheLLM(engine=engine, temperature=0))
    for question in QUESTIONS:
        chain.invoke(question, {"configurable": {"search": {"k": 2}}})
    found = [engine_document(document) for document in retriever.invoke(QUESTIONS[0])]
    assert engine.warm([found], chain=retriever.chain).sets == 1
