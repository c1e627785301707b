"""A VectorStoreIndex over Faiss, built from the small corpus without a model."""

from typing import Any

import faiss
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode
from llama_index.vector_stores.faiss import FaissVectorStore


class HashedWords(BaseEmbedding):
    """Embeds without a model. `size` may be changed afterwards, as if the model had been.

    Like most local models it answers asynchronous calls by computing where it is called.
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
