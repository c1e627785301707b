"""Keeps documents in a tier: says what is kept, computes what is missing, waits until it is there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from math import inf
from typing import Any, Literal, cast, get_args

from ragcache_engine.anywhere.idle_work import IDLE_S, IdleWork
from ragcache_engine.checks import require_duration, require_items, shown
from ragcache_engine.errors import EngineDied, InvalidArgument, KeepLimitReached
from ragcache_engine.forwarding import ForwardingBackend
from ragcache_engine.knowledge import Tier
from ragcache_engine.protocols import Backend, BackendRequest, Delta
from ragcache_engine.requests.runner import PreparedRequest
from ragcache_engine.tiers.kept import LONGEST_KEPT_S, KeepOrder, Kept, NoRoomToKeep
from ragcache_engine.values import Document, ModelLimits
from ragcache_engine.warming.prefill import (
    OF_ONE_SET,
    Prefiller,
    run_workers,
    show_progress,
)

logger = logging.getLogger(__name__)

KeptTier = Literal["host", "disk"]

ASKED_AT_ONCE = 16
"""How many sets of documents are asked for at a time: between two steps of the model, each takes time."""

ROUNDS = 3
"""How often what is missing is computed: other requests may evict a block on its way to the tier."""

LEAST_WAIT_S, MOST_WAIT_S, STILL_S = 0.02, 1.0, 5.0
"""Seconds between two looks at what has reached the tier, the first ones and the last ones, and after
which nothing more is expected."""

WAITS_PER_LOOK = 20
"""A look that took long is waited for so many times as long: the more is kept, the longer one takes."""


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
    if for_s is not None and for_s > LONGEST_KEPT_S:
        raise InvalidArgument(
            f"for_s is {LONGEST_KEPT_S:,} at most; without it, nothing ends the keeping"
        )
    if for_s is not None and until is not None:
        raise InvalidArgument("for_s and until say the same: give one of them")
    if until is not None and not isinstance(until, datetime):
        raise InvalidArgument(f"until is a datetime, not {shown(until)}")
    until_s = None if for_s is None else time.time() + for_s
    if until is not None:
        until_s = _require_seconds(until)
    if tier == "disk" and not has_disk:
        raise InvalidArgument(
            "there is no disk tier to keep documents in: give the engine a disk_cache, or keep them in "
            'the tier "host"'
        )
    if tier == "host" and not limits.host_blocks:
        raise InvalidArgument(
            "there is no host tier to keep documents in: give the engine a host_cache"
        )
    return KeepOrder(Tier(tier), until_s, most)


def _require_seconds(until: datetime) -> float:
    """Return a time in seconds since 1970. Raises InvalidArgument."""
    try:
        seconds = until.timestamp()
    except (OverflowError, ValueError, OSError):  # the first and the last days of all
        seconds = inf if until.year > 1970 else -inf
    if seconds <= time.time():
        raise InvalidArgument(f"until is over already: {until}")
    if seconds > time.time() + LONGEST_KEPT_S:
        raise InvalidArgument(
            f"until is at most {LONGEST_KEPT_S // (365 * 86_400)} years from now; without it, nothing "
            "ends the keeping"
        )
    return seconds


_Key = tuple[str | None, tuple[str, ...]]
"""A tenant, and documents that are kept together."""


def as_sets(documents: Iterable[Any]) -> list[Sequence[Document | str]]:
    """Return what is to be kept as sets of documents, each unchecked. Raises InvalidArgument."""
    hint = 'such as ["handbook"], or [["a", "b"]] for two that stand one behind the other'
    return [
        [one] if isinstance(one, (Document, str)) else cast("Sequence[Document | str]", one)
        for one in require_items(documents, object, "documents", hint)
    ]


class Keeping:
    """One call that keeps documents. Its coroutine belongs to the engine's loop.

    requests: those that prefill the documents, no two the same set. prefiller: runs them. beat: is called
    whenever the backend has answered.
    """

    def __init__(
        self,
        backend: KeepingBackend,
        prefiller: Prefiller,
        requests: Sequence[PreparedRequest],
        order: KeepOrder,
        beat: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._prefiller = prefiller
        self._requests = requests
        self._order = order
        self._beat = beat
        self._failed: dict[tuple[str, ...], Exception] = {}

    async def run(self, *, progress: bool) -> list[Kept]:
        """Keep the documents, all or none; compute what is missing; return what is kept.

        progress: show a bar on standard error.
        Raises KeepLimitReached before any prefill; when all others are kept, the error of the first set
        that could not be computed, which is kept no longer.
        """
        requests = [one.request for one in self._requests]
        kept = await self._backend.keep_all(requests, self._order, self._beat)
        for number in range(ROUNDS):
            missing = [
                request
                for request, one in zip(self._requests, kept, strict=True)
                if one.held_tokens < one.tokens and one.documents not in self._failed
            ]
            if not missing:
                break
            with show_progress(len(missing), progress and not number) as advance:
                await self._prefill(missing, advance)
            kept = await self._wait_for_copies(kept)
        if self._failed:
            await self._backend.release([*self._failed], kept[0].tenant)
            raise next(iter(self._failed.values()))
        if short := [one for one in kept if one.held_tokens < one.tokens]:
            logger.warning(
                "%d of %d sets of documents are not whole in the %s tier: %s; what is missing comes with "
                "the next prompt that has it",
                len(short),
                len(kept),
                self._order.tier.value,
                ", ".join(map(repr, short[0].documents))[:200],
            )
        return kept

    async def _prefill(
        self, missing: Iterable[PreparedRequest], advance: Callable[[], None]
    ) -> None:
        waiting = iter(missing)

        async def work() -> None:
            for request in waiting:
                try:
                    await self._prefiller.arun(request)
                except OF_ONE_SET as error:
                    self._failed[self._order.set_of(request.request.document_ids)] = error
                advance()

        await run_workers(work)

    async def _wait_for_copies(self, asked: Sequence[Kept]) -> list[Kept]:
        """Wait until all is in the tier, or nothing more comes; return what is kept.

        What was released or forgotten meanwhile is not asked for again.
        """
        changed_s, held, wait_s = time.monotonic(), -1, LEAST_WAIT_S
        while True:
            asked_s = time.monotonic()
            known = {(one.tenant, one.documents): one for one in await self._backend.kept()}
            took_s = time.monotonic() - asked_s
            self._beat()
            kept = [
                known.get((one.tenant, one.documents), one._replace(tokens=0, held_tokens=0))
                for one in asked
            ]
            if all(one.held_tokens == one.tokens for one in kept):
                return kept
            if (now_held := sum(one.held_tokens for one in kept)) != held:
                changed_s, held = time.monotonic(), now_held
            elif time.monotonic() - changed_s > STILL_S:
                return kept
            # The scheduler lists all that is kept, and others wait for it meanwhile.
            await asyncio.sleep(max(wait_s, min(WAITS_PER_LOOK * took_s, STILL_S)))
            wait_s = min(2 * wait_s, MOST_WAIT_S)


def _explain(error: NoRoomToKeep, order: KeepOrder) -> KeepLimitReached:
    return KeepLimitReached(
        f"the documents take {error.needed_tokens:,} tokens more, and {error.free_tokens:,} more may be "
        f"kept in the {order.tier.value} tier ({order.most:.0%} of it, less what others and earlier "
        f"processes keep): release some, keep fewer, or raise kept_share or "
        f"{order.tier.value}_cache (or {order.tier.value}_cache_per_tenant, if it is set)"
    )


class KeepingBackend(ForwardingBackend):
    """Does what `inner` does, and keeps again what was kept when the model has to start again.

    What is missing then is computed while no request runs. A block that gets lost otherwise, as on a
    damaged disk, needs nobody: the next request with its document computes it, and the tier takes it.
    All methods belong to the engine's loop. idle_s: seconds without a request before it begins.
    """

    def __init__(self, inner: Backend, *, idle_s: float = IDLE_S) -> None:
        super().__init__(inner)
        self._wanted: dict[_Key, tuple[BackendRequest, KeepOrder]] = {}
        self._next_end_s = inf
        self._missing: list[_Key] = []
        self._numbers = count()
        self.idle = IdleWork(self._prefill_next, lambda: bool(self._missing), idle_s=idle_s)

    async def start(self) -> ModelLimits:
        limits = await super().start()
        self._missing = await self._keep_again()
        self.idle.open()
        self.idle.begin()
        return limits

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        with self.idle.request():
            async with aclosing(self.inner.generate(request)) as deltas:
                async for delta in deltas:
                    yield delta

    async def keep(self, requests: Sequence[BackendRequest], order: KeepOrder) -> Sequence[Kept]:
        self._drop_those_due()
        kept = await self.inner.keep(requests, order)
        for request, one in zip(requests, kept, strict=True):
            if one.tokens:
                self._wanted[one.tenant, one.documents] = request.compact(), order
                if order.until_s is not None:
                    self._next_end_s = min(self._next_end_s, order.until_s)
            else:  # what an earlier call kept of it may be another text
                self._wanted.pop((one.tenant, one.documents), None)
        return kept

    async def keep_all(
        self, requests: Sequence[BackendRequest], order: KeepOrder, beat: Callable[[], None]
    ) -> list[Kept]:
        """Keep any number of sets, all or none. beat: is called whenever the backend has answered.

        Raises KeepLimitReached, and then all is kept as before.
        """
        before, kept = dict(self._wanted), list[Kept]()
        try:
            for start in range(0, len(requests), ASKED_AT_ONCE):
                kept += await self.keep(requests[start : start + ASKED_AT_ONCE], order)
                beat()
        except NoRoomToKeep as error:
            for one in kept:
                await self._put_back((one.tenant, one.documents), before)
            raise _explain(error, order) from None
        return kept

    async def release(self, documents: Sequence[tuple[str, ...]], tenant: str | None) -> None:
        names = self._find_kept(documents, tenant)
        for one in names:
            self._wanted.pop((tenant, one), None)
        await self.inner.release(names, tenant)

    async def forget(self, document_ids: Sequence[str]) -> None:
        async with self.idle.paused():
            doomed = set(document_ids)
            for key, (request, _) in list(self._wanted.items()):
                if not doomed.isdisjoint(request.forget_ids):
                    del self._wanted[key]
            await super().forget(document_ids)

    async def clear_cache(self) -> bool:
        async with self.idle.paused():
            return await super().clear_cache()

    async def close(self) -> None:
        await self.idle.close()
        await super().close()

    def _find_kept(
        self, documents: Sequence[tuple[str, ...]], tenant: str | None
    ) -> list[tuple[str, ...]]:
        """Return by which names sets are kept: in the order in which a template has written them.

        A set that is not known under its own name has those of all others with the same documents.
        """
        if all((tenant, one) in self._wanted for one in documents):
            return list(documents)  # as chats release their last point, with each turn
        by_content: dict[frozenset[str], list[tuple[str, ...]]] = {}
        for whose, kept in self._wanted:
            if whose == tenant:
                by_content.setdefault(frozenset(kept), []).append(kept)
        found: list[tuple[str, ...]] = []
        for one in documents:
            is_known = (tenant, one) in self._wanted
            found += [one] if is_known else by_content.get(frozenset(one), [one])
        return found

    async def _put_back(
        self, key: _Key, before: Mapping[_Key, tuple[BackendRequest, KeepOrder]]
    ) -> None:
        """Keep a set as it was kept before, if it was."""
        tenant, documents = key
        if key not in before:
            await self.release([documents], tenant)
            return
        request, order = before[key]
        try:
            await self.keep([request], order)
        except NoRoomToKeep as error:  # others took the room meanwhile
            self._note_dropped(key, error)

    async def _keep_again(self) -> list[_Key]:
        """Keep what a model kept that has died; return of what something is missing."""
        self._drop_those_due()
        missing = []
        for key, (request, order) in list(self._wanted.items()):
            try:
                (kept,) = await self.inner.keep([request], order)
            except EngineDied:
                break  # the next start keeps all
            except Exception as error:
                self._note_dropped(key, error)
                continue
            if kept.held_tokens < kept.tokens:
                missing.append(key)
        return missing

    def _note_dropped(self, key: _Key, error: Exception) -> None:
        logger.warning("%s are kept no longer: %s", ", ".join(key[1])[:200], error)
        self._wanted.pop(key, None)

    def _drop_those_due(self) -> None:
        """Forget what was to be kept until now. Costs nothing where nothing is due."""
        now = time.time()
        if now < self._next_end_s:
            return
        for key, (_, order) in list(self._wanted.items()):
            if order.until_s is not None and order.until_s <= now:
                del self._wanted[key]
        ends = (order.until_s for _, order in self._wanted.values())
        self._next_end_s = min((end for end in ends if end is not None), default=inf)

    async def _prefill_next(self) -> None:
        """Compute what is missing of the next set."""
        key = self._missing[0]
        if key in self._wanted:
            request, _ = self._wanted[key]
            name = f"{request.request_id}-keep-{next(self._numbers)}"
            prefill = replace(request.for_donors(), request_id=name)
            try:
                async with aclosing(self.inner.generate(prefill)) as deltas:
                    async for _ in deltas:
                        pass
            except Exception as error:  # it must disturb nobody
                logger.info("a kept document could not be computed again: %s", error)
        if self._missing and self._missing[0] == key:
            del self._missing[0]
