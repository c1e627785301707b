"""The core of decisions, in plain Python: the knowledge tree and the policies that empty it."""

from ragcache_engine.knowledge.cost import CostProfile, UnusableProfile
from ragcache_engine.knowledge.eviction import (
    DEFAULT_POLICY,
    POLICIES,
    EvictionPolicy,
    policy_of_tiers,
)
from ragcache_engine.knowledge.node import Node, Segment
from ragcache_engine.knowledge.path_order import DOCUMENT_ORDERS
from ragcache_engine.knowledge.request_queue import ReorderQueue
from ragcache_engine.knowledge.tier import Tier
from ragcache_engine.knowledge.tree import KnowledgeTree, Match, Move, MoveKind

__all__ = [
    "DEFAULT_POLICY",
    "DOCUMENT_ORDERS",
    "POLICIES",
    "CostProfile",
    "EvictionPolicy",
    "KnowledgeTree",
    "Match",
    "Move",
    "MoveKind",
    "Node",
    "ReorderQueue",
    "Segment",
    "Tier",
    "UnusableProfile",
    "policy_of_tiers",
]
