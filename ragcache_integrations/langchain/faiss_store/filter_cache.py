"""Remembers which rows a filter chooses, for as long as the documents stay the same."""

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
    """Computes row selections and keeps those of the filters used last.

    Computing one calls the filter for every document, in Python. Only filters that are dicts are
    remembered, because a function may give another answer next time. Several threads may call `select`
    at once; `clear` must be called while none does.
    """

    def __init__(self) -> None:
        # In the order of their last use, the latest at the end.
        self._entries: OrderedDict[str, RowSelection] = OrderedDict()
        self._lock = threading.Lock()

    def select(
        self, filter: Filter | None, documents: Mapping[int, Document], total: int
    ) -> RowSelection | None:
        """Return the rows of the documents that pass. None means every row, so no selection is needed.

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
    """Return a key that no filter with another meaning has; None if there is no such key."""
    if callable(filter):
        return None
    try:
        json.dumps(filter)  # only plain values, whose repr differs if they differ
    except (TypeError, ValueError):
        return None
    return repr(filter)
