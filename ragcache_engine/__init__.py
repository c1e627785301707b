"""RAGCache: an engine that prefills each retrieved document once, and reuses it in later prompts.

Importing this package loads neither torch, vLLM, Faiss nor a framework; making an engine loads vLLM.

The engine's doors are in engine.py. In the caller's process a prompt passes prompt_intake, runtime,
request_runner and a backend; speculation begins prompts before they come. vLLM's scheduler runs in a
process of its own, with the cache manager (tiers) over the knowledge tree (knowledge) beside it.
docs/architecture.md draws all of it.
"""

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.chat import ToolAnswer, ToolAnswerPart, ToolCall, ToolCallPart, ToolReader
from ragcache_engine.config import EngineConfig
from ragcache_engine.engine import RAGCacheEngine
from ragcache_engine.engine_chat import EngineChat
from ragcache_engine.errors import (
    AnswerCutShort,
    BackendUnavailable,
    BadRequest,
    ConfigError,
    EmptyIndex,
    EmptyPrompt,
    EngineClosed,
    EngineDied,
    EngineError,
    EngineInOtherProcess,
    EngineNeeded,
    EngineStartFailed,
    GenerationFailed,
    IndexOutOfStep,
    InvalidArgument,
    InvalidTopK,
    ModelNotFound,
    NoChatTemplate,
    PromptTooLong,
    QueryShapeError,
    RAGCacheError,
    RefusedMessages,
    RequestTimedOut,
    RetrievalError,
    UnguardedMain,
    UnknownDocument,
    UnknownTemplate,
    UnsupportedGuide,
    UnsupportedStore,
)
from ragcache_engine.guide import Guide, GuideKind
from ragcache_engine.knowledge.tier import Tier
from ragcache_engine.prompt.template import Render, Template
from ragcache_engine.retrieval_tracking import RetrievalInProgress
from ragcache_engine.streams import AnswerStream
from ragcache_engine.tiers.counters import TierCounters
from ragcache_engine.values import (
    Answer,
    CachedTokens,
    CacheStats,
    ChatPrompt,
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
from ragcache_engine.warming import Warmed

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AnswerCutShort",
    "AnswerStream",
    "BackendUnavailable",
    "BadRequest",
    "CacheStats",
    "CachedTokens",
    "ChatPrompt",
    "ConfigError",
    "Document",
    "EmptyIndex",
    "EmptyPrompt",
    "EngineChat",
    "EngineClosed",
    "EngineConfig",
    "EngineDied",
    "EngineError",
    "EngineInOtherProcess",
    "EngineNeeded",
    "EngineStartFailed",
    "FinishReason",
    "GenerationFailed",
    "Guide",
    "GuideKind",
    "IndexOutOfStep",
    "InvalidArgument",
    "InvalidTopK",
    "MemoryBackend",
    "ModelLimits",
    "ModelNotFound",
    "NoChatTemplate",
    "Piece",
    "PromptTooLong",
    "QueryShapeError",
    "RAGCacheEngine",
    "RAGCacheError",
    "RefusedMessages",
    "Render",
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
    "TierCounters",
    "TokenizedPrompt",
    "ToolAnswer",
    "ToolAnswerPart",
    "ToolCall",
    "ToolCallPart",
    "ToolReader",
    "UnguardedMain",
    "UnknownDocument",
    "UnknownTemplate",
    "UnsupportedGuide",
    "UnsupportedStore",
    "Usage",
    "Warmed",
    "__version__",
]
