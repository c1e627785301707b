"""Runs the backend, from its start to its end, and its requests on the engine's own event loop."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

from ragcache_engine.anywhere.neighbours import ContextsOf, without_contexts
from ragcache_engine.cache_stats import CacheStats
from ragcache_engine.config import SpeculationMode
from ragcache_engine.errors import EngineClosed
from ragcache_engine.observing.request_log import FinishedRequest, TimesToFirstToken
from ragcache_engine.prompt import ForgetLog, TemplateBook
from ragcache_engine.protocols import Backend, BackendRequest
from ragcache_engine.requests.engine_threads import EngineThreads
from ragcache_engine.requests.loop import LoopThread, finish_even_if_cancelled
from ragcache_engine.requests.retry import Heartbeat
from ragcache_engine.requests.runner import PreparedRequest, RequestRunner
from ragcache_engine.requests.streams import Item
from ragcache_engine.requests.upkeep import CacheUpkeep
from ragcache_engine.speculation import Pipeline
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot
from ragcache_engine.values import ModelLimits

logger = logging.getLogger(__name__)

T = TypeVar("T")

Report = Callable[[], Mapping[str, Any]]


class Runtime:
    """Starts the backend, runs requests on it, and closes it.

    The backend's coroutines run on the engine's own loop, in its own thread. Any thread may call every
    public method.
    templates: what the engine knows of the chains' prompts; speculation guesses with it.
    contexts_of: returns the contexts that documents are borrowed from. may_borrow, is_borrowing: as in
      Pipeline.
    forgotten: when documents were forgotten.
    reports: each returns some fields of CacheStats, by name, that others know. Any thread calls them.
    threads: what coroutines have to wait for runs there.
    """

    def __init__(
        self,
        backend: Backend,
        templates: TemplateBook,
        *,
        speculation: SpeculationMode,
        request_timeout_s: float,
        contexts_of: ContextsOf = without_contexts,
        dedupe: bool = False,
        may_borrow: bool = False,
        is_borrowing: Callable[[], bool] = lambda: False,
        forgotten: ForgetLog | None = None,
        reports: Sequence[Report] = (),
    ) -> None:
        self.backend = backend
        self.forgotten = forgotten or ForgetLog()
        self.may_borrow = may_borrow
        self._reports = reports
        heartbeat = Heartbeat(request_timeout_s)
        self.pipeline = Pipeline(
            backend,
            templates,
            is_automatic=speculation == "auto",
            next_request_id=self.next_request_id,
            sign_of_life=heartbeat.beat,
            contexts_of=contexts_of,
            dedupe=dedupe,
            may_borrow=may_borrow,
            is_borrowing=is_borrowing,
        )
        self._requests = RequestRunner(backend, self.pipeline, heartbeat)
        self._upkeep = CacheUpkeep(backend, self.pipeline, heartbeat)
        self._thread = LoopThread("ragcache-engine")
        self.threads = EngineThreads(request_timeout_s, self._until_up)
        self.require_this_process = self._thread.require_this_process
        self._request_numbers = count()
        self._is_closing = False
        self._before_close: list[Callable[[], None]] = []
        self._close_lock = threading.Lock()

    def start(self) -> ModelLimits:
        """Load the model and wait for it. Raises what Backend.start does."""
        began_s = time.monotonic()
        limits = self._thread.submit(self.backend.start()).result()
        self.pipeline.use_limits(limits)
        logger.info(
            "the engine started in %.1f s: %d blocks of %d tokens on the device, %d in the host tier",
            time.monotonic() - began_s,
            limits.device_blocks,
            limits.block_tokens,
            limits.host_blocks,
        )
        # The handler registered last runs first: this one must run before multiprocessing's own, which
        # would end the backend's processes under running requests.
        atexit.register(self.close)
        return limits

    def require_open(self) -> None:
        """Raise EngineClosed if the engine was closed; EngineInOtherProcess in a forked child."""
        self.require_this_process()
        self._require_not_closing()

    def _require_not_closing(self) -> None:
        if self._is_closing:
            raise EngineClosed("this engine was closed; make a new RAGCacheEngine")

    def wait_until_up(self) -> None:
        """Wait while the backend is being restarted. Raises what `require_open` does.

        Not for the engine's own loop, which does the restarting.
        """
        self.require_this_process()
        if not self._thread.is_current_thread():
            self._requests.wait_until_up()
        self._require_not_closing()

    async def _until_up(self) -> None:
        """`wait_until_up` for coroutines of any loop: no thread waits."""
        self.require_open()
        if not self._requests.is_up:
            await finish_even_if_cancelled(self._thread.submit(self._requests.until_up()))
        self._require_not_closing()

    def next_request_id(self) -> str:
        """Return a name for a request that no other request of this engine has."""
        return f"ragcache-{next(self._request_numbers)}"

    def start_request(
        self, prepared: PreparedRequest, put: Callable[[Item], None]
    ) -> Callable[[], None]:
        """Start a request. Returns a function that cancels it; any thread may call that too.

        put: called on the engine's loop with each piece, and at the end with None or with the error.
        """
        self._require_not_closing()
        future = self._thread.submit(self._requests.run(prepared, put))

        def cancel() -> None:
            if self._thread.is_in_this_process:
                future.cancel()

        return cancel

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call this on the engine's loop; do nothing if the engine is closed."""
        self._thread.call_soon(callback)

    def clear_cache(self) -> Future[None]:
        """Begin to clear the cache. The future raises what CacheUpkeep.clear does."""
        self._require_not_closing()
        return self._thread.submit(self._upkeep.clear())

    def forget(self, document_ids: Sequence[str]) -> Future[None]:
        """Begin to drop these documents from every tier. The future is done when they are gone.

        It raises what CacheUpkeep.forget does.
        """
        self._require_not_closing()
        return self._thread.submit(self._forget(document_ids))

    async def _forget(self, document_ids: Sequence[str]) -> None:
        self._requests.log.forget(document_ids)
        await self._upkeep.forget(document_ids)

    def touch_if_cached(self, requests: Sequence[BackendRequest]) -> Future[list[bool]]:
        """Begin to look up which requests some tier holds whole.

        The future raises what CacheUpkeep.touch_if_cached does.
        """
        self._require_not_closing()
        return self._thread.submit(self._upkeep.touch_if_cached(requests))

    def call_backend(self, work: Callable[[], Coroutine[Any, Any, T]], asked: str) -> Future[T]:
        """Begin other work with the backend, on the engine's loop. Takes what CacheUpkeep.call does.

        The future raises what that does.
        """
        self._require_not_closing()
        return self._thread.submit(self._upkeep.call(work, asked))

    def beat(self) -> None:
        """Note, on the engine's loop, that the backend has shown a sign of life during `call_backend`."""
        self._upkeep.beat()

    def stats(self) -> CacheStats:
        """Return all of the engine's counters, as of now. Raises EngineInOtherProcess."""
        self.require_this_process()
        told = {name: value for report in self._reports for name, value in report().items()}
        return replace(
            self._requests.stats,
            tiers=self.backend.counters().snapshot(),
            speculation=self.pipeline.stats,
            **told,
        )

    def snapshot(self, documents: int) -> Future[TreeSnapshot | None]:
        """Begin to look at the knowledge tree. The future raises what CacheUpkeep.snapshot does."""
        self._require_not_closing()
        return self._thread.submit(self._upkeep.snapshot(documents))

    @property
    def cache_changes(self) -> int:
        """How often the cache was cleared, or documents forgotten; `stats` tells that later."""
        return self._upkeep.changes

    def recent_requests(self) -> tuple[FinishedRequest, ...]:
        """Return the last answered requests, the oldest first. Raises EngineInOtherProcess."""
        self.require_this_process()
        return self._requests.log.recent()

    def times_to_first_token(self) -> TimesToFirstToken:
        """Return how long all requests took to their first token. Raises EngineInOtherProcess."""
        self.require_this_process()
        return self._requests.log.times_to_first_token()

    def call_before_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call this once the runtime is being closed. Raises what `require_open` does.

        Returns a function that takes the callback back, so that what it belongs to need not live on.
        """
        self.require_open()
        self._before_close.append(callback)

        def take_back() -> None:
            with suppress(ValueError):
                self._before_close.remove(callback)

        return take_back

    def close(self) -> None:
        """End running requests with EngineClosed and close the backend. A second call does nothing.

        Does nothing in a forked child: the backend is its parent's, and so are the loop and the lock.
        """
        if not self._thread.is_in_this_process:
            return
        with self._close_lock:
            if self._is_closing:
                return
            self._is_closing = True
        for callback in list(self._before_close):
            callback()
        atexit.unregister(self.close)
        closing = self._thread.submit(self._close())
        if self._thread.is_current_thread():
            # The engine was dropped on its own loop, which cannot wait for itself.
            closing.add_done_callback(lambda _: self._thread.stop())
        else:
            closing.result()
            self._thread.stop()

    async def _close(self) -> None:
        stats = self._requests.stats
        logger.info(
            "the engine closes: %d requests finished, %d failed, %d restarts",
            stats.finished,
            stats.failed,
            stats.restarts,
        )
        await self._requests.cancel_all()
        await self._upkeep.cancel_all()
        await self.pipeline.close()
        await self.backend.close()
