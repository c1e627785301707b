"""Rendezvous hashing: which replica is a key's home. All routers agree without a word, and when a replica
comes or goes, only the keys move that come to it or were on it.

Source: Thaler and Ravishankar, A Name-Based Mapping Scheme for Rendezvous, 1996.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from heapq import nlargest

from ragcache_engine.fleet.path import Key


def weigh(key: Key, replica: str) -> bytes:
    """Return how much a replica wants a key. Weights of equal length compare as numbers do."""
    return blake2b(key, key=replica.encode()[-64:], digest_size=8).digest()


def rank(key: Key, replicas: Iterable[str], most: int) -> list[str]:
    """Return the replicas that want a key most, the first one first."""
    return nlargest(most, replicas, key=lambda replica: (weigh(key, replica), replica))
