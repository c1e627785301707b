"""The engine that the frameworks' classes are given: how models get it, and what retrievers refuse."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from ragcache_engine import EngineConfig, InvalidArgument, RAGCacheEngine


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


def check_engine(engine: Any) -> None:
    """Raise InvalidArgument unless this is a RAGCacheEngine, for classes that must share one."""
    if isinstance(engine, RAGCacheEngine):
        return
    advice = "start one with RAGCacheEngine(EngineConfig(...)), and give it to the LLM too"
    if isinstance(engine, EngineConfig):
        advice = "engine = RAGCacheEngine(config) starts one, which retriever and LLM share"
    elif isinstance(getattr(engine, "engine", None), RAGCacheEngine):
        advice = "give engine=llm.engine"
    raise InvalidArgument(
        f"engine= takes a RAGCacheEngine that runs, got {type(engine).__name__}; {advice}"
    )


def check_same_engine(engine: RAGCacheEngine, llm: Any) -> None:
    """Raise InvalidArgument if the LLM asks another engine than the retriever tells of its documents.

    Nothing would be recognised then, and no prompt started early would be used.
    """
    if llm.engine is not engine:
        raise InvalidArgument(
            "the retriever and its llm have two engines, and one never hears of the other's documents: "
            "give both the same, engine=llm.engine"
        )


ENGINE_SECRET = "RAGCACHE_ENGINE"
"""The name that stands for the engine in a serialized object. Loading the object asks for it."""
