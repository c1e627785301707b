"""Which rows a filter chooses, worked out once for as long as the documents stay the same."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from langchain_core.documents import Document

from ragcache_integrations.langchain.faiss_store.filters import Filter, compile_filter
from ragcache_integrations.langchain.faiss_store.row_search import RowSelection

_MAX_ENTRIES = 64


class FilterCache:
    """Finds and remembers selections. A filter is asked about every document: n calls in Python.

    Of filters only dicts are remembered; what a function says may change by itself. Threads may ask
    at once; `forget` is called while nobody asks.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[str, RowSelection] = (
            OrderedDict()
        )  # the one used last at the end
        self._lock = threading.Lock()

    def select(
        self, filter: Filter | None, documents: Mapping[int, Document], total: int
    ) -> RowSelection | None:
        """The rows of the documents that pass. None: every row counts, and no filter is needed.

        documents: by row. total: rows in the index, of which some may have no document.
        """
        if filter is None and len(documents) == total:
            return None
        name = "" if filter is None else _cache_key(filter)
        if name is not None:
            with self._lock:
                if kept := self._entries.get(name):
                    self._entries.move_to_end(name)
                    return kept
        selection = RowSelection.from_rows(_passing_rows(filter, documents), total)
        if name is not None:
            with self._lock:
                self._entries[name] = selection
                if len(self._entries) > _MAX_ENTRIES:
                    self._entries.popitem(last=False)
        return selection

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()


def _passing_rows(filter: Filter | None, documents: Mapping[int, Document]) -> Iterable[int]:
    if filter is None:
        return documents
    passes = compile_filter(filter)
    return [row for row, document in documents.items() if passes(document.metadata)]


def _cache_key(filter: Filter) -> str | None:
    """A name that no filter with another meaning has; None if that cannot be said."""
    if callable(filter):
        return None
    try:
        json.dumps(filter)  # plain values only, whose repr tells all of them apart
    except (TypeError, ValueError):
        return None
    return repr(filter)
