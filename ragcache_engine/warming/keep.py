"""Keeps documents in a tier: says what is kept, computes what is missing, waits until it is there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Literal, cast, get_args

from ragcache_engine.anywhere.idle_work import IDLE_S, IdleWork
from ragcache_engine.checks import require_duration, require_items, shown
from ragcache_engine.errors import EngineDied, InvalidArgument, KeepLimitReached
from ragcache_engine.forwarding import ForwardingBackend
from ragcache_engine.knowledge import Tier
from ragcache_engine.protocols import Backend, BackendRequest, Delta
from ragcache_engine.requests.runner import PreparedRequest
from ragcache_engine.tiers.kept import KeepOrder, Kept, NoRoomToKeep
from ragcache_engine.values import Document, ModelLimits
from ragcache_engine.warming.prefill import WARM_AT_ONCE, Prefiller, show_progress

logger = logging.getLogger(__name__)

KeptTier = Literal["host", "disk"]

ASKED_AT_ONCE = 16
"""How many sets of documents are asked for at a time: between two steps of the model, each takes time."""

ROUNDS = 3
"""How often what is missing is computed: other requests may evict a block on its way to the tier."""

LEAST_WAIT_S, MOST_WAIT_S, STILL_S = 0.02, 1.0, 5.0
"""Seconds between two looks at what has reached the tier, the first ones and the last ones, and after
which nothing more is expected."""


@dataclass(frozen=True, slots=True)
class KeptDocuments:
    """Documents that are kept from eviction.

    documents: their ids, most often one. tenant: whose they are; None: nobody's.
    tier: where they are kept. until: when that ends; None: never.
    tokens: how many tokens are kept, in whole blocks, the text before the documents among them.
    held_tokens: how many of them are in the tier now.
    """

    documents: tuple[str, ...]
    tenant: str | None
    tier: KeptTier
    until: datetime | None
    tokens: int
    held_tokens: int

    @classmethod
    def of(cls, kept: Kept) -> KeptDocuments:
        """Return what a backend says, as callers read it."""
        until = None
        if kept.until_s is not None:
            until = datetime.fromtimestamp(kept.until_s, UTC)
        tier: KeptTier = "disk" if kept.tier == Tier.DISK.value else "host"
        return cls(kept.documents, kept.tenant, tier, until, kept.tokens, kept.held_tokens)


def make_order(
    tier: KeptTier,
    for_s: float | None,
    until: datetime | None,
    *,
    limits: ModelLimits,
    has_disk: bool,
    most: float,
) -> KeepOrder:
    """Check what a caller asks for. limits, has_disk: of the engine. most: as in KeepOrder.

    Raises InvalidArgument.
    """
    if tier not in get_args(KeptTier):
        raise InvalidArgument(f'tier is "host" or "disk", not {shown(tier)}')
    require_duration(for_s, "for_s")
    if for_s is not None and until is not None:
        raise InvalidArgument("for_s and until say the same: give one of them")
    if until is not None and not isinstance(until, datetime):
        raise InvalidArgument(f"until is a datetime, not {shown(until)}")
    if for_s is not None:
        until = datetime.now(UTC) + timedelta(seconds=for_s)
    if until is not None and until.timestamp() <= time.time():
        raise InvalidArgument(f"until is over already: {until}")
    if tier == "disk" and not has_disk:
        raise InvalidArgument(
            "there is no disk tier to keep documents in: give the engine a disk_cache, or keep them in "
            'the tier "host"'
        )
    if tier == "host" and not limits.host_blocks:
        raise InvalidArgument(
            "there is no host tier to keep documents in: give the engine a host_cache"
        )
    return KeepOrder(Tier(tier), None if until is None else until.timestamp(), most)


def as_sets(documents: Iterable[Any]) -> list[Sequence[Document | str]]:
    """Return what is to be kept as sets of documents, each unchecked. Raises InvalidArgument."""
    hint = 'such as ["handbook"], or [["a", "b"]] for two that stand one behind the other'
    return [
        [one] if isinstance(one, (Document, str)) else cast("Sequence[Document | str]", one)
        for one in require_items(documents, object, "documents", hint)
    ]


class Keeping:
    """One call that keeps documents. Its coroutine belongs to the engine's loop.

    requests: those that prefill the documents, no two the same set. prefiller: runs them.
    """

    def __init__(
        self,
        backend: Backend,
        prefiller: Prefiller,
        requests: Sequence[PreparedRequest],
        order: KeepOrder,
    ) -> None:
        self._backend = backend
        self._prefiller = prefiller
        self._requests = requests
        self._order = order

    async def run(self, *, progress: bool) -> list[Kept]:
        """Keep the documents, all or none; compute what is missing; return what is kept.

        progress: show a bar on standard error.
        Raises KeepLimitReached before any work; what a prefill raises.
        """
        before = {(one.tenant, one.documents): one for one in await self._backend.kept()}
        kept: list[Kept] = []
        try:
            await self._ask(kept)
        except NoRoomToKeep as error:
            await self._undo(kept, before)
            raise _explain(error, self._order) from None
        for number in range(ROUNDS):
            missing = [
                request
                for request, one in zip(self._requests, kept, strict=True)
                if one.held_tokens < one.tokens
            ]
            if not missing:
                return kept
            with show_progress(len(missing), progress and not number) as advance:
                await self._prefill(missing, advance)
            kept = await self._wait_for_copies(kept)
        short = [one for one in kept if one.held_tokens < one.tokens]
        if short:
            logger.warning(
                "%d of %d sets of documents are not whole in the %s tier: %s; what is missing is "
                "computed again when the engine is idle",
                len(short),
                len(kept),
                self._order.tier.value,
                ", ".join(map(repr, short[0].documents))[:200],
            )
        return kept

    async def _ask(self, kept: list[Kept]) -> list[Kept]:
        """Ask to keep all; return what is kept. kept: filled with it already while asking."""
        for start in range(0, len(self._requests), ASKED_AT_ONCE):
            some = self._requests[start : start + ASKED_AT_ONCE]
            kept += await self._backend.keep([one.request for one in some], self._order)
        return kept

    async def _undo(
        self, kept: Sequence[Kept], before: Mapping[tuple[str | None, tuple[str, ...]], Kept]
    ) -> None:
        """Let what was just kept be as it was before."""
        for request, one in zip(self._requests, kept, strict=False):
            earlier = before.get((one.tenant, one.documents))
            if earlier is None:
                await self._backend.release([one.documents], one.tenant)
            else:
                order = replace(self._order, tier=Tier(earlier.tier), until_s=earlier.until_s)
                await self._backend.keep([request.request], order)

    async def _prefill(
        self, missing: Iterable[PreparedRequest], advance: Callable[[], None]
    ) -> None:
        waiting = iter(missing)

        async def work() -> None:
            for request in waiting:
                await self._prefiller.arun(request)
                advance()

        workers = [asyncio.create_task(work()) for _ in range(WARM_AT_ONCE)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _wait_for_copies(self, asked: Sequence[Kept]) -> list[Kept]:
        """Wait until all is in the tier, or nothing more comes; return what is kept."""
        changed_s, held, wait_s = time.monotonic(), -1, LEAST_WAIT_S
        while time.monotonic() - changed_s <= STILL_S:
            kept = {(one.tenant, one.documents): one for one in await self._backend.kept()}
            mine = [kept.get((one.tenant, one.documents)) for one in asked]
            if all(one is None or one.held_tokens == one.tokens for one in mine):
                break
            if (now_held := sum(one.held_tokens for one in mine if one)) != held:
                changed_s, held = time.monotonic(), now_held
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MOST_WAIT_S)
        return await self._ask([])


def _explain(error: NoRoomToKeep, order: KeepOrder) -> KeepLimitReached:
    return KeepLimitReached(
        f"the documents take {error.needed_tokens:,} tokens more, and {error.free_tokens:,} more may be "
        f"kept in the {order.tier.value} tier ({order.most:.0%} of it): release others, keep fewer, or "
        f"raise kept_share or {order.tier.value}_cache"
    )


class KeepingBackend(ForwardingBackend):
    """Does what `inner` does, and keeps again what was kept when the model has to start again.

    What is missing then is computed while no request runs. A block that gets lost otherwise, as on a
    damaged disk, needs nobody: the next request with its document computes it, and the tier takes it.
    All methods belong to the engine's loop. idle_s: seconds without a request before it begins.
    """

    def __init__(self, inner: Backend, *, idle_s: float = IDLE_S) -> None:
        super().__init__(inner)
        self._wanted: dict[
            tuple[str | None, tuple[str, ...]], tuple[BackendRequest, KeepOrder]
        ] = {}
        self._lost: list[tuple[str | None, tuple[str, ...]]] = []
        self._numbers = count()
        self.idle = IdleWork(self._keep_next, lambda: bool(self._lost), idle_s=idle_s)

    async def start(self) -> ModelLimits:
        limits = await super().start()
        self._lost = list(self._wanted)
        self.idle.open()
        self.idle.begin()
        return limits

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        with self.idle.request():
            async with aclosing(self.inner.generate(request)) as deltas:
                async for delta in deltas:
                    yield delta

    async def keep(self, requests: Sequence[BackendRequest], order: KeepOrder) -> Sequence[Kept]:
        kept = await self.inner.keep(requests, order)
        for request, one in zip(requests, kept, strict=True):
            self._wanted[one.tenant, one.documents] = request.compact(), order
        return kept

    async def release(self, documents: Sequence[tuple[str, ...]], tenant: str | None) -> None:
        for one in documents:
            self._wanted.pop((tenant, one), None)
        await self.inner.release(documents, tenant)

    async def forget(self, document_ids: Sequence[str]) -> None:
        async with self.idle.paused():
            doomed = set(document_ids)
            for key, (request, _) in list(self._wanted.items()):
                if not doomed.isdisjoint(request.named_documents):
                    del self._wanted[key]
            await super().forget(document_ids)

    async def clear_cache(self) -> bool:
        async with self.idle.paused():
            return await super().clear_cache()

    async def close(self) -> None:
        await self.idle.close()
        await super().close()

    async def _keep_next(self) -> None:
        """Keep the next of what was lost, and compute what is missing of it."""
        key = self._lost[0]
        request, order = self._wanted.get(key, (None, None))
        try:
            if request and order and (order.until_s is None or order.until_s > time.time()):
                (kept,) = await self.inner.keep([request], order)
                if kept.held_tokens < kept.tokens:
                    await self._prefill(request)
            else:
                self._wanted.pop(key, None)
        except EngineDied:
            self._lost.clear()  # the next start keeps them all
        except Exception as error:  # it must disturb nobody
            logger.warning("%s are kept no longer: %s", ", ".join(key[1])[:200], error)
            self._wanted.pop(key, None)
        if self._lost and self._lost[0] == key:
            del self._lost[0]

    async def _prefill(self, request: BackendRequest) -> None:
        name = f"{request.request_id}-keep-{next(self._numbers)}"
        prefill = replace(request.for_donors(), request_id=name)
        async with aclosing(self.inner.generate(prefill)) as deltas:
            async for _ in deltas:
                pass
