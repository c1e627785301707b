"""Answers a few approximate requests once more, exactly and in idle time, and compares both answers.

If the last comparisons were too unlike, the engine borrows no more: its later answers are exact. A
recheck runs only while no request does, and ends as soon as one comes. It computes in steps as short as
those of a guess, and one such step is the most that a new request waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from random import random
from sys import getsizeof
from typing import NamedTuple

from ragcache_engine.anywhere.drift import Drift
from ragcache_engine.anywhere.idle_work import IDLE_S, IdleWork
from ragcache_engine.anywhere.rouge import rouge_l
from ragcache_engine.errors import EngineDied
from ragcache_engine.forwarding import ForwardingBackend
from ragcache_engine.latest_items import LatestItems
from ragcache_engine.protocols import Backend, BackendRequest, Delta
from ragcache_engine.tiers.borrowing.plan import WhyExact
from ragcache_engine.values import ModelLimits

logger = logging.getLogger(__name__)

MOST_WAITING, MOST_WAITING_BYTES = 64, 16 << 20
"""How many answers wait for their recheck, and how much memory they take; an engine that is never idle
drops the oldest."""


class Answered(NamedTuple):
    """An approximate answer that somebody got."""

    request: BackendRequest
    text: str

    @property
    def size_bytes(self) -> int:
        return self.request.size_bytes + getsizeof(self.text)


def _keep_latest() -> LatestItems[str, Answered]:
    return LatestItems(MOST_WAITING_BYTES, lambda _, one: one.size_bytes, most=MOST_WAITING)


class RecheckingBackend(ForwardingBackend):
    """Does what `inner` does, and rechecks a share of its approximate greedy answers.

    All methods belong to the engine's loop, except those that any thread may call on every backend.
    drift: judges the comparisons. share: of the answers to recheck, 0 to 1. idle_s: seconds without a
    request before a recheck begins. chance: draws a number from 0 to 1 for each answer.
    """

    def __init__(
        self,
        inner: Backend,
        drift: Drift,
        share: float,
        *,
        idle_s: float = IDLE_S,
        chance: Callable[[], float] = random,
    ) -> None:
        super().__init__(inner)
        self._drift = drift
        self._share = share
        self._chance = chance
        self._numbers = count()  # an attempt that was cancelled may still be on its way out
        self.idle = IdleWork(self._recheck_next, self._has_more, idle_s=idle_s)
        self._waiting = _keep_latest()
        self._guesses = _keep_latest()  # ended, and perhaps adopted yet
        self._adopted: set[str] = set()  # guesses that were adopted while they ran

    # -- requests ----------------------------------------------------------------------------------

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        is_refused = self._drift.is_off and not request.is_exact
        sent = replace(request, is_exact=True, contexts={}) if is_refused else request
        texts: list[str] = []
        pauses = self.idle.pauses
        with self.idle.request():
            try:
                async with aclosing(self.inner.generate(sent)) as deltas:
                    async for delta in deltas:
                        texts.append(delta.text)
                        if delta.finish_reason and is_refused:
                            delta = replace(delta, why_exact=WhyExact.DRIFTED)
                        elif (
                            delta.finish_reason
                            and pauses == self.idle.pauses
                            and self._is_chosen(request, delta)
                        ):
                            self._keep(Answered(request.compact(), "".join(texts)))
                        yield delta
            finally:
                self._adopted.discard(request.request_id)

    def adopted(self, request_id: str) -> None:
        super().adopted(request_id)
        served = self._guesses.pop(request_id, None)
        if served:
            self._waiting[request_id] = served
            self.idle.begin()
        else:  # it still runs, or was not chosen
            self._adopted.add(request_id)
            if len(self._adopted) > MOST_WAITING:
                self._adopted.pop()

    def _is_chosen(self, request: BackendRequest, delta: Delta) -> bool:
        """Return whether to recheck this answer. Only greedy ones at the engine's own ratio can tell."""
        return (
            delta.reuse is not None
            and request.options.temperature == 0
            and request.recompute_ratio is None
            and not self._drift.is_off
            and self._chance() < self._share
        )

    def _keep(self, served: Answered) -> None:
        name = served.request.request_id
        if not served.request.is_guess or name in self._adopted:
            self._waiting[name] = served
            return
        self._guesses[name] = served

    # -- rechecks ----------------------------------------------------------------------------------

    def _has_more(self) -> bool:
        return bool(self._waiting) and not self._drift.is_off

    async def _recheck_next(self) -> None:
        name, served = self._waiting.pop_latest()
        try:
            exact = await self._answer_exactly(served.request)
        except (asyncio.CancelledError, EngineDied):
            self._waiting[name] = served
            raise
        except Exception as error:  # a failed recheck must disturb nobody
            logger.info("an answer could not be rechecked: %s", error)
            return
        self._compare(served.text, exact)

    async def _answer_exactly(self, request: BackendRequest) -> str:
        """Return the exact answer. To the tiers it is a guess that nobody adopts: no use of documents."""
        exact = replace(
            request,
            request_id=f"{request.request_id}-recheck-{next(self._numbers)}",
            is_exact=True,
            contexts={},
            is_guess=True,
            is_provisional=True,
        )
        async with aclosing(self.inner.generate(exact)) as deltas:
            return "".join([delta.text async for delta in deltas])

    def _compare(self, served: str, exact: str) -> None:
        if not self._drift.note(rouge_l(served, exact)):
            return
        self._waiting.clear()
        logger.warning(
            "Borrowing is switched off, and answers are exact from now on: rechecked answers are less "
            "like the exact ones than was measured. The last ones have a mean ROUGE-L of %.2f, and %.2f "
            "is the least. Measure a new "
            "ratio with `ragcache calibrate`, or choose a higher one by hand; then restart the engine",
            self._drift.mean,
            self._drift.least,
        )

    # -- what must not meet a recheck --------------------------------------------------------------

    async def start(self) -> ModelLimits:
        limits = await super().start()
        self.idle.open()
        return limits

    async def clear_cache(self) -> bool:
        async with self.idle.paused():
            return await super().clear_cache()

    async def forget(self, document_ids: Sequence[str]) -> None:
        """Forget documents; answers about them are rechecked no more, which would bring them back.

        Nor are answers that are on their way, whatever they are about.
        """
        async with self.idle.paused():
            doomed = set(document_ids)
            for name, served in list(self._waiting.items()):
                if not doomed.isdisjoint(served.request.forget_ids):
                    del self._waiting[name]
            self._guesses.clear()
            await super().forget(document_ids)

    async def close(self) -> None:
        await self.idle.close()
        await super().close()
