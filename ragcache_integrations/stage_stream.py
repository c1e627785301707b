"""Runs a search in stages, as a generator or an asynchronous generator."""

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
    """Raised inside a search to end it, because nobody reads its stages any more.

    It is no Exception, so that nothing on the way out handles it as an error.
    """


def stream_search(
    search: Callable[[OnStage[Result]], Result],
) -> Generator[tuple[Result, float, bool]]:
    """Run a search in a thread and yield each of its stages, then its answer.

    search: takes a listener, which it calls at each stage, and returns the answer.
    Yields (result, fraction_done, is_final); only the answer is final.
    The thread starts with the first `next` and does not wait for the reader. Closing the generator
    stops the search, after the piece that is being searched. Raises what the search raises.
    """
    import faiss

    arrived: SimpleQueue[tuple[Result, float, bool] | BaseException] = SimpleQueue()
    is_closed = threading.Event()
    # A new thread has Faiss's default number of threads, not the one set in this thread.
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
            stage = arrived.get()
            if isinstance(stage, BaseException):
                raise stage
            _, _, is_final = stage
            yield stage
    finally:
        is_closed.set()
        thread.join()


async def iterate_in_thread(stages: Generator[Item]) -> AsyncGenerator[Item]:
    """Yield the items of a generator to asyncio; each is computed in a thread, one after the other.

    Closing this, or cancelling the task that reads it, returns at once. The thread then closes
    `stages`, after the item that it is computing.
    """
    import faiss

    # A new thread has Faiss's default number of threads, not the one set in this thread.
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
