"""Makes each framework's own index of a passage index, so that both retrieve the same passages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ragcache_cli.embedding import Embedder
from ragcache_cli.extras import needed
from ragcache_cli.index import PassageIndex
from ragcache_cli.passages import Passage


def build_langchain_store(index: PassageIndex, embedder: Embedder) -> Any:
    """Build a LangChain store with an index of the same kind, from the vectors of this index.

    Raises MissingExtra.
    """
    with needed("a LangChain store"):
        from langchain_core.embeddings import Embeddings

        from ragcache_integrations.langchain import FaissVectorStore

    class PassageEmbeddings(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [vector.tolist() for vector in embedder.embed(texts)]

        def embed_query(self, text: str) -> list[float]:
            return self.embed_documents([text])[0]

    return FaissVectorStore.from_embeddings(
        zip([passage.shown for passage in index.passages], index.vectors().tolist(), strict=True),
        PassageEmbeddings(),
        [_metadata(passage) for passage in index.passages],
        ids=[passage.id for passage in index.passages],
        index=index.empty_copy(),  # trained alike, so that both frameworks find the same passages
    )


def build_llamaindex_index(index: PassageIndex, embedder: Embedder) -> Any:
    """Build LlamaIndex's VectorStoreIndex over the same Faiss index. Raises MissingExtra.

    A node shows the model only its text, without metadata: the title is in the text already, as in
    LangChain's documents.
    """
    with needed("a LlamaIndex index"):
        from llama_index.core import StorageContext, VectorStoreIndex
        from llama_index.core.data_structs import IndexDict
        from llama_index.core.schema import TextNode
        from llama_index.vector_stores.faiss import FaissVectorStore

    nodes = [
        TextNode(
            id_=passage.id,
            text=passage.shown,
            metadata=_metadata(passage),
            excluded_llm_metadata_keys=list(_metadata(passage)),
            excluded_embed_metadata_keys=list(_metadata(passage)),
        )
        for passage in index.passages
    ]
    storage = StorageContext.from_defaults(
        vector_store=FaissVectorStore(faiss_index=index.faiss_index)
    )
    storage.docstore.add_documents(nodes)
    rows = IndexDict(nodes_dict={str(row): node.node_id for row, node in enumerate(nodes)})
    return VectorStoreIndex(
        index_struct=rows,
        storage_context=storage,
        embed_model=_llamaindex_embedding(embedder),
    )


def _llamaindex_embedding(embedder: Embedder) -> Any:
    from llama_index.core.embeddings import BaseEmbedding

    embed: Callable[[list[str]], list[list[float]]] = lambda texts: [  # noqa: E731
        vector.tolist() for vector in embedder.embed(texts)
    ]

    class PassageEmbedding(BaseEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            return embed([query])[0]

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return embed([query])[0]

        def _get_text_embedding(self, text: str) -> list[float]:
            return embed([text])[0]

        def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            return embed(texts)

    return PassageEmbedding(model_name=embedder.name)


def _metadata(passage: Passage) -> dict[str, str]:
    return {"title": passage.title, "source": passage.source}
