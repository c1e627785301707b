"""Prefills documents of a store, and follows their changes, for the retrievers of both frameworks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ragcache_engine import (
    Corpus,
    Document,
    RAGCacheEngine,
    Synced,
    SyncRecord,
    Warmed,
    sets_of_each,
)


@dataclass(frozen=True, slots=True)
class StoreWarming:
    """The prefills of some documents of a store, as its chain will write them into prompts.

    neighbours: where to look up the documents' neighbours; None if the engine borrows nothing.
    template: as RAGCacheEngine.warm takes it; None: like the chain's last prompt.
    """

    engine: RAGCacheEngine
    documents: Sequence[Document]
    neighbours: Corpus | None
    chain: Hashable
    template: Any
    tenant: str | None

    def run(self, *, only_missing: bool, progress: bool) -> Warmed:
        """Prefill them; see RAGCacheEngine.warm."""
        return self.engine.warm(**self._arguments(), only_missing=only_missing, progress=progress)

    async def arun(self, *, only_missing: bool, progress: bool) -> Warmed:
        """Prefill them: `run` for coroutines."""
        return await self.engine.awarm(
            **self._arguments(), only_missing=only_missing, progress=progress
        )

    def sync(self, record: SyncRecord, *, prepare: bool, progress: bool) -> Synced:
        """Forget what changed or vanished, and prefill what is new; see RAGCacheEngine.sync."""
        return self.engine.sync(
            self.documents, record=record, prepare=prepare, progress=progress, **self._prompts()
        )

    def _arguments(self) -> dict[str, Any]:
        each = list({one.id: one for one in self.documents}.values())
        borrows = self.engine.config.reuse == "anywhere"
        return {"document_sets": sets_of_each(each, borrows=borrows), **self._prompts()}

    def _prompts(self) -> dict[str, Any]:
        return {
            "template": self.template,
            "chain": self.chain,
            "neighbours": self.neighbours,
            "tenant": self.tenant,
        }
