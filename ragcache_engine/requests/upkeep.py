"""Clears the cache, forgets, looks up, shows the tree; waits no longer than for a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ragcache_engine.errors import EngineClosed, EngineError, RequestTimedOut
from ragcache_engine.protocols import Backend, BackendRequest
from ragcache_engine.requests.retry import Heartbeat
from ragcache_engine.speculation import Pipeline
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot
from ragcache_engine.values import SpeculationOutcome

logger = logging.getLogger(__name__)

T = TypeVar("T")


class CacheUpkeep:
    """Clears the cache, forgets documents, shows the tree. All methods belong to the engine's loop.

    heartbeat: tells when the whole backend has fallen silent, as for requests.
    changes: how often the cache was cleared, or documents forgotten, so far.
    """

    def __init__(self, backend: Backend, pipeline: Pipeline, heartbeat: Heartbeat) -> None:
        self._backend = backend
        self._pipeline = pipeline
        self._heartbeat = heartbeat
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        self.changes = 0

    async def clear(self) -> None:
        """Drop every cached block.

        Raises EngineError while requests run, and then drops nothing; RequestTimedOut, EngineDied or
        EngineClosed.
        """
        await self._end_when_silent(self._clear(), "clear its cache")
        self.changes += 1
        logger.info("device and host were cleared")

    async def forget(self, document_ids: Sequence[str]) -> None:
        """Drop these documents from every tier. Raises RequestTimedOut, EngineDied or EngineClosed."""
        await self._end_when_silent(self._forget(document_ids), "forget documents")
        self.changes += 1
        logger.info("%d documents were forgotten", len(document_ids))

    async def touch_if_cached(self, requests: Sequence[BackendRequest]) -> list[bool]:
        """Return which of these requests some tier holds whole, and count a use of their documents.

        Raises RequestTimedOut, EngineDied or EngineClosed.
        """
        return await self._end_when_silent(
            self._backend.touch_if_cached(requests), "look up documents"
        )

    async def call(self, work: Callable[[], Coroutine[Any, Any, T]], asked: str) -> T:
        """Do work with the backend. asked: what the engine was asked to do, for errors.

        Work that lasts long calls `beat` whenever the backend has answered.
        Raises what the work does, RequestTimedOut, EngineDied or EngineClosed.
        """
        return await self._end_when_silent(work(), asked)

    def beat(self) -> None:
        """Note that the backend has shown a sign of life."""
        self._heartbeat.beat()

    async def snapshot(self, documents: int) -> TreeSnapshot | None:
        """Return the knowledge tree as of now. Raises RequestTimedOut, EngineDied or EngineClosed."""
        return await self._end_when_silent(self._backend.snapshot(documents), "show its tree")

    async def cancel_all(self) -> None:
        """End all that runs with EngineClosed, and whatever comes later."""
        self._is_closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _clear(self) -> None:
        await self._pipeline.end_unclaimed(SpeculationOutcome.EXPIRED)
        if not await self._backend.clear_cache():
            raise EngineError("the cache is in use by running requests; wait for them to end")

    async def _forget(self, document_ids: Sequence[str]) -> None:
        # A speculation that waits for its prompt would keep the documents until it ends.
        await self._pipeline.end_unclaimed(SpeculationOutcome.EXPIRED, document_ids)
        await self._backend.forget(document_ids)

    async def _end_when_silent(self, work: Coroutine[Any, Any, T], asked: str) -> T:
        """Do the work. Raises RequestTimedOut once the whole backend has fallen silent meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        if self._is_closing:
            work.close()
            raise EngineClosed("the engine was closed meanwhile; make a new RAGCacheEngine")
        self._tasks.add(task)
        try:
            async with asyncio.timeout(None) as wait:
                with self._heartbeat.watch(wait):
                    return await work
        except TimeoutError:
            if not wait.expired():
                raise
            raise RequestTimedOut(
                f"the engine was asked to {asked} and showed no sign of life for "
                f"{self._heartbeat.timeout_s:g} s, so some of it may not be done: ask again, or raise "
                f"request_timeout_s if the model or the disk takes that long"
            ) from None
        except asyncio.CancelledError:
            if self._is_closing:
                raise EngineClosed(
                    f"the engine was closed before it could {asked}; make a new RAGCacheEngine"
                ) from None
            raise
        finally:
            self._tasks.discard(task)
            del task  # if it was cancelled, it refers to this frame, and so to the backend's calls
