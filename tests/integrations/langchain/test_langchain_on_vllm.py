"""The chain on the real model: what an engine without a model cannot show."""

import time

import pytest
from langchain_core.runnables import RunnableLambda

import ragcache_engine.search
from ragcache_engine import SamplingOptions
from ragcache_integrations import staging
from ragcache_integrations.langchain import FaissVectorStore, RAGCacheLLM, RAGCacheRetriever

pytestmark = pytest.mark.vllm

QUESTION = "Why does the sky look blue and not violet?"


@pytest.fixture
def chat(chain_of):
    """(retriever, llm) -> the usual chain, with its prompt in the chat format of the model."""

    def chain(retriever, llm):
        wrapped = RunnableLambda(
            lambda prompt: (
                f"<|im_start|>user\n{prompt.to_string()}<|im_end|>\n<|im_start|>assistant\n"
            )
        )
        return chain_of(retriever, wrapped | llm)

    return chain


def test_the_second_question_on_a_document_reuses_it_and_answers_as_without_a_cache(
    chat, store, model_engine
):
    llm = RAGCacheLLM(engine=model_engine, temperature=0, max_tokens=16)
    chain = chat(RAGCacheRetriever.from_vectorstore(store, engine=model_engine, k=3), llm)
    model_engine.clear_cache()
    cold = chain.invoke(QUESTION)
    before = model_engine.stats()
    warm = "".join(chain.stream(QUESTION))
    after = model_engine.stats()
    assert cold.strip()
    assert warm == cold
    assert after.cached.total - before.cached.total > 64


def test_the_chain_says_what_the_model_says_to_its_prompt(chat, store, model_engine):
    llm = RAGCacheLLM(engine=model_engine, temperature=0, max_tokens=16)
    chain = chat(RAGCacheRetriever.from_vectorstore(store, engine=model_engine, k=2), llm)
    found = store.as_retriever(search_kwargs={"k": 2}).invoke(QUESTION)
    text = "\n\n".join(document.page_content for document in found)
    prompt = (
        f"<|im_start|>user\nAnswer from these texts.\n\n{text}\n\nQuestion: {QUESTION}\n"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    answer = model_engine.generate(prompt, options=SamplingOptions(max_tokens=16))
    assert chain.invoke(QUESTION) == answer.text


@pytest.fixture
def slow_store(corpus, embeddings, monkeypatch):
    """A store whose searches take long, in stages, once `begin` is called."""
    texts = [*corpus.values(), *(f"Note {n} says nothing of interest." for n in range(4_000))]

    def slow(*args, stages_of=ragcache_engine.search.stages, **kwargs):
        for stage in stages_of(*args, **kwargs):
            yield stage
            if not stage.final:
                time.sleep(0.1)

    def begin():
        monkeypatch.setattr(ragcache_engine.search, "stages", slow)
        monkeypatch.setattr(staging, "SLICE_S", 0.0)

    store = FaissVectorStore.from_texts(texts, embeddings, index="flat")
    return store, begin


QUESTIONS = [
    QUESTION,
    "Why does bread rise in the oven?",
    "How do bees tell where flowers are?",
]


def test_a_slow_search_is_overlapped_and_the_answers_are_as_without(chat, slow_store, model_engine):
    store, begin_slow_searches = slow_store
    llm = RAGCacheLLM(engine=model_engine, temperature=0, max_tokens=8)
    model_engine.clear_cache()
    plain = chat(store.as_retriever(search_kwargs={"k": 2}), llm).batch(QUESTIONS)
    model_engine.clear_cache()
    begin_slow_searches()
    before = model_engine.stats().speculation
    chain = chat(RAGCacheRetriever.from_vectorstore(store, engine=model_engine, k=2), llm)
    for question, answer in zip([*QUESTIONS, *QUESTIONS], [*plain, *plain], strict=True):
        assert chain.invoke(question) == answer
    assert model_engine.stats().speculation.adopted > before.adopted
