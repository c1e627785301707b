"""Prepares documents in idle time, with missing_donors="later".

A prompt whose documents were computed where they stand, because their donors were missing, is computed
once more while no request runs, this time for the sake of its donors. Later prompts borrow them. It
ends as soon as a request comes, which waits for one short step at most, and goes on afterwards with
what is left. When no prompt waits any more, documents get donors that no prompt has had yet: what
searches found, and what is near the documents of prompts. They are computed behind the last prompt's
beginning.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import count
from sys import getsizeof
from typing import Any

from ragcache_engine.anywhere.beginnings import Beginning, Beginnings
from ragcache_engine.anywhere.found_documents import Found, FoundDocuments
from ragcache_engine.anywhere.idle_work import IDLE_S, IdleWork
from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.errors import EngineDied
from ragcache_engine.forwarding import ForwardingBackend
from ragcache_engine.latest_items import LatestItems
from ragcache_engine.protocols import Backend, BackendRequest, Delta
from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.borrowing.plan import WhyExact
from ragcache_engine.values import ModelLimits

logger = logging.getLogger(__name__)

MOST_WAITING, MOST_WAITING_BYTES = 256, 32 << 20
"""How many prompts wait to be prepared, and how much memory they take; an engine that is never idle drops
the oldest."""

AGAIN_S, MOST_NOTED_BYTES, NOTED_BYTES = 600.0, 8 << 20, 300
"""A document of prompts that reach the model another way is prepared once in so many seconds, because its
donor may have been evicted. So many bytes remember when; each takes so many beside its name."""

FindContexts = Callable[[Found, str | None], Mapping[str, Context]]
"""Returns behind what a found document is to be stored for a tenant. Called on a thread."""


class PreparingBackend(ForwardingBackend):
    """Does what `inner` does, and prepares those documents of prompts that have no donors.

    All methods belong to the engine's loop, except those that any thread may call on every backend.
    is_wanted: returns whether anybody will borrow what is prepared. idle_s: seconds without a request
    before it begins. clock: tells seconds.
    beginnings: of the prompts that it has seen.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        self._clock = clock
        self._noted: LatestItems[tuple[str | None, int, str], float] = LatestItems(
            MOST_NOTED_BYTES, lambda key, _: NOTED_BYTES + getsizeof(key[2])
        )
        self._is_wanted = is_wanted
        self._waiting: LatestItems[tuple[str | None, tuple[str, ...]], BackendRequest] = (
            LatestItems(
                MOST_WAITING_BYTES, lambda _, request: request.size_bytes, most=MOST_WAITING
            )
        )
        self.beginnings = Beginnings()
        self._found: FoundDocuments | None = None
        self._find_contexts: FindContexts = lambda found, tenant: {}
        self._writers = DaemonThreads(1, "ragcache-donors")
        self._numbers = count()
        self._is_preparing = self._is_preparing_found = False
        self._prepared = 0
        self.idle = IdleWork(self._prepare_next, self._has_more, idle_s=idle_s)

    def prepare_found(self, found: FoundDocuments, find_contexts: FindContexts) -> None:
        """Prepare these documents too, when no prompt waits. Call it before the start."""
        self._found, self._find_contexts = found, find_contexts

    def report(self) -> dict[str, Any]:
        """Return the fields of CacheStats that tell what was and is to be prepared. Any thread."""
        waiting = len(self._waiting) + self._is_preparing
        found = 0 if self._found is None else len(self._found) + self._is_preparing_found
        return {"unprepared": waiting, "found_unprepared": found, "prepared": self._prepared}

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        pauses = self.idle.pauses
        with self.idle.request():
            async with aclosing(self.inner.generate(request)) as deltas:
                async for delta in deltas:
                    if delta.finish_reason and pauses == self.idle.pauses:
                        if _lacks_donors(delta):
                            self._keep(request)
                        self._note_prompt(request)
                    yield delta

    def note_elsewhere(self, request: BackendRequest) -> None:
        """Prepare what a prompt lacks that reaches the model another way, as by OpenAI's paths.

        Nobody tells what that is, so it is prepared as a whole if a document of it was not lately. A
        prompt with one document borrows nothing.
        """
        if sum(segment.document_id is not None for segment in request.segments) < 2:
            return
        now = self._clock()
        # A donor stands behind the text with which its prompt begins.
        beginning = hash(tuple(request.tokens.token_ids[: _find_first(request)]))
        keys = [(request.tenant, beginning, name) for name in request.document_ids]
        if any(now - self._noted.get(key, -AGAIN_S) >= AGAIN_S for key in keys):
            self._keep(request)
            for key in keys:
                self._noted[key] = now
                self._noted.touch(key)
        self._note_prompt(request)

    def _note_prompt(self, request: BackendRequest) -> None:
        """Remember how a tenant's prompts begin, and that these documents need not wait."""
        if self._found is None:
            return
        self._found.note_prompt(request.document_ids, request.tenant)
        self.beginnings.note(request)

    def _keep(self, request: BackendRequest) -> None:
        """Let a prompt wait; the latest are prepared first, as they are likeliest to come again."""
        name = request.tenant, tuple(request.document_ids)
        self._waiting.pop(name, None)
        self._waiting[name] = request.compact()

    def _has_more(self) -> bool:
        return bool(self._waiting or self._tenants_with_found()) and self._is_wanted()

    def _tenants_with_found(self) -> list[str | None]:
        """Return for whom found documents wait, whose prompts' beginning is known; the latest first."""
        found = self._found
        if found is None or not len(found):
            return []
        return [*filter(found.has_some, self.beginnings.tenants())]

    async def _prepare_next(self) -> None:
        if not self._waiting:
            await self._prepare_found()
            return
        name, request = self._waiting.pop_latest()
        self._is_preparing = True
        try:
            await self._prepare(request)
            self._prepared += 1
        except (asyncio.CancelledError, EngineDied):
            self._waiting.setdefault(name, request)
            raise
        except Exception as error:  # it must disturb nobody
            logger.info("documents could not be prepared: %s", error)
        finally:
            self._is_preparing = False

    async def _prepare_found(self) -> None:
        """Prepare the document that searches found most often."""
        found, tenants = self._found, self._tenants_with_found()
        if found is None or not tenants:  # a search may have driven the last one out
            return
        tenant = tenants[0]
        self._is_preparing_found = True
        one = found.take(tenant)
        try:
            if one is not None:
                beginning = self.beginnings.get(tenant)
                assert beginning is not None
                write = partial(self._write_prompt, one, beginning, tenant)
                await self._prepare(await self._writers.run(write))
        except (asyncio.CancelledError, EngineDied):
            if one is not None:
                found.put_back(one)
            raise
        except Exception as error:  # it must disturb nobody
            logger.info("a document could not be prepared: %s", error)
        finally:
            self._is_preparing_found = False

    def _write_prompt(
        self, found: Found, beginning: Beginning, tenant: str | None
    ) -> BackendRequest:
        """Write a prompt with this document behind the beginning of another one."""
        contexts = self._find_contexts(found, tenant)
        documents = [beginning.first, found.document]
        name = f"found-{next(self._numbers)}"
        request = beginning.write(self.inner, documents, tenant, name)
        return replace(request, contexts=contexts, planned=found.planned)

    async def _prepare(self, request: BackendRequest) -> None:
        """Compute the prompt for its donors."""
        name = f"{request.request_id}-prepare-{next(self._numbers)}"
        prepared = replace(request.for_donors(), request_id=name)
        async with aclosing(self.inner.generate(prepared)) as deltas:
            async for _ in deltas:
                pass

    async def start(self) -> ModelLimits:
        limits = await super().start()
        self.idle.open()
        return limits

    async def clear_cache(self) -> bool:
        async with self.idle.paused():
            is_empty = await super().clear_cache()
            if is_empty:
                self._waiting.clear()
                self._noted.clear()
                if self._found is not None:
                    self._found.clear()
            return is_empty

    async def forget(self, document_ids: Sequence[str]) -> None:
        """Forget documents; prompts with them are prepared no more, which would bring them back.

        Nor are prompts that are being answered, whatever they are about.
        """
        async with self.idle.paused():
            doomed = set(document_ids)
            for name, request in list(self._waiting.items()):
                if not doomed.isdisjoint(request.forget_ids):
                    del self._waiting[name]
            noted = [
                key
                for key in self._noted
                if not doomed.isdisjoint((key[2], *forget_ids_of(key[0])))
            ]
            for key in noted:
                del self._noted[key]
            self.beginnings.forget(doomed)
            if self._found is not None:
                self._found.forget(document_ids)
            await super().forget(document_ids)

    async def close(self) -> None:
        await self.idle.close()
        await super().close()


def _find_first(request: BackendRequest) -> int:
    """Return the token at which the first document of a prompt begins."""
    return next((one.start for one in request.segments if one.document_id is not None), 0)


def _lacks_donors(delta: Delta) -> bool:
    """Return whether documents of this answer's prompt were computed where they stand.

    Unlike the first document, which is always exact.
    """
    later = delta.reuse.documents[1:] if delta.reuse else ()
    is_partly = any(one.borrowed for one in later) and not all(one.borrowed for one in later)
    return is_partly or delta.why_exact == WhyExact.NOT_PREPARED
