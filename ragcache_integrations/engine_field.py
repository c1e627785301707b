"""The field `engine` of the frameworks' model classes, and how it gets its value."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from ragcache_engine import EngineConfig, RAGCacheEngine


def ensure_engine(value: Any) -> Any:
    """Return the engine that was given, or start one for an EngineConfig or an EngineConfig as JSON.

    A given engine may be shared, and its maker closes it. An engine that this function starts closes
    itself when the last object that uses it is gone, or when the interpreter exits.
    """
    if isinstance(value, EngineConfig):
        return RAGCacheEngine(value)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return RAGCacheEngine(EngineConfig.model_validate_json(value))
    return value


Engine = Annotated[RAGCacheEngine, BeforeValidator(ensure_engine)]

ENGINE_SECRET = "RAGCACHE_ENGINE"
"""The name that stands for the engine in a serialized object. Loading the object asks for it."""
