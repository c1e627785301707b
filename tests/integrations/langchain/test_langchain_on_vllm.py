"""The chain on the real model: what the fake cannot show."""

import pytest
from langchain_core.runnables import RunnableLambda

from ragcache_engine import SamplingOptions
from ragcache_integrations.langchain import RAGCacheLLM, RAGCacheRetriever

pytestmark = pytest.mark.vllm

QUESTION = "Why does the sky look blue and not violet?"


@pytest.fixture
def chat(chain_of):
    """(retriever, llm) -> the usual chain, its prompt in the words the model was trained on."""

    def chain(retriever, llm):
        wrapped = RunnableLambda(
            lambda prompt: (
                f"<|im_start|>user\n{prompt.to_string()}<|im_end|>\n<|im_start|>assistant\n"
            )
        )
        return chain_of(retriever, wrapped | llm)

    return chain


def test_the_second_question_on_a_document_reuses_it_and_answers_as_without_a_cache(
    chat, store, vllm_engine
):
    llm = RAGCacheLLM(engine=vllm_engine, temperature=0, max_tokens=16)
    chain = chat(RAGCacheRetriever.from_vectorstore(store, engine=vllm_engine, k=3), llm)
    vllm_engine.clear_cache()
    cold = chain.invoke(QUESTION)
    before = vllm_engine.stats()
    warm = "".join(chain.stream(QUESTION))
    after = vllm_engine.stats()
    assert cold.strip()
    assert warm == cold
    assert after.cached.total - before.cached.total > 64


def test_the_chain_says_what_the_model_says_to_its_prompt(chat, store, vllm_engine):
    llm = RAGCacheLLM(engine=vllm_engine, temperature=0, max_tokens=16)
    chain = chat(RAGCacheRetriever.from_vectorstore(store, engine=vllm_engine, k=2), llm)
    found = store.as_retriever(search_kwargs={"k": 2}).invoke(QUESTION)
    text = "\n\n".join(document.page_content for document in found)
    prompt = (
        f"<|im_start|>user\nAnswer from these texts.\n\n{text}\n\nQuestion: {QUESTION}\n"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    answer = vllm_engine.generate(prompt, options=SamplingOptions(max_tokens=16))
    assert chain.invoke(QUESTION) == answer.text
