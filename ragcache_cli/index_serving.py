"""`ragcache index serve`: loads an index with its documents, and serves both."""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from ragcache_cli import embedding
from ragcache_cli.corpus_index import load_corpus_index
from ragcache_cli.errors import CommandError
from ragcache_cli.extras import needed
from ragcache_cli.files import folder_sources
from ragcache_cli.terminal import Phases
from ragcache_engine.serving.settings import OPERATOR_KEY, Limits

if TYPE_CHECKING:
    from ragcache_engine.index_server.served import ServedIndex

LANGCHAIN, COMMUNITY, LLAMAINDEX = "faiss_store.json", "index.pkl", "docstore.json"
"""The file by which a folder shows who has saved it."""
ID_MAP = "id_map.json"
"""The file in which LlamaIndex's FaissMapVectorStore keeps the nodes of its vectors."""
END_S = 5
"""How long a server that was told to end waits for its clients."""


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """As in `ragcache index serve`. None: the server's default."""

    folder: Path
    host: str
    port: int
    keys_file: Path | None = None
    max_body_bytes: int | None = None
    max_requests: int | None = None


def serve_index(settings: ServingSettings, console: Console) -> None:
    """Serve until the process is told to end. Raises CommandError, ConfigError, MissingExtra."""
    with needed("serving an index", extra="index"):
        import uvicorn

        from ragcache_engine.index_server.app import LIMITS, IndexApp
        from ragcache_engine.serving.bounded_http import LARGEST_HEAD_BYTES, BoundedHTTP
        from ragcache_engine.serving.keys import Keys
    file = settings.keys_file.expanduser() if settings.keys_file else None
    keys = Keys(file, os.environ.get(OPERATOR_KEY))
    limits = Limits(
        settings.max_body_bytes or LIMITS.body_bytes, settings.max_requests or LIMITS.requests
    )
    served = load_served(settings.folder, Phases(console))
    told = served.describe()
    address = f"[{settings.host}]" if ":" in settings.host else settings.host
    console.print(
        f"Serving {len(served.documents):,} documents ({told.vectors:,} vectors of "
        f"{told.dimensions} dimensions) at http://{escape(address)}:{settings.port}",
        soft_wrap=True,
    )
    if not told.embeds:
        console.print("Questions come as vectors: give the retriever the index's embedding model")
    if file is None and not _is_loopback(settings.host):
        console.print(
            "[yellow]Whoever reaches this address can read every document: give --keys[/yellow]"
        )
    uvicorn.run(
        IndexApp(served, keys, limits),
        host=settings.host,
        port=settings.port,
        lifespan="off",
        access_log=False,
        log_level="warning",
        http=BoundedHTTP,
        ws="none",
        h11_max_incomplete_event_size=LARGEST_HEAD_BYTES,
        timeout_graceful_shutdown=END_S,
    )


def load_served(folder: Path, notes: Phases) -> ServedIndex:
    """Load the index that a folder holds, or that its files make.

    Raises CommandError for what is no such folder; EmptyCorpus, CannotWrite; MissingExtra; the errors of
    the framework's own loader.
    """
    if not folder.is_dir():
        raise CommandError(
            f"{folder} is no folder: name a saved store, or a folder of your own files"
        )
    if (folder / LANGCHAIN).is_file():
        with notes.waiting("Loading the store"):
            return _load_langchain(folder)
    if (folder / LLAMAINDEX).is_file():
        with notes.waiting("Loading the index"):
            return _load_llamaindex(folder)
    if (folder / COMMUNITY).is_file():
        raise CommandError(
            f"{folder} holds a pickle, which runs code when it is loaded: load it in a program with "
            f"FaissVectorStore.from_langchain_community(..., allow_dangerous_deserialization=True) and "
            f"serve what its save_local() writes"
        )
    return _load_files(folder, notes)


def _load_langchain(folder: Path) -> ServedIndex:
    with needed("a LangChain store"):
        from ragcache_integrations.langchain.faiss_store.persistence import load
    from ragcache_engine.index_server import IndexedDocument
    from ragcache_engine.index_server.served import ServedIndex

    collection = load(folder)
    with collection.frozen() as state:
        if state.index is None:
            raise CommandError(f"the store in {folder} has no documents: save one that has")
        documents = {
            row: IndexedDocument(str(one.id), one.page_content, one.metadata)
            for row, one in state.rows.items()
        }
        return ServedIndex(state.index, documents, as_indexed=collection.metric.as_indexed)


def _load_llamaindex(folder: Path) -> ServedIndex:
    with needed("a LlamaIndex index"):
        from llama_index.core import StorageContext
        from llama_index.core.data_structs import IndexDict
        from llama_index.core.schema import MetadataMode
        from llama_index.core.vector_stores.utils import node_to_metadata_dict
        from llama_index.vector_stores.faiss import FaissVectorStore
    from ragcache_engine.index_server import IndexedDocument
    from ragcache_engine.index_server.served import ServedIndex

    try:
        store = FaissVectorStore.from_persist_dir(str(folder))
        storage = StorageContext.from_defaults(vector_store=store, persist_dir=str(folder))
    except (ValueError, RuntimeError, OSError) as error:
        raise CommandError(
            f"{folder} holds no VectorStoreIndex over FaissVectorStore that can be read ({error}): "
            f"persist it again with index.storage_context.persist(folder)"
        ) from error
    rows = [one for one in storage.index_store.index_structs() if isinstance(one, IndexDict)]
    if len(rows) != 1:
        raise CommandError(
            f"{folder} holds {len(rows)} vector indexes: persist one in a folder of its own"
        )
    names = rows[0].nodes_dict
    if (folder / ID_MAP).is_file():  # a FaissMapVectorStore names its vectors there
        held = json.loads((folder / ID_MAP).read_text(encoding="utf-8"))["faiss_id_to_node_id_map"]
        names = {row: name for row, name in held.items() if name in names}
    documents: dict[int, Any] = {}
    for row, name in names.items():
        node = storage.docstore.get_node(name, raise_error=False)
        if node is None:
            raise CommandError(
                f"the index in {folder} names a node that its docstore does not hold ({name}): persist "
                f"both again together"
            )
        text = node.get_content(metadata_mode=MetadataMode.NONE)
        metadata = node_to_metadata_dict(node, remove_text=True)
        documents[int(row)] = IndexedDocument(name, text, metadata)
    return ServedIndex(store.client, documents)


def _load_files(folder: Path, notes: Phases) -> ServedIndex:
    from ragcache_engine.index_server import IndexedDocument
    from ragcache_engine.index_server.served import ServedIndex

    sources = folder_sources(folder)
    with notes.waiting("Loading the embedding model"):
        embedder = embedding.load_embedder()
    index = load_corpus_index(folder, sources, embedder, notes)
    documents = {
        row: IndexedDocument(one.id, one.shown, {"title": one.title, "source": one.source})
        for row, one in enumerate(index.passages)
    }
    return ServedIndex(
        index.faiss_index, documents, embed=lambda text: embedder.embed([text])[0].tolist()
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
