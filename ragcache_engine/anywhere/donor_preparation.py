"""Prepares documents in idle time, with missing_donors="later".

A prompt whose documents were computed where they stand, because their donors were missing, is computed
once more while no request runs, this time for the sake of its donors. Later prompts borrow them. It
ends as soon as a request comes, which waits for one short step at most, and goes on afterwards with
what is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from typing import Any

from ragcache_engine.anywhere.forwarding import ForwardingBackend
from ragcache_engine.anywhere.idle_work import IDLE_S, IdleWork
from ragcache_engine.latest_items import LatestItems
from ragcache_engine.protocols import Backend, BackendRequest, Delta
from ragcache_engine.tiers.borrowing.plan import WhyExact
from ragcache_engine.values import ModelLimits, SamplingOptions

logger = logging.getLogger(__name__)

MOST_WAITING, MOST_WAITING_BYTES = 256, 32 << 20
"""How many prompts wait to be prepared, and how much memory they take; an engine that is never idle drops
the oldest."""

ONE_TOKEN = SamplingOptions(max_tokens=1)


class PreparingBackend(ForwardingBackend):
    """Does what `inner` does, and prepares those documents of prompts that have no donors.

    All methods belong to the engine's loop, except those that any thread may call on every backend.
    is_wanted: returns whether anybody will borrow what is prepared. idle_s: seconds without a request
    before it begins.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        idle_s: float = IDLE_S,
    ) -> None:
        super().__init__(inner)
        self._is_wanted = is_wanted
        self._waiting: LatestItems[tuple[str | None, tuple[str, ...]], BackendRequest] = (
            LatestItems(
                MOST_WAITING_BYTES, lambda _, request: request.size_bytes, most=MOST_WAITING
            )
        )
        self._numbers = count()
        self._is_preparing = False
        self._prepared = 0
        self.idle = IdleWork(self._prepare_next, self._has_more, idle_s=idle_s)

    def report(self) -> dict[str, Any]:
        """Return the fields of CacheStats that tell what was and is to be prepared. Any thread."""
        waiting = len(self._waiting) + self._is_preparing
        return {"unprepared": waiting, "prepared": self._prepared}

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        pauses = self.idle.pauses
        with self.idle.request():
            async with aclosing(self.inner.generate(request)) as deltas:
                async for delta in deltas:
                    is_unprepared = delta.finish_reason and _lacks_donors(delta)
                    if is_unprepared and pauses == self.idle.pauses:
                        self._keep(request)
                    yield delta

    def _keep(self, request: BackendRequest) -> None:
        """Let a prompt wait; the latest are prepared first, as they are likeliest to come again."""
        name = request.tenant, tuple(request.document_ids)
        self._waiting.pop(name, None)
        self._waiting[name] = request.compact()

    def _has_more(self) -> bool:
        return bool(self._waiting) and self._is_wanted()

    async def _prepare_next(self) -> None:
        name, request = self._waiting.pop_latest()
        self._is_preparing = True
        try:
            await self._prepare(request)
            self._prepared += 1
        except asyncio.CancelledError:
            self._waiting.setdefault(name, request)
            raise
        except Exception as error:  # it must disturb nobody
            logger.info("documents could not be prepared: %s", error)
        finally:
            self._is_preparing = False

    async def _prepare(self, request: BackendRequest) -> None:
        """Compute the prompt for its donors. To the tiers it is a guess that nobody adopts."""
        prepared = replace(
            request,
            request_id=f"{request.request_id}-prepare-{next(self._numbers)}",
            options=replace(ONE_TOKEN, add_special_tokens=request.options.add_special_tokens),
            is_guess=True,
            is_provisional=True,
            recompute_ratio=0.0,  # the answer is of no use
            makes_donors=True,
        )
        async with aclosing(self.inner.generate(prepared)) as deltas:
            async for _ in deltas:
                pass

    async def start(self) -> ModelLimits:
        limits = await super().start()
        self.idle.open()
        return limits

    async def clear_cache(self) -> bool:
        async with self.idle.paused():
            self._waiting.clear()
            return await super().clear_cache()

    async def forget(self, document_ids: Sequence[str]) -> None:
        """Forget documents; prompts with them are prepared no more, which would bring them back.

        Nor are prompts that are being answered, whatever they are about.
        """
        async with self.idle.paused():
            doomed = set(document_ids)
            for name, request in list(self._waiting.items()):
                behind = [context.document for context in request.contexts.values()]
                if not doomed.isdisjoint([*request.document_ids, *behind]):
                    del self._waiting[name]
            await super().forget(document_ids)

    async def close(self) -> None:
        await self.idle.close()
        await super().close()


def _lacks_donors(delta: Delta) -> bool:
    """Return whether documents of this answer's prompt were computed where they stand.

    Unlike the first document, which is always exact.
    """
    later = delta.reuse.documents[1:] if delta.reuse else ()
    is_partly = any(one.borrowed for one in later) and not all(one.borrowed for one in later)
    return is_partly or delta.why_exact == WhyExact.NOT_PREPARED
