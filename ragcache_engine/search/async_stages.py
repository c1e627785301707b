"""Staged search for asyncio: Faiss searches in a thread, so the event loop stays free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import faiss

from ragcache_engine.search.query import Query, check_query
from ragcache_engine.search.stage import SearchStage
from ragcache_engine.search.staged import run_search


def astages(
    index: Any,
    query: Any,
    k: int,
    count: int = 8,
    *,
    params: Any = None,
    slice_s: float | None = None,
) -> AsyncGenerator[SearchStage, None]:
    """Search as `stages` does, for asyncio: the same arguments, stages and errors, raised by this call.

    The search starts with the first `anext` and does not wait for its reader. Closing the iterator, or
    cancelling the task that reads it, returns at once. The thread ends after the part that it is
    searching (a fraction of the search); until then the index must not be changed.

        >>> import faiss, numpy as np
        >>> index = faiss.IndexFlatL2(4)
        >>> index.add(np.eye(4, dtype=np.float32))
        >>> async def nearest():
        ...     return [stage.ids async for stage in astages(index, [0.0, 0.0, 1.0, 0.0], k=1)][-1]
        >>> int(asyncio.run(nearest())[0])
        2
    """
    return receive_stages(check_query(index, query, k, count, params, slice_s))


async def receive_stages(query: Query) -> AsyncGenerator[SearchStage, None]:
    """Search in a thread of its own and yield the stages. Raises what the search raises."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[SearchStage | BaseException | None] = asyncio.Queue()
    stop = threading.Event()
    faiss_threads = faiss.omp_get_max_threads()

    def send(what: SearchStage | BaseException | None) -> None:
        if not stop.is_set():
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, what)
            except RuntimeError:  # The loop has closed: there is no reader any more.
                stop.set()

    def search() -> None:
        # A new thread has Faiss's default number of threads, not the number that the caller has set.
        faiss.omp_set_num_threads(faiss_threads)
        try:
            for stage in run_search(query):
                send(stage)
                if stop.is_set():
                    return
        except BaseException as wrong:
            send(wrong)
        else:
            send(None)

    threading.Thread(target=search, name="ragcache-search").start()
    try:
        while (what := await arrived.get()) is not None:
            if isinstance(what, BaseException):
                raise what
            yield what
    finally:
        stop.set()
