"""What observers see of an engine, and of servers that are there, half there or gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from ragcache_engine import Document, EngineClosed, EngineDied, RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.dashboard import ServerObserver
from ragcache_engine.dashboard.engine_observer import EngineObserver, phases_of
from ragcache_engine.dashboard.tree_memory import IDLE_LOOK_S, REST_S
from ragcache_engine.values import (
    CachedTokens,
    SpeculationEvent,
    SpeculationOutcome,
    SpeculationReport,
    SpeculationStep,
    Usage,
)

TIDES = Document("tides", "The moon pulls the oceans and the tides follow it " * 9)


def observer_of(engine: RAGCacheEngine, **settings: Callable[[], dict[str, str]]) -> EngineObserver:
    return EngineObserver("an engine", engine._runtime, **settings)


def test_an_engine_is_seen_as_it_says_itself(memory_engine: RAGCacheEngine):
    memory_engine.generate(f"{TIDES.text}\n\nWhy?", [TIDES])
    seen = observer_of(memory_engine).observe(with_tree=True)
    assert seen.counters == memory_engine.stats().tiers
    assert (seen.finished, seen.running, seen.restarts) == (1, 0, 0)
    assert seen.tree is not None
    assert seen.tree.documents[0].documents == ("tides",)
    assert seen.requests[-1].documents[0].document_id == "tides"
    assert seen.requests[-1].question == ""
    assert seen.texts == {}
    assert seen.approximate_tokens == 0


def test_the_tree_of_an_idle_engine_is_seldom_looked_at(
    memory_engine: RAGCacheEngine, monkeypatch: pytest.MonkeyPatch
):
    looks: list[int] = []
    snapshot = memory_engine._runtime.snapshot
    monkeypatch.setattr(
        memory_engine._runtime, "snapshot", lambda size: looks.append(size) or snapshot(size)
    )
    passed = [0.0]

    def observe_anew() -> EngineObserver:
        now = lambda: time.monotonic() + passed[0]  # noqa: E731
        return EngineObserver("an engine", memory_engine._runtime, now=now)

    observer, other = observe_anew(), observe_anew()

    def look(observer: EngineObserver = observer) -> tuple[str, ...]:
        tree = observer.observe(with_tree=True).tree
        assert tree is not None
        return tuple(name for each in tree.documents for name in each.documents)

    memory_engine.generate(f"{TIDES.text}\n\nWhy?", [TIDES])
    assert [look() for _ in range(5)] == [("tides",)] * 5
    assert len(looks) == 1
    memory_engine.forget(["tides"])
    assert look() == ("tides",)
    passed[0] += REST_S
    assert look() == ()
    assert len(looks) == 2
    memory_engine.generate(f"{TIDES.text}\n\nWhy?", [TIDES])
    assert look() == ()
    passed[0] += REST_S
    assert look() == ("tides",)
    passed[0] += IDLE_LOOK_S
    look()
    assert len(looks) == 4
    for _ in range(5):  # a second observer looks once: neither takes the other's look for a change
        assert look(other) == look() == ("tides",)
    assert len(looks) == 5


def test_questions_and_texts_are_seen_where_they_may_be(memory_engine: RAGCacheEngine):
    memory_engine.generate(f"{TIDES.text}\n\nWhy is it so?", [TIDES])
    observer = observer_of(memory_engine, texts=lambda: {"tides": TIDES.text, "salt": "unseen"})
    seen = observer.observe(with_tree=True)
    assert "is it so?" in seen.requests[-1].question
    assert list(seen.texts) == ["tides"]
    assert TIDES.text.startswith(seen.texts["tides"])
    assert len(seen.texts["tides"]) < len(TIDES.text)


def test_a_dead_model_is_a_problem_and_a_closed_engine_is_the_end(
    engine_on: Callable[..., RAGCacheEngine],
):
    def die(step: int) -> None:
        raise EngineDied("it ran out of memory")

    engine = engine_on(MemoryBackend(fault=die))
    with pytest.raises(EngineDied):
        engine.generate("Why?")
    seen = observer_of(engine).observe(with_tree=True)
    assert "out of memory" in seen.problem
    assert seen.tree is None
    engine.close()
    with pytest.raises(EngineClosed):
        observer_of(engine).observe(with_tree=False)


def test_the_metrics_of_an_embedding_program_can_be_watched_too(memory_engine: RAGCacheEngine):
    registry = CollectorRegistry()
    registry.register(memory_engine.collector())
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        for question in ("Why?", "When?"):
            memory_engine.generate(f"{TIDES.text}\n\n{question}", [TIDES])
        seen = ServerObserver(f"http://127.0.0.1:{server.server_port}/").observe(with_tree=True)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    told = memory_engine.stats()
    assert seen.problem == ""
    assert seen.counters.device_tokens == told.tiers.device_tokens > 0
    assert seen.counters.computed_tokens == told.tiers.computed_tokens
    assert seen.counters.held == told.tiers.held
    assert seen.counters.disk == told.tiers.disk
    assert (seen.finished, seen.failed, seen.running, seen.waiting) == (2, 0, 0, None)


class _Strange(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>a page of something else</html>")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def strange_server() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Strange)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_of_something_else_is_a_problem(strange_server: str):
    seen = ServerObserver(strange_server, "key").observe(with_tree=True)
    assert "/metrics cannot be read" in seen.problem
    assert seen.counters.ended == 0


def test_a_server_that_is_gone_is_a_problem():
    seen = ServerObserver("http://127.0.0.1:9").observe(with_tree=True)
    assert "cannot be read" in seen.problem


def test_an_adopted_guess_shows_the_prefill_where_it_ran():
    def event(at_s: float, step: SpeculationStep, detail: str = "") -> SpeculationEvent:
        return SpeculationEvent(at_s, step, detail)

    step = SpeculationStep
    timeline = (
        event(0.1, step.STAGE, "a"),
        event(0.1, step.STARTED),
        event(0.2, step.STAGE, "final: a"),
        event(0.25, step.PROMPT),
        event(0.25, step.ADOPTED),
        event(0.4, step.FIRST_TOKEN),
    )
    usage = Usage(
        100,
        5,
        CachedTokens(),
        ttft_s=0.4,
        total_s=0.9,
        retrieval_s=0.25,
        speculation=SpeculationReport(SpeculationOutcome.ADOPTED, timeline),
    )
    phases = {phase.kind: (phase.start_s, phase.end_s) for phase in phases_of(usage)}
    assert phases == {
        "search": (0.0, 0.25),
        "guess": (0.1, 0.25),
        "prefill": (0.1, 0.4),
        "answer": (0.4, 0.9),
    }


def test_without_a_retrieval_there_is_no_search():
    usage = Usage(100, 5, CachedTokens(), ttft_s=0.4, total_s=0.9)
    assert [phase.kind for phase in phases_of(usage)] == ["prefill", "answer"]
