"""An engine that is closed, by hand or by itself, ends what runs and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType

import pytest

from ragcache_engine import (
    BackendUnavailable,
    EngineClosed,
    EngineConfig,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_engine.backends.memory import MemoryBackend, Stall


@pytest.fixture
def stalled_engine(engine_on: Callable[..., RAGCacheEngine]) -> RAGCacheEngine:
    """An engine whose requests never get a token."""

    def stall(step: int) -> None:
        raise Stall

    return engine_on(MemoryBackend(fault=stall))


def test_closing_twice_is_closing_once():
    engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
    engine.close()
    engine.close()
    assert engine.closed


def test_a_closed_engine_refuses_new_prompts():
    with RAGCacheEngine(EngineConfig(model="any", backend="memory")) as engine:
        pass
    with pytest.raises(EngineClosed, match="new RAGCacheEngine"):
        engine.generate("Anyone?")
    with pytest.raises(EngineClosed):
        asyncio.run(engine.agenerate("Anyone?"))


def test_closing_ends_running_requests_with_a_named_error(stalled_engine: RAGCacheEngine):
    streams = [stalled_engine.stream(f"Question {n}?") for n in range(3)]
    stalled_engine.close()
    for stream in streams:
        with pytest.raises(EngineClosed):
            next(stream)
    assert stalled_engine.stats().running == 0


def test_an_async_reader_learns_of_the_close_too(stalled_engine: RAGCacheEngine):

    async def ask() -> None:
        asking = asyncio.create_task(stalled_engine.agenerate("Question?"))
        while not stalled_engine.stats().running:
            await asyncio.sleep(0)
        await asyncio.to_thread(stalled_engine.close)
        with pytest.raises(EngineClosed):
            await asking

    asyncio.run(ask())


def test_threads_may_race_to_close(stalled_engine: RAGCacheEngine):
    threads = [threading.Thread(target=stalled_engine.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.slow
def test_a_dropped_engine_closes_itself():
    backend, before = MemoryBackend(), set(threading.enumerate())
    engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"), backend=backend)
    engine.generate("Warm it up " * 40, options=SamplingOptions(max_tokens=2))
    assert backend.cached_blocks
    del engine
    gc.collect()
    assert backend.cached_blocks == 0
    assert set(threading.enumerate()) <= before


@pytest.mark.slow
def test_a_dropped_engine_is_collected_though_an_import_of_its_backend_keeps_frames(
    monkeypatch: pytest.MonkeyPatch,
):
    """As importing vLLM does, with the errors of the imports that failed inside it."""
    kept: list[FrameType] = []

    def choose_and_keep_frame(config: EngineConfig) -> MemoryBackend:
        kept.append(sys._getframe())
        return MemoryBackend()

    def make_and_drop() -> weakref.ref[RAGCacheEngine]:
        engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
        return weakref.ref(engine)

    monkeypatch.setattr("ragcache_engine.engine.choose_backend", choose_and_keep_frame)
    before = threading.active_count()
    dropped = make_and_drop()
    gc.collect()
    assert kept
    assert dropped() is None
    assert threading.active_count() <= before


def test_an_error_of_choosing_the_backend_is_the_callers(monkeypatch: pytest.MonkeyPatch):
    def refuse(config: EngineConfig) -> MemoryBackend:
        raise BackendUnavailable("there is none")

    monkeypatch.setattr("ragcache_engine.engine.choose_backend", refuse)
    with pytest.raises(BackendUnavailable, match="there is none"):
        RAGCacheEngine(EngineConfig(model="any", backend="memory"))


def test_the_callers_script_is_looked_at_before_the_backend_is_made_on_another_thread(
    monkeypatch: pytest.MonkeyPatch,
):
    seen: list[tuple[str, threading.Thread]] = []

    def note(name: str) -> None:
        seen.append((name, threading.current_thread()))

    def choose(config: EngineConfig) -> MemoryBackend:
        note("choose")
        return MemoryBackend()

    monkeypatch.setattr("ragcache_engine.engine.require_guarded_caller", lambda _: note("guard"))
    monkeypatch.setattr("ragcache_engine.engine.choose_backend", choose)
    with RAGCacheEngine(EngineConfig(model="any", backend="memory")):
        pass
    (guard, caller), (chosen, other) = seen
    assert (guard, chosen) == ("guard", "choose")
    assert caller is threading.current_thread() is not other


def test_an_engine_left_open_does_not_keep_the_interpreter_alive():
    script = (
        "from ragcache_engine import EngineConfig, RAGCacheEngine\n"
        "engine = RAGCacheEngine(EngineConfig(model='any', backend='memory'))\n"
        "stream = engine.stream('Left open ' * 500)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], timeout=30, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
