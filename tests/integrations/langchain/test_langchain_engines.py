"""Which engine a retriever takes: one that runs, and the one of its LLM."""

import pytest
from langchain_core.language_models import FakeListLLM

from ragcache_engine import EngineConfig, InvalidArgument
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.langchain import ChatRAGCache, RAGCacheLLM, RAGCacheRetriever

KINDS = [RAGCacheLLM, ChatRAGCache]


def make(store, **options):
    return RAGCacheRetriever.from_vectorstore(store, **options)


def test_what_is_no_engine_is_refused_at_once(store, engine):
    config = EngineConfig(model="any", backend="memory")
    with pytest.raises(InvalidArgument, match=r"RAGCacheEngine\(config\).*share"):
        make(store, engine=config)
    with pytest.raises(InvalidArgument, match=r"got RAGCacheLLM; give engine=llm\.engine"):
        make(store, engine=RAGCacheLLM(engine=engine))
    with pytest.raises(InvalidArgument, match="engine= takes a RAGCacheEngine"):
        make(store, engine=None)


@pytest.mark.parametrize("kind", KINDS)
def test_an_llm_on_another_engine_is_refused(store, engine, engine_on, kind):
    with pytest.raises(InvalidArgument, match="two engines"):
        make(store, engine=engine, llm=kind(engine=engine_on(MemoryBackend())))
    make(store, engine=engine, llm=kind(engine=engine))


def test_an_llm_that_is_not_ours_is_refused(store, engine):
    with pytest.raises(InvalidArgument, match="a ChatRAGCache, got FakeListLLM"):
        make(store, engine=engine, llm=FakeListLLM(responses=["a"]))
