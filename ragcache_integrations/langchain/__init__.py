"""RAGCache in a LangChain chain: swap the retriever and the LLM, and keep the rest.

from ragcache_engine import EngineConfig, RAGCacheEngine
from ragcache_integrations.langchain import FaissVectorStore, RAGCacheLLM, RAGCacheRetriever

store = FaissVectorStore.from_documents(documents, embeddings)  # or langchain_community's FAISS
engine = RAGCacheEngine(EngineConfig(model="HuggingFaceTB/SmolLM2-135M-Instruct"))
retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=4)
llm = RAGCacheLLM(engine=engine, temperature=0)
chain = {"context": retriever | join_texts, "question": RunnablePassthrough()} | prompt | llm

Or let one call do it: chain = accelerate(stock_chain, engine=engine)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ragcache_integrations.acceleration import AccelerationReport
from ragcache_integrations.langchain.acceleration import accelerate
from ragcache_integrations.langchain.chat import ChatRAGCache
from ragcache_integrations.langchain.engine_retriever import EngineRetriever
from ragcache_integrations.langchain.llm import RAGCacheLLM
from ragcache_integrations.langchain.retriever import RAGCacheRetriever

if TYPE_CHECKING:
    from ragcache_integrations.langchain.faiss_store import (
        FaissVectorStore,
        FlatIndex,
        HNSWIndex,
        InvalidFilter,
        IVFIndex,
        NotStorable,
        SaveDamaged,
        SavedStoreError,
        SaveForeign,
        SaveNotFound,
        UnequalLengths,
        UnsupportedIndex,
        UntrustedPickle,
        VectorShapeError,
    )

__all__ = [
    "AccelerationReport",
    "ChatRAGCache",
    "EngineRetriever",
    "FaissVectorStore",
    "FlatIndex",
    "HNSWIndex",
    "IVFIndex",
    "InvalidFilter",
    "NotStorable",
    "RAGCacheLLM",
    "RAGCacheRetriever",
    "SaveDamaged",
    "SaveForeign",
    "SaveNotFound",
    "SavedStoreError",
    "UnequalLengths",
    "UnsupportedIndex",
    "UntrustedPickle",
    "VectorShapeError",
    "accelerate",
]


def __getattr__(name: str) -> Any:
    # Imported on first use, because the store loads Faiss and the other classes do not need it.
    if name in __all__:
        return getattr(import_module("ragcache_integrations.langchain.faiss_store"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
