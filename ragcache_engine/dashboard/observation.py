"""What an observer sees of an engine or a server at one moment, in the form in which pages show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ragcache_engine.observing.request_log import DocumentSource
from ragcache_engine.tiers.counters import TierCounters
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot


@dataclass(frozen=True, slots=True)
class Phase:
    """What happened to a request from start_s to end_s, in seconds since its question.

    kind: "search", "guess", "lost guess", "wait", "prefill" or "answer".
    """

    kind: str
    start_s: float
    end_s: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ObservedRequest:
    """One request that has ended. ended_at: seconds since 1970. ttft_s, total_s: since its question.

    cached_tokens: prompt tokens that were reused exactly. borrowed_tokens: those that were borrowed.
    """

    name: str
    ended_at: float
    ttft_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    phases: tuple[Phase, ...]
    documents: tuple[DocumentSource, ...]
    question: str = ""
    borrowed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen at one moment. at: seconds since 1970.

    running, waiting: requests now; None where nobody tells. approximate_tokens: prompt tokens whose
      tensors were borrowed from another context.
    tree: None if it was not asked for, may not be seen, or if there is none.
    texts: the beginnings of documents' texts by id, where they may be shown.
    problem: why little can be seen; empty if all is well.
    """

    at: float
    counters: TierCounters
    running: int | None = None
    waiting: int | None = None
    finished: int | None = None
    failed: int | None = None
    restarts: int | None = None
    approximate_tokens: int = 0
    tree: TreeSnapshot | None = None
    requests: tuple[ObservedRequest, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


class Observer(Protocol):
    """Looks at an engine or a server. name: what it looks at, for a page's title."""

    name: str

    def observe(self, *, with_tree: bool) -> Observation:
        """Look once. with_tree: also at the tree, which costs the model a token.

        A failure that may pass is a `problem` of the observation. Raises EngineClosed for an engine that
        is gone for good.
        """
