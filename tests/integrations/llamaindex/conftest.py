"""A VectorStoreIndex over Faiss, built from the small corpus without a model; and stock LLMs."""

from typing import Any

import faiss
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.schema import TextNode
from llama_index.vector_stores.faiss import FaissVectorStore


class HashedWords(BaseEmbedding):
    """Embeds without a model. Tests may change `size`, as if the model had changed.

    Like most local models, it computes its asynchronous calls on the event loop.
    """

    embed: Any
    gate: Any = None
    size: int = 64
    queries: int = 0

    def _get_text_embedding(self, text):
        return self.embed(text, self.size)

    def _get_query_embedding(self, query):
        self.queries += 1
        if self.gate:
            self.gate.pass_through()
        return self.embed(query, self.size)

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


@pytest.fixture
def embeddings(bag_of_words):
    return HashedWords(embed=bag_of_words)


@pytest.fixture
def nodes(corpus):
    return [
        TextNode(id_=name, text=text, metadata={"source": f"{name}.txt"})
        for name, text in corpus.items()
    ]


@pytest.fixture
def make_index(nodes, embeddings):
    def make(vector_store=None, nodes=nodes, **options):
        vector_store = vector_store or FaissVectorStore(faiss_index=faiss.IndexFlatL2(64))
        return VectorStoreIndex(
            nodes=nodes,
            embed_model=embeddings,
            storage_context=StorageContext.from_defaults(vector_store=vector_store),
            **options,
        )

    return make


@pytest.fixture
def index(make_index):
    return make_index()


class StockVLLM(CustomLLM):
    """vLLM as LlamaIndex users would write it by hand, without our cache and our retriever."""

    vllm: Any
    max_tokens: int
    is_chat_model: bool = False

    @property
    def metadata(self):
        return LLMMetadata(
            context_window=4096, num_output=self.max_tokens, is_chat_model=self.is_chat_model
        )

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **kwargs):
        from vllm import SamplingParams

        greedy = SamplingParams(temperature=0, max_tokens=self.max_tokens)
        (output,) = self.vllm.generate([prompt], greedy, use_tqdm=False)
        return CompletionResponse(text=output.outputs[0].text)

    @llm_completion_callback()
    def stream_complete(self, prompt, formatted=False, **kwargs):
        whole = self.complete(prompt, **kwargs).text
        yield CompletionResponse(text=whole, delta=whole)


@pytest.fixture(scope="session")
def stock_llm(stock_vllm):
    """Makes stock LLMs on one vLLM, which has the dtype of `vllm_engine`."""
    tokenizer = stock_vllm.get_tokenizer()

    def write_by_chat_template(messages):
        told = [{"role": message.role.value, "content": message.content} for message in messages]
        return tokenizer.apply_chat_template(told, tokenize=False, add_generation_prompt=True)

    def make(max_tokens, is_chat_model=False):
        return StockVLLM(
            vllm=stock_vllm,
            max_tokens=max_tokens,
            is_chat_model=is_chat_model,
            messages_to_prompt=write_by_chat_template,
        )

    return make
