"""RAGCache in a LangChain chain: swap the retriever and the LLM, keep the rest.

from ragcache_engine import EngineConfig, RAGCacheEngine
from ragcache_integrations.langchain import RAGCacheLLM, RAGCacheRetriever

engine = RAGCacheEngine(EngineConfig(model="HuggingFaceTB/SmolLM2-135M-Instruct"))
retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=4)
llm = RAGCacheLLM(engine=engine, temperature=0)
chain = {"context": retriever | join, "question": RunnablePassthrough()} | prompt | llm
"""

from ragcache_integrations.langchain.llm import RAGCacheLLM
from ragcache_integrations.langchain.retriever import RAGCacheRetriever

__all__ = ["RAGCacheLLM", "RAGCacheRetriever"]
