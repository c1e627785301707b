"""The query engine on the real model: what the fake cannot show."""

import pytest
from llama_index.core.query_engine import RetrieverQueryEngine

from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

pytestmark = pytest.mark.vllm

QUESTION = "Why does the sky look blue and not violet?"


def as_chat(prompt: str) -> str:
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def test_the_second_query_on_a_node_reuses_it_and_answers_as_without_a_cache(index, vllm_engine):
    llm = RAGCacheLLM(
        engine=vllm_engine, temperature=0, max_tokens=16, completion_to_prompt=as_chat
    )
    retriever = RAGCacheRetriever.from_index(index, engine=vllm_engine, similarity_top_k=3)
    whole = RetrieverQueryEngine.from_args(retriever, llm=llm)
    streamed = RetrieverQueryEngine.from_args(retriever, llm=llm, streaming=True)
    vllm_engine.clear_cache()
    cold = str(whole.query(QUESTION))
    before = vllm_engine.stats()
    warm = "".join(streamed.query(QUESTION).response_gen)
    after = vllm_engine.stats()
    assert cold.strip()
    assert warm == cold
    assert after.cached.total - before.cached.total > 64
