"""Keeps registered documents from eviction, and says which are kept."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence, Set
from functools import partial
from typing import Any

from ragcache_engine.anywhere.beginnings import sets_of_each
from ragcache_engine.corpora.registered import name_of, split_name
from ragcache_engine.errors import CannotKeep
from ragcache_engine.knowledge.tier import Tier
from ragcache_engine.serving.messages import KeepBody
from ragcache_engine.serving.routes import Served
from ragcache_engine.tiers.kept import KeepOrder, Kept

RELEASED_AT_ONCE = 500
"""How many sets are released at a time: between two steps of the model, each takes a little."""

SHARE_OF_TENANT = 0.5
"""Which part of what may be kept one tenant may keep; the operator may keep all."""


def make_keep_order(said: KeepBody, owner: str | None, served: Served) -> KeepOrder:
    """Return how to keep documents as a client asks for it. owner: the tenant of its key.

    Raises CannotKeep if the server has no such tier.
    """
    if said.tier not in served.kept_tiers:
        raise CannotKeep(
            f"this server has no {said.tier} tier to keep documents in: start it with "
            f"--{said.tier}-cache, or keep them in another tier"
        )
    until_s = None if said.for_s is None else time.time() + said.for_s
    return KeepOrder(Tier(said.tier), until_s, served.kept_share, SHARE_OF_TENANT, owner)


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

    What was kept on the disk before the server started ends too, and does not count.
    Raises CannotKeep or EngineDied.
    """
    wanted = None if document_ids is None else {*document_ids}
    doomed: defaultdict[str | None, list[tuple[str, ...]]] = defaultdict(list)
    for one in await _kept_of(owner, corpus, served):
        ids = {split_name(name)[2] for name in one.documents}
        if wanted is None or not wanted.isdisjoint(ids):
            doomed[one.tenant].append(one.documents)
    known = sum(map(len, doomed.values()))
    doomed[owner] += await served.tokenizers.run(
        partial(_usual_sets, owner, corpus, wanted, served)
    )
    for tenant, documents in doomed.items():
        for start in range(0, len(documents), RELEASED_AT_ONCE):
            await served.backend.release(documents[start : start + RELEASED_AT_ONCE], tenant)
    return known


def _usual_sets(
    owner: str | None, corpus: str, wanted: Set[str] | None, served: Served
) -> list[tuple[str, ...]]:
    """Return the sets in which documents of a corpus are kept, whoever did it."""
    ids = [one.id for one in served.corpora.documents(owner, corpus)]
    sets = [*([one] for one in ids), *sets_of_each(ids, borrows=bool(served.reuse))]
    return [
        tuple(name_of(owner, corpus, one) for one in some)
        for some in sets
        if wanted is None or not wanted.isdisjoint(some)
    ]


async def _kept_of(owner: str | None, corpus: str, served: Served) -> list[Kept]:
    return [
        one
        for one in await served.backend.kept()
        if one.documents and split_name(one.documents[-1])[:2] == (owner, corpus)
    ]
