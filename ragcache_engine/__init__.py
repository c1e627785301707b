"""RAGCache: an engine that prefills each retrieved document once, and reuses it in later prompts.

Importing this package loads neither torch, vLLM, Faiss nor a framework; making an engine loads vLLM.

The engine's doors are in engine.py. In the caller's process a prompt passes requests/
(intake, runtime, runner) and a backend; speculation begins prompts before they come. vLLM's scheduler
runs in a process of its own, with the cache manager (tiers) over the knowledge tree (knowledge) beside
it.
docs/architecture.md draws all of it.
"""

from ragcache_engine.anywhere.beginnings import sets_of_each
from ragcache_engine.anywhere.corpus import Corpus
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.cache_stats import CacheStats
from ragcache_engine.chat import (
    ToolAnswer,
    ToolAnswerPart,
    ToolCall,
    ToolCallPart,
    ToolReader,
    cache_point,
)
from ragcache_engine.config import EngineConfig
from ragcache_engine.engine import RAGCacheEngine
from ragcache_engine.engine_chat import EngineChat
from ragcache_engine.errors import (
    AnswerCutShort,
    AnswersDiffer,
    BackendUnavailable,
    BadRequest,
    CannotBorrow,
    CannotKeep,
    ConfigError,
    CorpusTooLarge,
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
    KeepLimitReached,
    KeyRefused,
    ModelNotFound,
    NoChatTemplate,
    NoToolCall,
    OperatorsOnly,
    PromptTooLong,
    QueryShapeError,
    RAGCacheError,
    RefusedMessages,
    RequestTimedOut,
    RequestTooLarge,
    RequestTooSlow,
    RetrievalError,
    ServerBusy,
    ServerLacks,
    ServerLost,
    ServerUnreachable,
    UnguardedMain,
    UnknownDocument,
    UnknownTemplate,
    UnsupportedGuide,
    UnsupportedStore,
    UnusableCalibration,
)
from ragcache_engine.guide import Guide, GuideKind
from ragcache_engine.knowledge.tier import Tier
from ragcache_engine.observing.metrics import EngineCollector
from ragcache_engine.observing.request_log import DocumentSource, FinishedRequest
from ragcache_engine.prompt.template import Render, Template
from ragcache_engine.requests.streams import AnswerStream
from ragcache_engine.retrievals.tracker import RetrievalInProgress
from ragcache_engine.tiers.counters import DiskState, TierCounters
from ragcache_engine.tiers.tree_snapshot import DocumentBlocks, TreeSnapshot
from ragcache_engine.values import (
    Answer,
    CachedTokens,
    ChatPrompt,
    Document,
    DocumentReuse,
    FinishReason,
    HitRate,
    ModelLimits,
    Piece,
    SamplingOptions,
    SpeculationEvent,
    SpeculationOutcome,
    SpeculationReport,
    SpeculationStats,
    SpeculationStep,
    TokenizedPrompt,
    TokenLogprob,
    Usage,
)
from ragcache_engine.warming.keep import KeptDocuments
from ragcache_engine.warming.plan import Warmed
from ragcache_engine.warming.sync import Synced, SyncRecord

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AnswerCutShort",
    "AnswerStream",
    "AnswersDiffer",
    "BackendUnavailable",
    "BadRequest",
    "CacheStats",
    "CachedTokens",
    "CannotBorrow",
    "CannotKeep",
    "ChatPrompt",
    "ConfigError",
    "Corpus",
    "CorpusTooLarge",
    "DiskState",
    "Document",
    "DocumentBlocks",
    "DocumentReuse",
    "DocumentSource",
    "EmptyIndex",
    "EmptyPrompt",
    "EngineChat",
    "EngineClosed",
    "EngineCollector",
    "EngineConfig",
    "EngineDied",
    "EngineError",
    "EngineInOtherProcess",
    "EngineNeeded",
    "EngineStartFailed",
    "FinishReason",
    "FinishedRequest",
    "GenerationFailed",
    "Guide",
    "GuideKind",
    "HitRate",
    "IndexOutOfStep",
    "InvalidArgument",
    "InvalidTopK",
    "KeepLimitReached",
    "KeptDocuments",
    "KeyRefused",
    "MemoryBackend",
    "ModelLimits",
    "ModelNotFound",
    "NoChatTemplate",
    "NoToolCall",
    "OperatorsOnly",
    "Piece",
    "PromptTooLong",
    "QueryShapeError",
    "RAGCacheEngine",
    "RAGCacheError",
    "RefusedMessages",
    "Render",
    "RequestTimedOut",
    "RequestTooLarge",
    "RequestTooSlow",
    "RetrievalError",
    "RetrievalInProgress",
    "SamplingOptions",
    "ServerBusy",
    "ServerLacks",
    "ServerLost",
    "ServerUnreachable",
    "SpeculationEvent",
    "SpeculationOutcome",
    "SpeculationReport",
    "SpeculationStats",
    "SpeculationStep",
    "SyncRecord",
    "Synced",
    "Template",
    "Tier",
    "TierCounters",
    "TokenLogprob",
    "TokenizedPrompt",
    "ToolAnswer",
    "ToolAnswerPart",
    "ToolCall",
    "ToolCallPart",
    "ToolReader",
    "TreeSnapshot",
    "UnguardedMain",
    "UnknownDocument",
    "UnknownTemplate",
    "UnsupportedGuide",
    "UnsupportedStore",
    "UnusableCalibration",
    "Usage",
    "Warmed",
    "__version__",
    "cache_point",
    "sets_of_each",
]
