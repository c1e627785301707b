"""Every error RAGCache raises on purpose, as one tree.

    RAGCacheError
    ├── ConfigError (ValueError)          a setting cannot work; nothing was started
    │   ├── BackendUnavailable            the backend asked for is not installed or not supported
    │   ├── ModelNotFound                 the model folder or hub id cannot be read
    │   ├── EngineNeeded                  something saved without its engine was not given one again
    │   ├── UnguardedMain                 the script lacks `if __name__ == "__main__":`
    │   └── UnsupportedIndex              a vector store cannot work on the Faiss index it was given
    ├── BadRequest (ValueError)           this one request cannot be served; nothing was computed
    │   ├── EmptyPrompt
    │   ├── PromptTooLong                 more tokens than the model's context leaves room for
    │   ├── UnsupportedGuide              the answer's form is one the backend cannot hold it to
    │   ├── NoChatTemplate                the model has no format for conversations
    │   ├── RefusedMessages               the model's chat template cannot write this conversation
    │   ├── UnknownTemplate               it is not known what the prompts to prefill for look like
    │   ├── InvalidTopK                   fewer than one document asked for
    │   ├── InvalidFilter                 a metadata filter says something that has no meaning
    │   ├── UnequalLengths                texts, metadatas, ids and vectors do not pair up
    │   └── VectorShapeError              vectors to add are not those of this index
    ├── RetrievalError                    the documents cannot be found; no text was generated
    │   ├── EmptyIndex                    the index holds no vectors
    │   ├── QueryShapeError               the query vector's size is not the index's
    │   ├── UnknownDocument               the index names a document the store does not have
    │   ├── IndexOutOfStep                index and document store disagree on how many there are
    │   └── UnsupportedStore              the object given is not a FAISS-backed store
    ├── SavedStoreError                   a vector store's folder cannot be used; nothing was changed
    │   ├── SaveNotFound                  nothing was saved in this folder
    │   ├── SaveDamaged                   its files are not the ones that were saved
    │   ├── SaveForeign                   another program or a newer version wrote it
    │   ├── UntrustedPickle               reading it could run code, and nobody said it is trusted
    │   └── NotStorable (ValueError)      a document's metadata has no exact form in JSON
    └── EngineError                       the engine could not finish what it was asked
        ├── EngineStartFailed             the backend did not come up
        ├── EngineClosed                  close() was called, before or during the request
        ├── EngineDied                    the model's process ended by itself
        ├── GenerationFailed              the backend failed this request, twice; others go on
        ├── AnswerCutShort (ValueError)   the answer ended inside the form it was to have
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


class EngineNeeded(ConfigError):
    """An LLM was saved, or sent to another process, and its engine cannot go with it."""


class UnsupportedIndex(ConfigError):
    """A vector store cannot add to, filter or read back vectors of the Faiss index it was given."""


class BadRequest(RAGCacheError, ValueError):
    """One request cannot be served. Raised before any work on it."""


class EmptyPrompt(BadRequest):
    """The prompt has no tokens."""


class PromptTooLong(BadRequest):
    """The prompt leaves no room for an answer in the model's context."""


class UnsupportedGuide(BadRequest):
    """The form asked for is malformed, or uses what the backend's guided decoding does not know."""


class NoChatTemplate(BadRequest):
    """The model came without a chat template, so nobody knows how it wants to be talked to."""


class RefusedMessages(BadRequest):
    """A conversation holds what the model's chat template cannot write."""


class UnknownTemplate(BadRequest):
    """Nobody has told what the prompts look like that documents are to be prefilled for."""


class InvalidTopK(BadRequest):
    """A retriever was asked for fewer than one document."""


class InvalidFilter(BadRequest):
    """A metadata filter has an unknown operator, or an operand of the wrong kind."""


class UnequalLengths(BadRequest):
    """Texts, metadatas, ids and vectors that belong together differ in number."""


class VectorShapeError(BadRequest):
    """Vectors to add are of another size than the index's, ragged, or not finite."""


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


class SavedStoreError(RAGCacheError):
    """The folder of a vector store cannot be read or written. What it held is still there."""


class SaveNotFound(SavedStoreError, FileNotFoundError):
    """Nothing was saved in this folder, or there is no such folder."""


class SaveDamaged(SavedStoreError):
    """The folder's files are missing, cut short or changed since they were saved."""


class SaveForeign(SavedStoreError):
    """The folder was written by another program, or by a newer version of this one."""


class UntrustedPickle(SavedStoreError, ValueError):
    """Reading the folder means unpickling, and the caller has not said that the file is trusted."""


class NotStorable(SavedStoreError, ValueError):
    """A document would not come back from JSON as it is."""


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


class AnswerCutShort(EngineError, ValueError):
    """An answer that was to have a form ended inside it, as by max_tokens, and says nothing whole."""


class RequestTimedOut(EngineError, TimeoutError):
    """The engine showed no token of any request for the configured time, nor on the one retry."""
