"""Chunks whose ids a machine made are shown by source and place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragcache_engine import EngineConfig, RAGCacheEngine
from ragcache_integrations.document_labels import label_of

TEXT = "The moon pulls the oceans, and the tides follow it. " * 9


class Several:
    """Like an array of NumPy, it compares each of its values, which is neither true nor false."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise ValueError("the truth value of several values is ambiguous")

    __hash__ = None


MADE = "0301c6c6-47fe-42fd-b0c2-bf63029fb601"


@pytest.mark.parametrize(
    ("name", "metadata", "label"),
    [
        (
            MADE,
            {"source": "tides.pdf", "page": 3, "start_index": 120},
            "tides.pdf, page 3, character 120",
        ),
        (None, {"source": "tides.pdf", "page": 0}, "tides.pdf, page 0"),
        (MADE, {"source": "tides.pdf", "page": 0, "page_label": "iv"}, "tides.pdf, page iv"),
        (MADE, {"file_path": "/notes/tides.md", "file_name": "tides.md"}, "tides.md"),
        (MADE, {"source": MADE, "start_index": 7}, None),
        (MADE, {"page": 3}, None),
        (MADE, {}, None),
        ("tides", {"source": "tides.pdf"}, None),
        (MADE, {"source": Path("tides.pdf")}, "tides.pdf"),
        (MADE, {"source": "tides.pdf", "page": Several()}, "tides.pdf"),
        (MADE, {"source": ["tides.pdf", "moon.pdf"]}, None),
    ],
)
def test_source_and_place_stand_for_an_id_that_says_nothing(name, metadata, label):
    assert label_of(name, metadata) == label


def shown(engine: RAGCacheEngine) -> tuple[str | None, str]:
    (rate,) = engine.stats().by_document
    return rate.label, str(engine.stats())


def test_stats_show_langchains_chunks_by_their_source():
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document
    from langchain_core.runnables import RunnableLambda

    from ragcache_integrations.langchain import RAGCacheLLM, RAGCacheRetriever

    chunk = Document(TEXT, metadata={"source": "tides.pdf", "page": 3})
    with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        retriever = RAGCacheRetriever.from_retriever(
            RunnableLambda(lambda _: [chunk]), engine=engine
        )
        (found,) = retriever.invoke("Why?")
        RAGCacheLLM(engine=engine).invoke(f"{found.page_content}\n\nWhy?")
        label, table = shown(engine)
    assert label == "tides.pdf, page 3"
    assert "document 'tides.pdf, page 3'" in table


def test_stats_show_llamaindexs_nodes_by_their_document():
    pytest.importorskip("llama_index.core")
    from llama_index.core import Document, MockEmbedding, VectorStoreIndex

    from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

    index = VectorStoreIndex.from_documents(
        [Document(id_="tides", text=TEXT)], embed_model=MockEmbedding(embed_dim=4)
    )
    with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        retriever = RAGCacheRetriever.from_retriever(index.as_retriever(), engine=engine)
        (found,) = retriever.retrieve("Why?")
        RAGCacheLLM(engine=engine).complete(f"{found.get_content()}\n\nWhy?")
        label, table = shown(engine)
    assert label == "tides, character 0"
    assert "document 'tides, character 0'" in table
