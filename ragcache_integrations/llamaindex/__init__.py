"""RAGCache in a LlamaIndex query engine: swap the retriever and the LLM, and keep the rest.

from ragcache_engine import EngineConfig, RAGCacheEngine
from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

engine = RAGCacheEngine(EngineConfig(model="HuggingFaceTB/SmolLM2-135M-Instruct"))
retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=4)
llm = RAGCacheLLM(engine=engine, temperature=0)
query_engine = RetrieverQueryEngine.from_args(retriever, llm=llm)

Or let one call do it: query_engine = accelerate(stock_query_engine, engine=engine)
"""

from ragcache_integrations.acceleration import AccelerationReport
from ragcache_integrations.llamaindex.acceleration import accelerate
from ragcache_integrations.llamaindex.cost import QueryCost, measure_cost
from ragcache_integrations.llamaindex.engine_retriever import EngineRetriever
from ragcache_integrations.llamaindex.llm import RAGCacheLLM
from ragcache_integrations.llamaindex.retriever import RAGCacheRetriever

__all__ = [
    "AccelerationReport",
    "EngineRetriever",
    "QueryCost",
    "RAGCacheLLM",
    "RAGCacheRetriever",
    "accelerate",
    "measure_cost",
]
