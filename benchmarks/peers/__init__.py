"""Eviction policies of others, for trees of documents: what benchmarks/eviction.py compares ours with.

PEERS holds them by name, as ragcache_engine.knowledge.POLICIES holds those of the engine.
"""

from __future__ import annotations

from collections.abc import Callable

from peers.arc import ARC
from peers.s3fifo import S3FIFO
from peers.sieve import SIEVE
from peers.wtinylfu import WTinyLFU
from ragcache_engine.knowledge import EvictionPolicy

PEERS: dict[str, Callable[[], EvictionPolicy]] = {
    "arc": ARC,
    "s3fifo": S3FIFO,
    "sieve": SIEVE,
    "wtinylfu": WTinyLFU,
}
