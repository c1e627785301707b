"""The stages of a search as a generator, and as an asynchronous one."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

from ragcache_integrations.staging import OnStage

Result = TypeVar("Result")
Item = TypeVar("Item")


class SearchStopped(BaseException):
    """Ends a search from within. No error, so that nobody on the way out handles it as one."""


def stream_search(
    search: Callable[[OnStage[Result]], Result],
) -> Generator[tuple[Result, float, bool]]:
    """The stages of a search: what was found, the share of it that is behind, whether it is the answer.

    It runs in a thread from the first `next` on, and does not wait for its reader. Closing stops it,
    and waits for the piece that is being searched. What it raises is raised here.
    """
    import faiss

    arrived: SimpleQueue[tuple[Result, float, bool] | BaseException] = SimpleQueue()
    is_closed = threading.Event()
    # A thread starts with Faiss's default, not with what its maker has set.
    faiss_threads = faiss.omp_get_max_threads()

    def put(found: Result, fraction_done: float) -> None:
        if is_closed.is_set():
            raise SearchStopped
        arrived.put((found, fraction_done, False))

    def run() -> None:
        faiss.omp_set_num_threads(faiss_threads)
        try:
            arrived.put((search(put), 1.0, True))
        except BaseException as error:
            arrived.put(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="ragcache-search")
    thread.start()
    try:
        is_final = False
        while not is_final:
            what = arrived.get()
            if isinstance(what, BaseException):
                raise what
            _, _, is_final = what
            yield what
    finally:
        is_closed.set()
        thread.join()


async def iterate_in_thread(stages: Generator[Item]) -> AsyncGenerator[Item]:
    """The same stages for asyncio, each drawn in a thread, one after the other.

    Closing this, or cancelling the task that reads it, returns at once; `stages` is closed in the thread,
    as soon as the stage that is being drawn is there.
    """
    import faiss

    # A thread starts with Faiss's default, not with what its maker has set.
    faiss_threads = faiss.omp_get_max_threads()
    thread = ThreadPoolExecutor(
        1, "ragcache-stages", initializer=faiss.omp_set_num_threads, initargs=(faiss_threads,)
    )
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()

    def draw() -> Item | None:
        return context.run(lambda: next(stages, None))

    try:
        while (stage := await loop.run_in_executor(thread, draw)) is not None:
            yield stage
    finally:
        thread.submit(context.run, stages.close)
        thread.shutdown(wait=False)
