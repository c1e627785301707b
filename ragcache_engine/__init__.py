"""RAGCache: an engine that prefills retrieved documents once.

Importing this package loads neither torch, vLLM, Faiss nor a framework; making an engine does.
"""

from ragcache_engine.config import EngineConfig
from ragcache_engine.engine import RAGCacheEngine, RetrievalInProgress
from ragcache_engine.errors import (
    BackendUnavailable,
    BadRequest,
    ConfigError,
    EmptyIndex,
    EmptyPrompt,
    EngineClosed,
    EngineDied,
    EngineError,
    EngineStartFailed,
    GenerationFailed,
    IndexOutOfStep,
    InvalidTopK,
    ModelNotFound,
    PromptTooLong,
    QueryShapeError,
    RAGCacheError,
    RequestTimedOut,
    RetrievalError,
    UnguardedMain,
    UnknownDocument,
    UnsupportedStore,
)
from ragcache_engine.knowledge.tier import Tier
from ragcache_engine.prompt.template import Template
from ragcache_engine.streams import AnswerStream
from ragcache_engine.values import (
    Answer,
    CachedTokens,
    CacheStats,
    Document,
    FinishReason,
    ModelLimits,
    Piece,
    SamplingOptions,
    SpeculationEvent,
    SpeculationOutcome,
    SpeculationReport,
    SpeculationStats,
    SpeculationStep,
    TokenizedPrompt,
    Usage,
)

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AnswerStream",
    "BackendUnavailable",
    "BadRequest",
    "CacheStats",
    "CachedTokens",
    "ConfigError",
    "Document",
    "EmptyIndex",
    "EmptyPrompt",
    "EngineClosed",
    "EngineConfig",
    "EngineDied",
    "EngineError",
    "EngineStartFailed",
    "FinishReason",
    "GenerationFailed",
    "IndexOutOfStep",
    "InvalidTopK",
    "ModelLimits",
    "ModelNotFound",
    "Piece",
    "PromptTooLong",
    "QueryShapeError",
    "RAGCacheEngine",
    "RAGCacheError",
    "RequestTimedOut",
    "RetrievalError",
    "RetrievalInProgress",
    "SamplingOptions",
    "SpeculationEvent",
    "SpeculationOutcome",
    "SpeculationReport",
    "SpeculationStats",
    "SpeculationStep",
    "Template",
    "Tier",
    "TokenizedPrompt",
    "UnguardedMain",
    "UnknownDocument",
    "UnsupportedStore",
    "Usage",
    "__version__",
]
