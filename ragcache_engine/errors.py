"""Every error RAGCache raises on purpose, as one tree.

    RAGCacheError
    ├── ConfigError (ValueError)          a setting cannot work; nothing was started
    │   ├── BackendUnavailable            the backend asked for is not installed or not supported
    │   ├── ModelNotFound                 the model folder or hub id cannot be read
    │   └── UnguardedMain                 the script lacks `if __name__ == "__main__":`
    ├── BadRequest (ValueError)           this one request cannot be served; nothing was computed
    │   ├── EmptyPrompt
    │   ├── PromptTooLong                 more tokens than the model's context leaves room for
    │   └── InvalidTopK                   fewer than one document asked for
    ├── RetrievalError                    the documents cannot be found; no text was generated
    │   ├── EmptyIndex                    the index holds no vectors
    │   ├── QueryShapeError               the query vector's size is not the index's
    │   ├── UnknownDocument               the index names a document the store does not have
    │   ├── IndexOutOfStep                index and document store disagree on how many there are
    │   └── UnsupportedStore              the object given is not a FAISS-backed store
    └── EngineError                       the engine could not finish what it was asked
        ├── EngineStartFailed             the backend did not come up
        ├── EngineClosed                  close() was called, before or during the request
        ├── EngineDied                    the model's process ended by itself
        ├── GenerationFailed              the backend failed this request, twice; others go on
        └── RequestTimedOut               the engine showed no token for request_timeout_s, twice

Each message says what to do next. The leaves below a `ValueError` are also ValueErrors, so code that
knows nothing of RAGCache still catches them as such.
"""


class RAGCacheError(Exception):
    """The root: `except RAGCacheError` catches everything raised on purpose here."""


class ConfigError(RAGCacheError, ValueError):
    """A setting cannot work. Raised before anything is started."""


class BackendUnavailable(ConfigError):
    """The backend asked for is not installed, or its version is outside the supported range."""


class ModelNotFound(ConfigError):
    """The model is neither a readable folder nor a hub id that could be fetched."""


class UnguardedMain(ConfigError):
    """vLLM starts processes that import the caller's script again; the script must be guarded."""


class BadRequest(RAGCacheError, ValueError):
    """One request cannot be served. Raised before any work on it."""


class EmptyPrompt(BadRequest):
    """The prompt has no tokens."""


class PromptTooLong(BadRequest):
    """The prompt leaves no room for an answer in the model's context."""


class InvalidTopK(BadRequest):
    """A retriever was asked for fewer than one document."""


class RetrievalError(RAGCacheError):
    """The documents of a question cannot be found."""


class EmptyIndex(RetrievalError):
    """The index holds no vectors, so nothing can be retrieved."""


class QueryShapeError(RetrievalError):
    """The query vector's size differs from the index's, as after a change of embedding model."""


class UnknownDocument(RetrievalError):
    """The index returned an id that the document store does not hold."""


class IndexOutOfStep(RetrievalError):
    """The index and the document store disagree on how many documents there are."""


class UnsupportedStore(RetrievalError, TypeError):
    """The object given is not a vector store or index backed by Faiss."""


class EngineError(RAGCacheError):
    """The engine could not finish a request."""


class EngineStartFailed(EngineError):
    """The backend did not come up."""


class EngineClosed(EngineError):
    """The engine was closed before or while the request ran."""


class EngineDied(EngineError):
    """The model's process ended by itself."""


class GenerationFailed(EngineError):
    """The backend failed this one request, and again when it was tried once more."""


class RequestTimedOut(EngineError, TimeoutError):
    """The engine showed no token of any request for the configured time, nor on the one retry."""
