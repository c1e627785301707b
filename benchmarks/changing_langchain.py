"""Change a LangChain store from eight threads while they ask about it, and compare what is left.

    python benchmarks/changing_langchain.py                       # five minutes, without a model
    python benchmarks/changing_langchain.py --model org/name      # with a real one

Each thread inserts, refreshes, deletes and forgets documents of its own, and asks a chain about all. At
the end the answers must be those of a store that never changed, and no tier may hold a forgotten
document.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from changing.callers import Asked
from changing.corpus import TOP_K, embed
from changing.program import run_program
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnablePassthrough

from ragcache_engine import RAGCacheEngine
from ragcache_integrations.langchain import FaissVectorStore, RAGCacheLLM, RAGCacheRetriever


class TopicEmbeddings(Embeddings):
    """Embeds a text near to its topic, without a model."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [embed(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return embed(text)


def join_texts(found: dict[str, Any]) -> str:
    return "\n\n".join(document.page_content for document in found["documents"])


class LangChainIndex:
    """A FaissVectorStore and a chain that answers from it."""

    def __init__(self, engine: RAGCacheEngine) -> None:
        self._store = FaissVectorStore(TopicEmbeddings())
        retriever = RAGCacheRetriever.from_vectorstore(self._store, engine=engine, k=TOP_K)
        prompt = PromptTemplate.from_template("{context}\n\nQuestion: {question}\nAnswer:")
        llm = RAGCacheLLM(engine=engine, temperature=0, max_new_tokens=16)
        self._chain = RunnablePassthrough.assign(
            documents=itemgetter("question") | retriever
        ) | RunnablePassthrough.assign(
            answer=RunnablePassthrough.assign(context=join_texts) | prompt | llm
        )

    def insert(self, name: str, text: str) -> None:
        self._store.add_documents([Document(text, id=name)])

    def refresh(self, name: str, text: str) -> Sequence[str]:
        self._store.add_documents([Document(text, id=name)])  # replaces the one with this id
        return [name]

    def delete(self, name: str) -> Sequence[str]:
        self._store.delete([name])
        return [name]

    def ask(self, question: str) -> Asked:
        result = self._chain.invoke({"question": question})
        texts = tuple(document.page_content for document in result["documents"])
        return Asked(texts, result["answer"])


if __name__ == "__main__":  # vLLM starts processes that import this script again
    sys.exit(run_program(__doc__, LangChainIndex))
