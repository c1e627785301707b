"""The systems to compare. All get the same model, bytes and chain; only the tested part differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

STOCK, RAGCACHE = "vllm", "ragcache"


@dataclass(frozen=True, slots=True)
class System:
    """One system under comparison.

    key: its name on command lines and in files. name: its name in tables.
    kind: STOCK, vLLM behind LangChain's own retriever; RAGCACHE, our retriever and LLM.
    settings: for STOCK, `prefix_caching`; `offload`, a policy of vLLM's host offload. For RAGCACHE,
      fields of EngineConfig.
    changes_prompt: whether it puts documents into another order than the retriever's.
    has_disk: whether it gets a disk tier.
    is_approximate: whether its answers may differ from those of vLLM. It borrows tensors of documents
      from other contexts.
    """

    key: str
    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    changes_prompt: bool = False
    has_disk: bool = False
    is_approximate: bool = False

    @property
    def has_host(self) -> bool:
        """Whether it keeps tensors in host memory."""
        return self.kind == RAGCACHE or "offload" in self.settings


@dataclass(frozen=True, slots=True)
class Sizes:
    """The settings that are the same for all systems.

    host_bytes, disk_bytes: for systems with these tiers.
    at_once: the most requests that the model computes together; the others wait.
    """

    model: str
    backend: str = "vllm"
    dtype: str = "auto"
    device_bytes: int = 96 << 20
    host_bytes: int = 384 << 20
    disk_bytes: int = 2 << 30
    context_tokens: int = 2048
    at_once: int = 4

    def multiplied(self, times: int) -> Sizes:
        """Return these settings with so many times the device cache and the host cache."""
        return replace(
            self, device_bytes=times * self.device_bytes, host_bytes=times * self.host_bytes
        )


OFF = System("off", "vLLM, no cache", STOCK, {"prefix_caching": False})
ON = System("on", "vLLM", STOCK, {"prefix_caching": True})
LRU = System("lru", "vLLM offload LRU", STOCK, {"prefix_caching": True, "offload": "lru"})
ARC = System("arc", "vLLM offload ARC", STOCK, {"prefix_caching": True, "offload": "arc"})
FULL = System("ragcache", "RAGCache", RAGCACHE)
DEFAULTS = System(
    "anywhere",
    "RAGCache anywhere, defaults",
    RAGCACHE,
    {"reuse": "anywhere"},
    is_approximate=True,
)
"""What a user gets, in no plan by itself (`--systems on ragcache anywhere`): missing donors are computed
in idle time, and rarely an answer once more exactly."""
ANYWHERE = tuple(
    System(
        f"anywhere-{ratio:g}",
        f"RAGCache anywhere, ratio {ratio:g}",
        RAGCACHE,
        {
            "reuse": "anywhere",
            "recompute_ratio": ratio,
            "donors": "neighbours",
            # An idle system must not compute beside the one that is asked.
            "missing_donors": "compute",
            "recheck_share": 0,
        },
        is_approximate=True,
    )
    for ratio in (0.0, 0.15)
)
"""Systems that reuse documents at any position; the ratio is that of the tokens computed anew."""
ABLATIONS = (
    System("policy-lru", "RAGCache, LRU", RAGCACHE, {"policy": "lru"}),
    System("policy-pgdsf", "RAGCache, PGDSF", RAGCACHE, {"policy": "pgdsf"}),
    System("fifo", "RAGCache, no reordering", RAGCACHE, {"reorder_window": 1}),
    System("no-speculation", "RAGCache, no speculation", RAGCACHE, {"speculation": "off"}),
    System("disk", "RAGCache, disk too", RAGCACHE, has_disk=True),
    System(
        "worker",
        "RAGCache, model in a worker",
        RAGCACHE,
        {"vllm_args": {"distributed_executor_backend": "mp"}},
    ),
    System(
        "canonical",
        "RAGCache, documents by id",
        RAGCACHE,
        {"document_order": "canonical"},
        changes_prompt=True,
    ),
    System(
        "cached",
        "RAGCache, cached documents first",
        RAGCACHE,
        {"document_order": "cached"},
        changes_prompt=True,
    ),
)
SYSTEMS = {one.key: one for one in (OFF, ON, LRU, ARC, FULL, DEFAULTS, *ANYWHERE, *ABLATIONS)}
