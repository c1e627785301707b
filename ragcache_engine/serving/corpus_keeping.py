"""Keeps registered documents from eviction, and says which are kept."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ragcache_engine.corpora.registered import split_name
from ragcache_engine.knowledge import Tier
from ragcache_engine.serving.messages import KeepBody
from ragcache_engine.serving.routes import Served
from ragcache_engine.tiers.kept import KeepOrder, Kept

SHARE_OF_TENANT = 0.5
"""Which part of what may be kept one tenant may keep; the operator may keep all."""


def make_keep_order(said: KeepBody, tenant: str | None, served: Served) -> KeepOrder:
    """Return how to keep documents as a client asks for it."""
    until_s = None if said.for_s is None else time.time() + said.for_s
    share = 1.0 if tenant is None else SHARE_OF_TENANT
    return KeepOrder(Tier(said.tier), until_s, served.kept_share, share)


async def list_kept(owner: str | None, corpus: str, served: Served) -> list[dict[str, Any]]:
    """Return what is kept of a corpus. A set has several ids where documents are stored to be borrowed.

    Raises CannotKeep or EngineDied.
    """
    return [
        {
            "ids": [split_name(name)[2] for name in one.documents],
            "tier": one.tier,
            "until": one.until_s,
            "tokens": one.tokens,
            "held_tokens": one.held_tokens,
        }
        for one in await _kept_of(owner, corpus, served)
    ]


async def release_documents(
    owner: str | None, corpus: str, document_ids: Sequence[str] | None, served: Served
) -> int:
    """Keep documents of a corpus no longer; return how many sets that were. None: all documents.

    Raises CannotKeep or EngineDied.
    """
    wanted = None if document_ids is None else {*document_ids}
    doomed: defaultdict[str | None, list[tuple[str, ...]]] = defaultdict(list)
    for one in await _kept_of(owner, corpus, served):
        ids = {split_name(name)[2] for name in one.documents}
        if wanted is None or not wanted.isdisjoint(ids):
            doomed[one.tenant].append(one.documents)
    for tenant, documents in doomed.items():
        await served.backend.release(documents, tenant)
    return sum(map(len, doomed.values()))


async def _kept_of(owner: str | None, corpus: str, served: Served) -> list[Kept]:
    return [
        one
        for one in await served.backend.kept()
        if one.documents and split_name(one.documents[-1])[:2] == (owner, corpus)
    ]
