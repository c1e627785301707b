"""Tries one extra of an installed RAGCache, without a model.

python check_extra.py EXTRA, in a folder without the clone. What wants a model is tried elsewhere.
"""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Callable
from importlib import import_module

QUESTION = "Why are there tides?"
TEXT = "The tides rise and fall twice a day, as the moon pulls the oceans."


def check_client() -> None:
    """An engine on a server that is not there says so."""
    from ragcache_engine import RAGCacheEngine, ServerUnreachable

    try:
        RAGCacheEngine.connect("http://127.0.0.1:9")
    except ServerUnreachable:
        return
    raise AssertionError("an engine was connected to nothing")


def check_dashboard() -> None:
    """The page of an engine answers."""
    from ragcache_engine import EngineConfig, RAGCacheEngine

    with RAGCacheEngine(EngineConfig(backend="memory")) as engine, engine.dashboard() as page:
        assert b"RAGCache" in urllib.request.urlopen(page.url, timeout=20).read()


def check_shared() -> None:
    """A folder keeps what it is given, and a Redis that is not there is away."""
    from tempfile import TemporaryDirectory

    from ragcache_engine.tiers.shared.opening import open_store
    from ragcache_engine.tiers.shared.store import StoreAway, StoredBlock

    with TemporaryDirectory() as folder:
        store = open_store(f"file://{folder}")
        store.write([StoredBlock("origin/name", ["mark"], TEXT.encode())])
        assert store.read(["origin/name"]) == [TEXT.encode()]
        store.close()
    nobody = open_store("redis://127.0.0.1:1")
    try:
        nobody.holds(["origin/name"])
    except StoreAway:
        nobody.close()
    else:
        raise AssertionError("nobody answered")


def check_encryption() -> None:
    """What is encrypted comes back with its key."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from ragcache_engine.tiers.disk.key_files import NONCE_BYTES
    from ragcache_engine.tiers.disk.key_ring import KeyRing

    text, nonce = TEXT.encode(), bytes(NONCE_BYTES)
    with TemporaryDirectory() as folder:
        key = KeyRing(Path(folder), [bytes(32)]).key_of("")
        sealed, opened = key.cipher.encrypt(nonce, text, b""), memoryview(bytearray(len(text)))
        assert text not in sealed
        again = KeyRing(Path(folder), [bytes(32)])
        assert again.decrypt("", key.id, nonce, memoryview(sealed), b"", opened)
        assert bytes(opened) == text


def check_fleet() -> None:
    """The application of a fleet can be built; starting it would want vLLM too."""
    from ragcache_engine.fleet_serving.application import build_application
    from ragcache_engine.fleet_serving.fleet_settings import FleetSettings

    assert build_application(FleetSettings(("-m", "any_server"), {}, replicas=2))


def check_index() -> None:
    """A server of an index answers a client."""
    import threading

    import faiss
    import numpy
    import uvicorn

    from ragcache_engine.index_server import IndexedDocument, IndexServer
    from ragcache_engine.index_server.app import IndexApp
    from ragcache_engine.index_server.served import ServedIndex

    index = faiss.IndexFlatL2(2)
    index.add(numpy.eye(1, 2, dtype=numpy.float32))
    app = IndexApp(ServedIndex(index, {0: IndexedDocument("tides", TEXT)}))
    server = uvicorn.Server(uvicorn.Config(app, port=8131, lifespan="off", log_level="warning"))
    serving = threading.Thread(target=server.run)
    serving.start()
    try:
        *_, last = IndexServer("http://127.0.0.1:8131").stages([1.0, 0.0], 1)
        assert [found.text for found in last.documents] == [TEXT]
    finally:
        server.should_exit = True
        serving.join()


def check_langchain() -> None:
    """A chain of the swapped classes answers."""
    from langchain_core.documents import Document
    from langchain_core.embeddings import DeterministicFakeEmbedding
    from langchain_core.prompts import PromptTemplate

    from ragcache_engine import EngineConfig, RAGCacheEngine
    from ragcache_integrations.langchain import FaissVectorStore, RAGCacheLLM, RAGCacheRetriever

    documents = [Document(TEXT, id="tides")]
    store = FaissVectorStore.from_documents(documents, DeterministicFakeEmbedding(size=8))
    with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=1)
        prompt = PromptTemplate.from_template("{context}\n\n{question}")
        chain = {"context": retriever, "question": str} | prompt | RAGCacheLLM(engine=engine)
        assert chain.invoke(QUESTION)


def check_llamaindex() -> None:
    """A query engine of the swapped classes answers."""
    import faiss
    from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex
    from llama_index.core.query_engine import RetrieverQueryEngine
    from llama_index.vector_stores.faiss import FaissVectorStore

    from ragcache_engine import EngineConfig, RAGCacheEngine
    from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

    store = FaissVectorStore(faiss_index=faiss.IndexFlatL2(8))
    index = VectorStoreIndex.from_documents(
        [Document(text=TEXT)],
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=MockEmbedding(embed_dim=8),
    )
    with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=1)
        queries = RetrieverQueryEngine.from_args(retriever, llm=RAGCacheLLM(engine=engine))
        assert str(queries.query(QUESTION))


def check_examples() -> None:
    """What runs the notebooks and cuts texts is there."""
    for module in ("ipykernel", "langchain_text_splitters", "nbclient", "nbformat"):
        import_module(module)


CHECKS: dict[str, Callable[[], None]] = {
    "client": check_client,
    "dashboard": check_dashboard,
    "encryption": check_encryption,
    "fleet": check_fleet,
    "index": check_index,
    "langchain": check_langchain,
    "shared": check_shared,
    "llamaindex": check_llamaindex,
    "examples": check_examples,
}


if __name__ == "__main__":
    if check := CHECKS.get(sys.argv[1]):
        check()
