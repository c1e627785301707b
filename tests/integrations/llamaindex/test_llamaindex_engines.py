"""Which engine a retriever takes: one that runs, and the one of its LLM."""

import pytest
from llama_index.core.llms import MockLLM

from ragcache_engine import EngineConfig, InvalidArgument
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever


@pytest.fixture(params=["from_index", "the constructor", "from_faiss"])
def make(request, index, nodes, embeddings):
    """Make a retriever in one of the ways."""
    if request.param == "from_index":
        return lambda **options: RAGCacheRetriever.from_index(index, **options)
    if request.param == "the constructor":
        return lambda **options: RAGCacheRetriever(index, **options)
    return lambda **options: RAGCacheRetriever.from_faiss(
        index.vector_store.client, nodes, embed_model=embeddings, **options
    )


def test_what_is_no_engine_is_refused_at_once(make, engine):
    config = EngineConfig(model="any", backend="memory")
    with pytest.raises(InvalidArgument, match=r"RAGCacheEngine\(config\).*share"):
        make(engine=config)
    with pytest.raises(InvalidArgument, match=r"got RAGCacheLLM; give engine=llm\.engine"):
        make(engine=RAGCacheLLM(engine=engine))
    for stranger in (None, "a model", MockLLM()):
        with pytest.raises(InvalidArgument, match="engine= takes a RAGCacheEngine"):
            make(engine=stranger)


def test_an_llm_on_another_engine_is_refused(make, engine, make_engine):
    other = RAGCacheLLM(engine=make_engine(MemoryBackend()))
    with pytest.raises(InvalidArgument, match="two engines"):
        make(engine=engine, llm=other)
    make(engine=engine, llm=RAGCacheLLM(engine=engine))


def test_an_llm_that_is_not_ours_is_refused(make, engine):
    with pytest.raises(InvalidArgument, match="llm= takes a RAGCacheLLM, got MockLLM"):
        make(engine=engine, llm=MockLLM())
