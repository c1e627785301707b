"""Looks at an engine in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ragcache_engine.dashboard.lanes import lanes
from ragcache_engine.dashboard.observation import Observation, ObservedRequest, Phase
from ragcache_engine.dashboard.tree_memory import TreeMemory
from ragcache_engine.errors import EngineClosed, RAGCacheError
from ragcache_engine.observing.request_log import FinishedRequest
from ragcache_engine.requests.runtime import Runtime
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot
from ragcache_engine.values import Usage

LISTED_DOCUMENTS = 200

SHOWN_TEXT = 160
"""So many characters of a document's text are shown, where texts may be shown."""


class EngineObserver:
    """Looks at an engine through its runtime, so that it keeps no engine from being closed.

    texts: returns the texts of documents by id; None to show none, and no questions either.
    """

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        texts: Callable[[], Mapping[str, str]] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._runtime = runtime
        self._texts = texts
        self._memory = TreeMemory(now)

    def observe(self, *, with_tree: bool) -> Observation:
        """Look once; see Observer."""
        runtime = self._runtime
        runtime.require_open()
        tree, problem = self._look_at_tree() if with_tree else (None, "")
        stats = runtime.stats()
        is_shown = self._texts is not None
        return Observation(
            at=time.time(),
            counters=stats.tiers,
            running=stats.running,
            waiting=tree.waiting if tree else None,
            finished=stats.finished,
            failed=stats.failed,
            restarts=stats.restarts,
            tree=tree,
            requests=tuple(
                describe_request(request, with_question=is_shown)
                for request in runtime.recent_requests()
            ),
            texts=self._beginnings(tree),
            approximate_tokens=stats.tiers.borrowed_tokens,
            problem=problem,
        )

    def _look_at_tree(self) -> tuple[TreeSnapshot | None, str]:
        if self._memory.is_fresh(self._counts(), self._runtime.stats().running):
            return self._memory.tree, ""
        try:
            tree = self._runtime.snapshot(LISTED_DOCUMENTS).result()
        except EngineClosed:
            raise
        except RAGCacheError as error:
            self._memory.remember(None)
            return None, str(error)
        self._memory.remember(tree)
        return tree, ""

    def _counts(self) -> object:
        """Return what changes with every request, and with whatever else changes the tree.

        A look is a request of the model, but not of the engine: only the tiers count it, among the ended.
        """
        stats, changes = self._runtime.stats(), self._runtime.cache_changes
        requests = stats.running, stats.finished, stats.cancelled, stats.failed, stats.restarts
        return changes, requests, replace(stats.tiers, ended=0)

    def _beginnings(self, tree: TreeSnapshot | None) -> dict[str, str]:
        if self._texts is None or tree is None:
            return {}
        texts = self._texts()
        listed = {name for each in tree.documents for name in each.documents}
        return {name: texts[name][:SHOWN_TEXT] for name in listed & texts.keys()}


def describe_request(request: FinishedRequest, *, with_question: bool) -> ObservedRequest:
    """Return a request in the form in which pages show it."""
    usage = request.usage
    return ObservedRequest(
        request.request_id,
        request.ended_at,
        usage.ttft_s,
        usage.total_s,
        usage.prompt_tokens,
        usage.cached.total,
        phases_of(usage),
        request.documents,
        request.question if with_question else "",
        usage.borrowed.total,
    )


def phases_of(usage: Usage) -> tuple[Phase, ...]:
    """Tell what happened to a request, from its search to the end of its answer."""
    drawn = lanes(usage.speculation)
    phases: list[Phase] = []
    if search_s := max((*drawn.stages_s, usage.retrieval_s), default=0.0):
        phases.append(Phase("search", 0.0, search_s))
    for span in drawn.speculations:
        kind = "guess" if span.was_of_use else "lost guess"
        phases.append(Phase(kind, span.start_s, span.end_s, span.fate))
    begun_s = usage.retrieval_s if drawn.model_s is None else drawn.model_s
    phases.append(Phase("prefill", min(begun_s, usage.ttft_s), usage.ttft_s))
    phases.append(Phase("answer", usage.ttft_s, usage.total_s))
    return tuple(phases)
