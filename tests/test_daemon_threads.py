"""Calls that may take long, in threads that hold up nobody else."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from functools import partial

import pytest

from ragcache_engine.daemon_threads import DaemonThreads

STUCK = """
import asyncio, threading
from ragcache_engine.daemon_threads import DaemonThreads

async def ask():
    try:
        await asyncio.wait_for(DaemonThreads(1).run(threading.Event().wait), 0.2)
    except TimeoutError:
        print("given up")

asyncio.run(ask())
"""


async def test_a_call_returns_or_raises():
    def fail() -> int:
        raise ValueError("seven")

    threads = DaemonThreads(2)
    assert await threads.run(lambda: 7) == 7
    with pytest.raises(ValueError, match="seven"):
        await threads.run(fail)


async def test_so_many_run_at_a_time_and_one_that_is_given_up_counts_until_it_ends():
    threads, may_end, begun = DaemonThreads(2), threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        begun.release()
        may_end.wait(60)

    waiting = [asyncio.ensure_future(threads.run(wait)) for _ in range(3)]
    assert await asyncio.to_thread(begun.acquire, timeout=60)
    assert await asyncio.to_thread(begun.acquire, timeout=60)
    waiting[0].cancel()
    await asyncio.sleep(0.05)
    assert not begun.acquire(blocking=False)
    may_end.set()
    assert await waiting[2] is None
    assert await threads.run(lambda: 7) == 7


async def test_nothing_is_kept_of_calls_that_were_given_up_before_they_began():
    class Body:
        pass

    def read(body: Body) -> None:
        pass

    threads, may_end = DaemonThreads(1), threading.Event()
    stuck = asyncio.ensure_future(threads.run(may_end.wait))
    body = Body()
    kept = weakref.ref(body)
    waiting = asyncio.ensure_future(threads.run(partial(read, body)))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    del body, waiting
    await asyncio.sleep(0.05)
    gc.collect()
    assert kept() is None
    may_end.set()
    await stuck


async def test_a_thread_that_cannot_start_is_no_thread(monkeypatch: pytest.MonkeyPatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = DaemonThreads(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            threads.submit(lambda: 7)
    assert await threads.run(lambda: 7) == 7


def test_a_call_that_never_ends_does_not_keep_its_process():
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout == "given up\n"
