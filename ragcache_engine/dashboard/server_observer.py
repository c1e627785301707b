"""Looks at a server of `ragcache serve` over HTTP."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

from ragcache_engine.dashboard.observation import Observation, ObservedRequest, Phase
from ragcache_engine.dashboard.tree_memory import TreeMemory
from ragcache_engine.errors import RAGCacheError
from ragcache_engine.observing.request_log import DocumentSource
from ragcache_engine.tiers.counters import BlocksByTier, DiskState, TierCounters
from ragcache_engine.tiers.metric_names import (
    CAPACITY,
    DISK_STATE,
    EVICTED,
    HELD,
    KEPT,
    PLAIN_COUNTS,
    PROMPT_TOKENS,
    SCHEDULING,
    TOKEN_SOURCES,
)
from ragcache_engine.tiers.tree_snapshot import ServedRequest, TreeSnapshot

LISTED_DOCUMENTS = 200
TIMEOUT_S = 10.0

_Samples = Mapping[str, Iterable[tuple[Mapping[str, str], float]]]
"""For each name of a metric its labels and values."""


class ServerObserver:
    """Looks at the server at a URL such as http://localhost:8000.

    operator_key: a key of an operator of the server's. Without it only the metrics can be seen: no
      document, and no request.
    api_key: the key that opens the metrics, if the server wants one.
    """

    def __init__(
        self,
        url: str,
        operator_key: str | None = None,
        api_key: str | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = url
        self._url = url.rstrip("/")
        self._operator_key = operator_key
        self._api_key = api_key
        self._memory = TreeMemory(now)

    @property
    def has_key(self) -> bool:
        """Whether the observer may ask for documents and requests."""
        return self._operator_key is not None

    def observe(self, *, with_tree: bool) -> Observation:
        """Look once; see Observer."""
        try:
            seen = self._read_metrics()
        except (OSError, HTTPException, ValueError) as error:
            problem = f"{self._url}/metrics cannot be read: {_describe_failure(error)}"
            return Observation(time.time(), TierCounters(), problem=problem)
        if not with_tree or self._operator_key is None:
            return seen
        try:
            tree = self._look_at_tree(seen, self._operator_key)
        except HTTPError as error:
            hint = ": is the operator key right?" if error.code in (401, 403) else ""
            return replace(seen, problem=f"the server shows no tree (HTTP {error.code}){hint}")
        except (OSError, HTTPException, ValueError, KeyError, RAGCacheError) as error:
            return replace(seen, problem=f"the server shows no tree: {error}")
        if tree is None:
            return replace(seen, problem="the server keeps no tree; its log says why")
        requests = tuple(map(describe_served, tree.requests))
        return replace(seen, tree=tree, requests=requests)

    def _read_metrics(self) -> Observation:
        from prometheus_client.parser import text_string_to_metric_families

        samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in text_string_to_metric_families(
            self._fetch("/metrics", self._api_key).decode()
        ):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        if not any(name.startswith(("ragcache_", "vllm:")) for name in samples):
            raise ValueError("it has no metrics of vLLM's or RAGCache's")
        return read_samples(samples)

    def _look_at_tree(self, seen: Observation, operator_key: str) -> TreeSnapshot | None:
        """Return the tree; ask for it only if it may have changed since the last time.

        A look is a request too: the server counts it among those that ended, but not its token.
        """
        counts = replace(seen.counters, ended=0), seen.running
        if not self._memory.is_fresh(counts, seen.running):
            self._memory.remember(self._ask_for_tree(operator_key))
        return self._memory.tree

    def _ask_for_tree(self, operator_key: str) -> TreeSnapshot | None:
        asked = {"documents": LISTED_DOCUMENTS}
        tree = json.loads(self._fetch("/ragcache/tree", operator_key, asked))["tree"]
        return tree and TreeSnapshot.from_dict(tree)

    def _fetch(self, path: str, key: str | None, body: Mapping[str, Any] | None = None) -> bytes:
        headers: dict[str, Any] = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}".encode()
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read()
        return content


def _describe_failure(error: Exception) -> str:
    if isinstance(error, HTTPError) and error.code in (401, 403):
        return "it wants a key: --api-key-env names the variable that holds one"
    reason = getattr(error, "reason", error)  # urllib wraps what went wrong
    return f"{reason}. Does the server run there?"


def read_samples(samples: _Samples) -> Observation:
    """Read the metrics of a server, or of a program that exports its engine's."""

    def total(name: str) -> float:
        return sum(value for _, value in samples.get(name, ()))

    def by_label(name: str, label: str) -> dict[str, int]:
        sums: dict[str, int] = {}
        for labels, value in samples.get(name, ()):
            sums[labels.get(label, "")] = sums.get(labels.get(label, ""), 0) + int(value)
        return sums

    def known(*names: str) -> int | None:
        return next((int(total(name)) for name in names if name in samples), None)

    tokens = by_label(f"{PROMPT_TOKENS.name}_total", "source")
    states = by_label(DISK_STATE.name, "state")
    outcomes = by_label("ragcache_requests_total", "outcome")
    counts: dict[str, Any] = {
        field: int(total(f"{metric.name}_total")) for field, metric in PLAIN_COUNTS.items()
    }
    counts |= {field: tokens.get(source, 0) for field, source in TOKEN_SOURCES.items()}
    counters = TierCounters(
        ended=int(total(f"{SCHEDULING.name}_count")),
        evicted=_tiers(by_label(f"{EVICTED.name}_total", "tier")),
        held=_tiers(by_label(HELD.name, "tier")),
        capacity=_tiers(by_label(CAPACITY.name, "tier")),
        kept=_tiers(by_label(KEPT.name, "tier")),
        # Of a fleet whose replicas differ, the worst state: it is the one to look at.
        disk=next((state for state in reversed(DiskState) if states.get(state)), DiskState.NONE),
        **counts,
    )
    return Observation(
        time.time(),
        counters,
        running=known("vllm:num_requests_running", "ragcache_running_requests"),
        waiting=known("vllm:num_requests_waiting"),
        finished=outcomes.get("finished", known("vllm:request_success_total")),
        failed=outcomes.get("failed"),
        restarts=known("ragcache_restarts_total"),
        approximate_tokens=counters.borrowed_tokens,
    )


def _tiers(blocks: Mapping[str, int]) -> BlocksByTier:
    return BlocksByTier(*(blocks.get(tier, 0) for tier in BlocksByTier()))


def describe_served(request: ServedRequest) -> ObservedRequest:
    """Return a request in the form in which pages show it."""
    ttft_s = request.total_s if request.first_token_s is None else request.first_token_s
    phases = (
        Phase("wait", 0.0, request.waited_s),
        Phase("prefill", request.waited_s, ttft_s),
        Phase("answer", ttft_s, request.total_s),
    )
    documents = tuple(map(DocumentSource.of, request.documents))
    return ObservedRequest(
        request.name,
        request.ended_at,
        ttft_s,
        request.total_s,
        request.prompt_tokens,
        sum(request.cached.values()),
        phases,
        documents,
        borrowed_tokens=sum(document.borrowed.total for document in documents),
    )
