"""Blocking calls off the caller's loop: waited for, undone if nobody waits, and never cut short."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from ragcache_engine.requests.loop import LoopThread, finish_even_if_cancelled, run_in_thread


def test_a_blocking_call_runs_on_another_thread_and_gives_its_result():
    async def call() -> threading.Thread:
        return await run_in_thread(threading.current_thread)

    assert asyncio.run(call()) is not threading.current_thread()


def test_an_error_of_a_blocking_call_is_the_callers():
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_in_thread(lambda: 1 // 0))


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_a_result_that_nobody_waits_for_is_undone(ending: str):
    may_end, undone = threading.Event(), []

    def function() -> str:
        assert may_end.wait(20)
        if ending == "raises":
            raise OSError
        return "result"

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_in_thread(function, undo=undone.append), 0.01)

    before = set(threading.enumerate())
    asyncio.run(give_up())
    may_end.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()
    assert undone == (["result"] if ending == "returns" else [])


def test_work_of_another_thread_goes_on_when_its_waiter_is_cancelled():
    work: Future[str] = Future()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(finish_even_if_cancelled(work), 0.01)

    asyncio.run(give_up())
    assert not work.cancelled()


def test_a_stopped_loop_takes_no_more_work():
    loop = LoopThread("test")
    loop.stop()
    loop.stop()
    loop.call_soon(lambda: pytest.fail("the loop is stopped"))
    with pytest.raises(RuntimeError):
        loop.submit(asyncio.sleep(0))
