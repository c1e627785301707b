"""Errors that only the vector store raises, below the roots of `ragcache_engine`.

RAGCacheError
├── ConfigError (ValueError)
│   └── UnsupportedIndex              the store cannot work on the Faiss index it was given
├── BadRequest                        this one call cannot be served; nothing was changed
│   ├── InvalidFilter                 a metadata filter says something that has no meaning
│   ├── UnequalLengths                texts, metadatas, ids and vectors do not pair up
│   └── VectorShapeError              vectors to add do not fit this index
└── SavedStoreError                   a store's folder cannot be used; nothing was changed
    ├── SaveNotFound (FileNotFoundError)    nothing was saved in this folder
    ├── SaveDamaged                   the folder's files are not the ones that were saved
    ├── SaveForeign                   another program, or a newer version of this one, wrote it
    ├── UntrustedPickle (ValueError)  reading it could run code, and nobody said it is trusted
    └── NotStorable (ValueError)      a document's metadata has no exact form in JSON
"""

from __future__ import annotations

from ragcache_engine import BadRequest, ConfigError, RAGCacheError


class UnsupportedIndex(ConfigError):
    """A vector store cannot add to, filter or read back vectors of the Faiss index it was given."""


class InvalidFilter(BadRequest, ValueError):
    """A metadata filter has an unknown operator, or an operand of the wrong kind."""


class UnequalLengths(BadRequest, ValueError):
    """Texts, metadatas, ids and vectors that belong together differ in number."""


class VectorShapeError(BadRequest, ValueError):
    """Vectors to add are of another size than the index's, ragged, or not finite."""


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
