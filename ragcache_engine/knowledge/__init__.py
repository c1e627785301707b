"""The core that decides, in plain Python: the knowledge tree, and the policies that evict from it.

| file | holds |
|---|---|
| node.py | a node of the tree: a run of whole blocks behind the blocks before it, usually one document |
| tree.py | all nodes, their pins, and how often they were used |
| tier.py | the three tiers, fastest first |
| residency.py | which blocks of a node are in which tier; the tiers' budgets |
| freed.py | what the tree tells its owner to free |
| eviction/ | which blocks a full tier evicts: one policy a file |
| cost.py | how long a prefill takes on this machine |
| request_queue.py | which waiting request goes first |
| document_cache.py | the paper's own view of the tree: whole prompts, one tier |
| path_order.py | orders of documents, built on that |
"""

from ragcache_engine.knowledge.cost import CostProfile, UnusableProfile
from ragcache_engine.knowledge.document_cache import CachedPath, DocumentCache
from ragcache_engine.knowledge.eviction import (
    DEFAULT_POLICY,
    POLICIES,
    EvictionPolicy,
    policy_of_tiers,
)
from ragcache_engine.knowledge.freed import FreedBlocks
from ragcache_engine.knowledge.node import Node, Segment
from ragcache_engine.knowledge.path_order import DOCUMENT_ORDERS
from ragcache_engine.knowledge.request_queue import ReorderQueue
from ragcache_engine.knowledge.tier import Tier
from ragcache_engine.knowledge.tree import KnowledgeTree

__all__ = [
    "DEFAULT_POLICY",
    "DOCUMENT_ORDERS",
    "POLICIES",
    "CachedPath",
    "CostProfile",
    "DocumentCache",
    "EvictionPolicy",
    "FreedBlocks",
    "KnowledgeTree",
    "Node",
    "ReorderQueue",
    "Segment",
    "Tier",
    "UnusableProfile",
    "policy_of_tiers",
]
