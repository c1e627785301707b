"""Change a LlamaIndex index from eight threads while they ask about it, and compare what is left.

    python benchmarks/changing_llamaindex.py                      # five minutes, without a model
    python benchmarks/changing_llamaindex.py --model org/name     # with a real one

Each thread inserts, refreshes, deletes and forgets documents of its own, and asks a query engine about
all. At the end the answers must be those of an index that never changed, and no tier may hold a forgotten
document.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import faiss
from changing.callers import Asked
from changing.corpus import DIMENSIONS, TOP_K, embed
from changing.program import run_program
from llama_index.core import Document, PromptTemplate, StorageContext, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.vector_stores.faiss import FaissMapVectorStore

from ragcache_engine import RAGCacheEngine
from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

TEMPLATE = PromptTemplate("{context_str}\n\nQuestion: {query_str}\nAnswer:")


class TopicEmbedding(BaseEmbedding):
    """Embeds a text near to its topic, without a model."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return embed(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return embed(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return embed(query)


class LlamaIndexIndex:
    """A VectorStoreIndex over FaissMapVectorStore and a query engine that answers from it."""

    def __init__(self, engine: RAGCacheEngine) -> None:
        # LlamaIndex's stores take one change at a time; queries need not wait.
        self._changing = threading.Lock()
        vectors = faiss.IndexIDMap2(faiss.IndexFlatL2(DIMENSIONS))
        self._index = VectorStoreIndex(
            [],
            storage_context=StorageContext.from_defaults(
                vector_store=FaissMapVectorStore(faiss_index=vectors)
            ),
            embed_model=TopicEmbedding(),
        )
        retriever = RAGCacheRetriever.from_index(self._index, engine=engine, similarity_top_k=TOP_K)
        llm = RAGCacheLLM(engine=engine, temperature=0, max_new_tokens=16)
        self._query_engine = RetrieverQueryEngine.from_args(
            retriever, llm=llm, text_qa_template=TEMPLATE
        )

    def insert(self, name: str, text: str) -> None:
        with self._changing:
            self._index.insert(Document(id_=name, text=text))

    def refresh(self, name: str, text: str) -> Sequence[str]:
        with self._changing:
            outdated = self._node_ids(name)
            self._index.refresh_ref_docs([Document(id_=name, text=text)])
        return outdated

    def delete(self, name: str) -> Sequence[str]:
        with self._changing:
            outdated = self._node_ids(name)
            self._index.delete_ref_doc(name, delete_from_docstore=True)
        return outdated

    def ask(self, question: str) -> Asked:
        response = self._query_engine.query(question)
        return Asked(
            tuple(found.node.get_content() for found in response.source_nodes), str(response)
        )

    def _node_ids(self, name: str) -> list[str]:
        info = self._index.docstore.get_ref_doc_info(name)
        assert info, f"the docstore does not know {name}"
        return list(info.node_ids)


if __name__ == "__main__":  # vLLM starts processes that import this script again
    sys.exit(run_program(__doc__, LlamaIndexIndex))
