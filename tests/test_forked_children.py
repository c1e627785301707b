"""A forked child has a copy of the engine but none of its threads: it gets an error, and never hangs."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import ragcache_engine
from ragcache_engine import Document, EngineInOtherProcess, RAGCacheEngine

CHILD_TIMEOUT_S = 20
"""Long enough for any child that does not hang."""

HELLO = [{"role": "user", "content": "Hello."}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
TIDES = Document("tides", "The moon pulls the oceans, and the tides follow it.")

forking = multiprocessing.get_context("fork")


def in_forked_child(action: Callable[[], object]) -> str:
    """Run this in a forked child. Return "done", or the error's name and message; fail if it hangs."""
    reading, writing = forking.Pipe(duplex=False)

    def run(connection: Connection) -> None:
        try:
            action()
            connection.send("done")
        except BaseException as error:
            connection.send(f"{type(error).__name__}: {error}")

    child = forking.Process(target=run, args=(writing,))
    child.start()
    writing.close()
    try:
        assert reading.poll(CHILD_TIMEOUT_S), "the child hangs"
        return str(reading.recv())
    finally:
        child.kill()
        child.join()


async def read_all(engine: RAGCacheEngine) -> None:
    async for _ in engine.astream("Why?"):
        pass


def retrieve(engine: RAGCacheEngine) -> None:
    with engine.retrieval("Why?") as retrieval:
        retrieval.found([TIDES])


DOORS: dict[str, Callable[[RAGCacheEngine], object]] = {
    "generate": lambda engine: engine.generate("Why?"),
    "stream": lambda engine: engine.stream("Why?"),
    "agenerate": lambda engine: asyncio.run(engine.agenerate("Why?")),
    "astream": lambda engine: asyncio.run(read_all(engine)),
    "tokenize": lambda engine: engine.tokenize("Why?"),
    "retrieval": retrieve,
    "warm": lambda engine: engine.warm([[TIDES]], template="{context}{question}"),
    "awarm": lambda engine: asyncio.run(engine.awarm([[TIDES]], template="{context}{question}")),
    "forget": lambda engine: engine.forget(["tides"]),
    "aforget": lambda engine: asyncio.run(engine.aforget(["tides"])),
    "clear_cache": lambda engine: engine.clear_cache(),
    "aclear_cache": lambda engine: asyncio.run(engine.aclear_cache()),
    "stats": lambda engine: engine.stats(),
    "chat.prompt": lambda engine: engine.chat.prompt(HELLO),
    "chat.takes_tools": lambda engine: engine.chat.takes_tools,
    "chat.tool_reader": lambda engine: engine.chat.tool_reader([TOOL]),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_tells_a_forked_child_whose_engine_it_is(
    memory_engine: RAGCacheEngine, door: str
):
    told = in_forked_child(lambda: DOORS[door](memory_engine))
    assert told.startswith("EngineInOtherProcess: ")
    assert f"belongs to process {multiprocessing.current_process().pid}" in told
    assert "after the fork" in told
    assert memory_engine.generate("Why?").text == "You asked: Why?"


@pytest.mark.parametrize("lock", ["_log._lock", "_templates._lock"])
@pytest.mark.slow
def test_a_lock_that_was_taken_at_the_fork_keeps_no_child_waiting(
    memory_engine: RAGCacheEngine, lock: str
):
    """Another thread of the parent may hold it at that moment, and the child lacks that thread."""
    owner, name = lock.split(".")
    with getattr(getattr(memory_engine._retrievals, owner), name):
        for door in DOORS.values():
            assert "EngineInOtherProcess" in in_forked_child(lambda door=door: door(memory_engine))


def test_a_forked_child_cannot_read_on_in_its_parents_answer(memory_engine: RAGCacheEngine):
    with memory_engine.stream("go on for ever") as pieces:
        next(pieces)
        assert "EngineInOtherProcess" in in_forked_child(lambda: next(pieces))


def test_a_search_that_began_before_the_fork_ends_in_the_child_with_the_error(
    memory_engine: RAGCacheEngine,
):
    with memory_engine.retrieval("Why?") as retrieval:
        assert "EngineInOtherProcess" in in_forked_child(lambda: retrieval.found([TIDES]))
        assert in_forked_child(lambda: retrieval.provisional([TIDES])) == "done"


def test_closing_in_a_forked_child_does_nothing(memory_engine: RAGCacheEngine):
    stream = memory_engine.stream("go on for ever")

    def close_all() -> None:
        stream.close()
        stream.__del__()
        memory_engine.close()
        asyncio.run(memory_engine.aclose())

    next(stream)
    assert in_forked_child(close_all) == "done"
    assert next(stream).text
    stream.close()
    assert memory_engine.generate("Why?").text == "You asked: Why?"


def test_dropping_the_engine_in_a_forked_child_does_nothing(memory_engine: RAGCacheEngine):
    memory_engine._runtime._close_lock.acquire()  # as if a thread were closing it at the fork
    try:
        assert in_forked_child(memory_engine._finalizer) == "done"
    finally:
        memory_engine._runtime._close_lock.release()


def test_a_forked_child_exits_though_its_parents_engine_is_open():
    script = (
        "import os, sys\n"
        "from ragcache_engine import EngineConfig, RAGCacheEngine\n"
        "engine = RAGCacheEngine(EngineConfig(model='any', backend='memory'))\n"
        "stream = engine.stream('Left open ' * 500)\n"
        "if child := os.fork():\n"
        "    assert os.waitpid(child, 0) == (child, 0)\n"
        "    print(engine.generate('Why?').text)\n"
        "sys.exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        timeout=CHILD_TIMEOUT_S,
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(ragcache_engine.__file__).parents[1],
    )
    assert done.stdout == "You asked: Why?\n"
    assert done.stderr == ""


def test_a_forked_child_makes_an_engine_of_its_own(memory_engine: RAGCacheEngine):
    def ask() -> None:
        with RAGCacheEngine(memory_engine.config) as engine:
            assert engine.generate("Why?").text == "You asked: Why?"

    assert in_forked_child(ask) == "done"


def test_the_error_is_one_of_the_engines():
    assert issubclass(EngineInOtherProcess, ragcache_engine.EngineError)
