"""A chain with the chat model on the real model: what an engine without a model cannot show."""

import time

import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from ragcache_engine import SamplingOptions
from ragcache_integrations.langchain import ChatRAGCache, RAGCacheRetriever

pytestmark = pytest.mark.vllm

QUESTION = "Why does the sky look blue and not violet?"
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer from these texts.\n\n{context}"), ("human", "{question}")]
)


def join(documents):
    return "\n\n".join(document.page_content for document in documents)


@pytest.fixture
def chat(model_engine):
    return ChatRAGCache(engine=model_engine, temperature=0, max_tokens=12)


def test_the_second_question_on_a_document_reuses_it_and_answers_as_without_a_cache(
    store, chat, model_engine
):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=model_engine, k=3)
    chain = {"context": retriever | join, "question": RunnablePassthrough()} | PROMPT | chat
    model_engine.clear_cache()
    cold = chain.invoke(QUESTION)
    warm = None
    for chunk in chain.stream(QUESTION):
        warm = chunk if warm is None else warm + chunk
    assert cold.content.strip()
    assert warm.content == cold.content
    details, known = warm.usage_metadata["input_token_details"], warm.response_metadata
    assert details["cache_read"] > 64
    assert details["cache_read"] == sum(
        known[f"cached_tokens_{tier}"] for tier in ("device", "host", "disk")
    )
    found = store.as_retriever(search_kwargs={"k": 3}).invoke(QUESTION)
    assert warm.response_metadata["document_ids"] == [document.id for document in found]


def test_it_says_what_the_model_says_to_the_conversation(chat, model_engine):
    messages = [{"role": "user", "content": QUESTION}]
    answer = model_engine.generate(
        model_engine.chat.prompt(messages), options=SamplingOptions(max_tokens=12)
    )
    assert chat.invoke(QUESTION).content == answer.text


def test_leaving_a_stream_stops_the_generation(chat, model_engine):
    before = model_engine.stats().cancelled
    for _ in chat.stream("Count to a thousand.", max_tokens=2000):
        break
    deadline = time.monotonic() + 30
    while model_engine.stats().cancelled == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert model_engine.stats().running == 0
    assert model_engine.stats().cancelled == before + 1


def test_logprobs_are_the_models(model_engine):
    chat = ChatRAGCache(engine=model_engine, temperature=0, max_tokens=8, logprobs=True)
    message = chat.invoke("Why is the sky blue?", top_logprobs=2)
    told = message.response_metadata["logprobs"]["content"]
    assert "".join(each["token"] for each in told).strip() == message.content.strip()
    for each in told:
        first, second = each["top_logprobs"]
        assert each["token"] == first["token"], "greedy decoding takes the likeliest"
        assert 0 >= each["logprob"] == first["logprob"] >= second["logprob"]
    plain = chat.invoke("Why is the sky blue?")
    assert [each["top_logprobs"] for each in plain.response_metadata["logprobs"]["content"]] == [
        []
    ] * len(told)
