"""Every error that RAGCache raises on purpose, as one tree.

    RAGCacheError
    ├── ConfigError (ValueError)          a setting cannot work; nothing was started
    │   ├── BackendUnavailable            the backend asked for is not installed or not supported
    │   ├── ModelNotFound                 the model folder or hub id cannot be read
    │   ├── CannotBorrow                  reuse="anywhere" does not work with this model or backend
    │   ├── CannotKeep                    documents cannot be kept from eviction here
    │   ├── UnusableCalibration           the measured recompute ratio cannot be read, or is another's
    │   ├── EngineNeeded                  something saved without its engine was not given one again
    │   └── UnguardedMain                 the script lacks `if __name__ == "__main__":`
    ├── KeyRefused (PermissionError)      the server does not know the API key
    │   └── OperatorsOnly                 the server does this for an operator's key only
    ├── BadRequest                        this one request cannot be served; nothing was computed
    │   ├── InvalidArgument (ValueError, TypeError)  an argument has a wrong type, or an impossible value
    │   │   └── InvalidTopK               no number of documents, or fewer than one, was asked for
    │   ├── EmptyPrompt                   the prompt has no tokens
    │   ├── PromptTooLong                 more tokens than the model's context leaves room for
    │   ├── RequestTooLarge               more bytes or answers than the server takes in one request
    │   ├── RequestTooSlow                the request did not reach the server in time
    │   ├── CorpusTooLarge                the server has no room for more registered documents
    │   ├── KeepLimitReached              more documents were to be kept than may be
    │   ├── UnsupportedGuide              the backend cannot hold an answer to this form
    │   ├── NoChatTemplate                the model has no format for conversations
    │   ├── RefusedMessages               the model's chat template cannot write this conversation
    │   └── UnknownTemplate               no template says what the prompts to prefill look like
    ├── RetrievalError                    the documents cannot be found; no text was generated
    │   ├── EmptyIndex                    the index holds no vectors
    │   ├── QueryShapeError               the query vector's size is not the index's
    │   ├── UnknownDocument               no text is known for a document's id
    │   ├── IndexOutOfStep                index and documents do not belong together
    │   └── UnsupportedStore (TypeError)  the object given is not a FAISS-backed store
    └── EngineError                       the engine could not finish what it was asked
        ├── EngineStartFailed             the model did not start
        ├── EngineInOtherProcess          this process was forked from the one that made the engine
        ├── EngineClosed                  close() was called, before or during the request
        ├── EngineDied                    the model's process ended by itself
        ├── GenerationFailed              the backend failed this request, twice; others go on
        │   └── AnswersDiffer             a lost replica's answer cannot be continued by another one
        ├── AnswerCutShort                the answer ended before its form was complete
        ├── NoToolCall                    the answer called no tool where a call was expected
        ├── ServerBusy                    the server takes no more requests now; nothing was computed
        ├── ServerLacks                   the server cannot do this; a RAGCache server can
        ├── ServerLost (ConnectionError)  the connection broke in the middle of an answer
        ├── ServerUnreachable (ConnectionError)  nobody answers at the server's address
        └── RequestTimedOut (TimeoutError)  no token for request_timeout_s, twice; or a call gave less

Each message says what to do next. An error below one that is marked (ValueError) is a ValueError too, so
code that knows nothing of RAGCache still catches it as such. The LangChain vector store has errors of its
own below the same roots; ragcache_integrations/langchain/faiss_store/errors.py draws them.
"""

from ragcache_engine.visible import visible


class RAGCacheError(Exception):
    """The root: `except RAGCacheError` catches everything raised on purpose here.

    Its text may quote what somebody else wrote, and shows no character that would steer a terminal.
    """

    def __str__(self) -> str:
        return visible(super().__str__(), keep="\n\t")


class ConfigError(RAGCacheError, ValueError):
    """A setting cannot work. Raised before anything is started."""


class BackendUnavailable(ConfigError):
    """The backend asked for is not installed, or its version is outside the supported range."""


class ModelNotFound(ConfigError):
    """The model is neither a readable folder nor a hub id that could be fetched."""


class UnguardedMain(ConfigError):
    """vLLM's processes import the caller's script again, and it lacks `if __name__ == "__main__":`."""


class CannotBorrow(ConfigError):
    """reuse="anywhere" does not work with this model, backend or argument of vLLM."""


class CannotKeep(ConfigError):
    """The engine cannot keep documents from eviction."""


class UnusableCalibration(ConfigError):
    """The file that `ragcache calibrate` wrote cannot be read, is damaged, or is another model's."""


class EngineNeeded(ConfigError):
    """An LLM object was saved or sent to another process, and its engine cannot go with it."""


class KeyRefused(RAGCacheError, PermissionError):
    """The server does not know the API key."""


class OperatorsOnly(KeyRefused):
    """The server does this for an operator's key only."""


class BadRequest(RAGCacheError):
    """One request cannot be served. Raised before any work on it.

    No ValueError: of one, LlamaIndex's default response mode makes the answer "Empty Response".
    """


class InvalidArgument(BadRequest, ValueError, TypeError):
    """An argument has a wrong type, or a value with which nothing can work."""


class EmptyPrompt(BadRequest):
    """The prompt has no tokens."""


class PromptTooLong(BadRequest):
    """The prompt leaves no room for an answer in the model's context."""


class RequestTooLarge(BadRequest):
    """The request has more bytes, or asks for more answers, than the server takes."""


class RequestTooSlow(BadRequest):
    """The request did not reach the server in time, as over a slow line."""


class CorpusTooLarge(BadRequest):
    """The server has no room for more registered documents; those that it has stay."""


class KeepLimitReached(BadRequest):
    """Documents would take more of a tier than may be kept there; nothing is kept that was not before."""


class UnsupportedGuide(BadRequest):
    """The guide is malformed, or uses something that the backend's guided decoding does not support."""


class NoChatTemplate(BadRequest):
    """The model has no chat template, so the engine cannot write a conversation for it."""


class RefusedMessages(BadRequest):
    """A conversation holds something that the model's chat template cannot write."""


class UnknownTemplate(BadRequest):
    """The engine does not know what the prompts look like for which it is to prefill documents."""


class InvalidTopK(InvalidArgument):
    """A retriever was asked for fewer than one document, or for a number that is no integer."""


class RetrievalError(RAGCacheError):
    """The documents of a question cannot be found."""


class EmptyIndex(RetrievalError):
    """The index holds no vectors, so nothing can be retrieved."""


class QueryShapeError(RetrievalError):
    """The query vector's size differs from the index's, as after a change of embedding model."""


class UnknownDocument(RetrievalError):
    """No text is known for a document's id, for example because the document store lacks it."""


class IndexOutOfStep(RetrievalError):
    """The index and the documents do not belong together: in number, or none is known for a vector."""


class UnsupportedStore(RetrievalError, TypeError):
    """The object given is not a vector store or index backed by Faiss."""


class EngineError(RAGCacheError):
    """The engine could not finish a request."""


class EngineStartFailed(EngineError):
    """The backend did not start."""


class EngineInOtherProcess(EngineError):
    """The engine belongs to another process, and this one was forked from it."""


class EngineClosed(EngineError):
    """The engine was closed before or while the request ran."""


class EngineDied(EngineError):
    """The model's process ended by itself."""


class GenerationFailed(EngineError):
    """The backend failed this one request, and failed it again on the retry."""


class AnswersDiffer(GenerationFailed):
    """A replica was lost in the middle of an answer, and another one answers otherwise."""


class AnswerCutShort(EngineError):
    """An answer ended before the form that it had to follow was complete, for example by max_tokens."""


class NoToolCall(EngineError):
    """The model answered in words where the caller expected a call of a tool."""


class RequestTimedOut(EngineError, TimeoutError):
    """The backend showed no token of any request for request_timeout_s, and again on the retry; or the
    answer was not complete after the timeout that its call gave."""


class ServerBusy(EngineError):
    """The server takes no more requests at the moment, and still did not after the retries.

    retry_after_s: after how many seconds the server said to ask again; 0 if it did not say.
    """

    retry_after_s: float = 0.0


class ServerLacks(EngineError):
    """The server has no such ability, as it is a plain vLLM server."""


class ServerLost(EngineError, ConnectionError):
    """The connection to the server broke after a part of the answer had come."""


class ServerUnreachable(EngineError, ConnectionError):
    """Nobody answers at the server's address, or nobody that speaks HTTP."""
