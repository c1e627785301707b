"""Usage and traces name the model, and never the folder in which it lies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ragcache_engine import EngineConfig, RAGCacheEngine

FOLDER = "/home/somebody/secret/tiny-v1"


@pytest.fixture
def engine() -> Iterator[RAGCacheEngine]:
    with RAGCacheEngine(EngineConfig(model=FOLDER, backend="memory")) as engine:
        yield engine


def test_langchains_answers_and_traces_name_the_model(engine: RAGCacheEngine):
    pytest.importorskip("langchain_core")
    from langchain_core.callbacks import BaseCallbackHandler

    from ragcache_integrations.langchain import ChatRAGCache, RAGCacheLLM

    traced = []

    class Recorder(BaseCallbackHandler):
        def on_llm_start(self, *args, **kwargs):
            traced.append(repr((args, kwargs)))

        on_chat_model_start = on_llm_start

        def on_llm_end(self, *args, **kwargs):
            traced.append(repr((args, kwargs)))

    config = {"callbacks": [Recorder()]}
    message = ChatRAGCache(engine=engine).invoke("Why?", config)
    assert message.response_metadata["model_name"] == "tiny-v1"
    RAGCacheLLM(engine=engine).invoke("Why?", config)
    assert len(traced) == 4
    assert all("tiny-v1" in one for one in traced)
    assert not any("somebody" in one for one in traced)


def test_llamaindex_names_the_model(engine: RAGCacheEngine):
    pytest.importorskip("llama_index.core")
    from ragcache_integrations.llamaindex import RAGCacheLLM

    llm = RAGCacheLLM(engine=engine)
    assert llm.metadata.model_name == "tiny-v1"
    assert "somebody" not in repr((llm.to_dict(), llm.complete("Why?").raw, llm.metadata))


@pytest.mark.parametrize("framework", ["langchain", "llamaindex"])
def test_caches_of_answers_tell_models_of_one_name_apart(framework: str):
    module = pytest.importorskip(f"ragcache_integrations.{framework}")
    known = []
    for folder in ("/a/tiny", "/b/tiny"):
        with RAGCacheEngine(EngineConfig(model=folder, backend="memory")) as engine:
            llm = module.RAGCacheLLM(engine=engine)
            known.append(llm._identifying_params if framework == "langchain" else llm.to_dict())
    assert known[0] != known[1]
