"""Where a model class of a framework gets its engine from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from ragcache_engine import EngineConfig, RAGCacheEngine


def ensure_engine(given: Any) -> Any:
    """A running engine as it is; for an EngineConfig, or one as JSON, an engine started now.

    An engine given is shared by all who have it, and closed by whoever made it. One that is started
    here closes when the last object that uses it is gone, or when the interpreter exits.
    """
    if isinstance(given, EngineConfig):
        return RAGCacheEngine(given)
    if isinstance(given, str) and given.lstrip().startswith("{"):
        return RAGCacheEngine(EngineConfig.model_validate_json(given))
    return given


Engine = Annotated[RAGCacheEngine, BeforeValidator(ensure_engine)]

ENGINE_SECRET = "RAGCACHE_ENGINE"
"""What a serialized object says instead of its engine, which is no text: loading asks for it."""
