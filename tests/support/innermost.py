"""The backend of an engine, without what is around it."""

from __future__ import annotations

from typing import Any

from ragcache_engine import RAGCacheEngine
from ragcache_engine.forwarding import ForwardingBackend


def innermost_backend(engine: RAGCacheEngine) -> Any:
    backend = engine._runtime.backend
    while isinstance(backend, ForwardingBackend):
        backend = backend.inner
    return backend
