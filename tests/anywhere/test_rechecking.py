"""A share of approximate answers is computed once more in idle time, and drift ends the borrowing."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragcache_engine import (
    Document,
    DocumentReuse,
    EngineConfig,
    MemoryBackend,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_engine.anywhere.calibration import Calibration, CalibrationKey
from ragcache_engine.anywhere.rechecking import RecheckingBackend
from ragcache_engine.protocols import BackendRequest, Delta
from ragcache_engine.tiers.provenance import ReuseReport

TIDES = Document("tides", "The moon pulls the oceans. " * 9)
SALT = Document("salt", "Rivers bring the salt. " * 9)
PROMPT = f"{TIDES.text}\n\n{SALT.text}\n\nWhy?"
REUSE = ReuseReport((DocumentReuse("tides", 50, None), DocumentReuse("salt", 50, None, 45, 5)))
TEN = SamplingOptions(max_tokens=10)


class Approximate(MemoryBackend):
    """Borrows in every request that may, and then answers with other words if `drifts`."""

    def __init__(self, *, drifts: bool = False) -> None:
        super().__init__(lambda prompt: "the moon and the sun")
        self.borrows = True
        self.drifts = drifts
        self.is_slow = False
        self.is_held = False
        self.rechecks: list[BackendRequest] = []
        self.ended: list[str] = []

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        if "recheck" in request.request_id:
            self.rechecks.append(request)
        try:
            if self.is_slow and "recheck" in request.request_id:
                await asyncio.sleep(3600)
            if self.is_held and "hold" in request.prompt.text:
                await asyncio.sleep(3600)
            async with aclosing(super().generate(request)) as deltas:
                async for delta in deltas:
                    if not request.is_exact and len(request.segments) > 2:
                        text = " else" if self.drifts else delta.text
                        reuse = REUSE if delta.finish_reason else None
                        delta = replace(delta, text=text, reuse=reuse)
                    yield delta
        finally:
            self.ended.append(request.request_id)


@pytest.fixture(autouse=True)
def _idle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = RecheckingBackend.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "idle_s", 0.0)


@pytest.fixture
def engine_of() -> Iterator[Callable[..., RAGCacheEngine]]:
    engines: list[RAGCacheEngine] = []

    def make(backend: MemoryBackend, **settings: Any) -> RAGCacheEngine:
        settings = {"recheck_share": 1.0, "recompute_ratio": 0.1, **settings}
        config = EngineConfig(model="any", reuse="anywhere", **settings)
        engines.append(RAGCacheEngine(config, backend=backend))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def ask(engine: RAGCacheEngine, options: SamplingOptions = TEN, **how: Any) -> Any:
    return engine.generate(PROMPT, [TIDES, SALT], options, **how)


def rechecked(engine: RAGCacheEngine, count: int) -> bool:
    return eventually(lambda: engine.stats().rechecked == count)


def test_an_approximate_answer_is_compared_with_the_exact_one(engine_of):
    backend = Approximate()
    engine = engine_of(backend)
    assert not ask(engine).usage.is_exact
    assert rechecked(engine, 1)
    assert engine.stats().drift == 0
    (recheck,) = backend.rechecks
    assert recheck.is_exact
    assert recheck.is_guess, "it must count as no use of its documents"


def test_a_recheck_is_no_request_in_the_statistics(engine_of):
    engine = engine_of(Approximate())
    ask(engine)
    assert rechecked(engine, 1)
    assert (engine.stats().finished, engine.stats().running) == (1, 0)


@pytest.mark.parametrize(
    ("options", "how"),
    [
        (TEN, {"exact": True}),
        (TEN, {"recompute_ratio": 0.5}),
        (SamplingOptions(max_tokens=10, temperature=1.0, seed=1), {}),
    ],
)
def test_only_greedy_answers_at_the_engines_own_ratio_are_rechecked(engine_of, options, how):
    engine = engine_of(Approximate())
    ask(engine, options, **how)
    ask(engine)
    assert rechecked(engine, 1)
    time.sleep(0.3)
    assert engine.stats().rechecked == 1


def test_a_share_of_none_rechecks_nothing(engine_of):
    backend = Approximate()
    engine = engine_of(backend, recheck_share=0)
    ask(engine)
    time.sleep(0.3)
    assert not backend.rechecks
    assert engine.stats().drift is None


def test_a_request_ends_the_recheck_which_comes_again_later(engine_of):
    backend = Approximate()
    engine = engine_of(backend)
    backend.is_slow = True
    ask(engine)
    assert eventually(lambda: len(backend.rechecks) == 1)
    ask(engine, exact=True)
    assert eventually(lambda: backend.rechecks[0].request_id in backend.ended)
    backend.is_slow = False
    ask(engine, exact=True)
    assert rechecked(engine, 1)


def test_no_recheck_runs_beside_a_request(engine_of):
    backend = Approximate()
    engine = engine_of(backend)
    backend.is_held = True
    with engine.stream("hold the line"):
        ask(engine)
        time.sleep(0.3)
        assert not backend.rechecks
    assert rechecked(engine, 1)


ENOUGH = 12
"""Answers that have nothing in common with exact ones, until that cannot be chance."""


def drift_away(engine: RAGCacheEngine) -> None:
    for number in range(1, ENOUGH + 1):
        ask(engine)
        assert rechecked(engine, number)


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measured ratio, at which answers are nearly as alike as two exact runs."""
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    key = CalibrationKey.of(EngineConfig(model="any", reuse="anywhere"))
    key.path.parent.mkdir()
    key.path.write_text(Calibration(key, 0.1, 0.97, 0.96, 0.98, 0.95, 50).to_json())


@pytest.mark.usefixtures("calibrated")
def test_drift_switches_borrowing_off_and_says_so(engine_of, caplog: pytest.LogCaptureFixture):
    backend = Approximate(drifts=True)
    engine = engine_of(backend, recompute_ratio=None)
    with caplog.at_level(logging.WARNING, "ragcache_engine"):
        drift_away(engine)
    assert caplog.text.count("Borrowing is switched off") == 1
    stats = engine.stats()
    assert stats.is_switched_off
    assert stats.drift == 1
    answer = ask(engine)
    assert answer.usage.is_exact
    assert answer.usage.why_exact == "switched off: answers drifted"
    assert answer.text.strip() == "the moon and the sun"
    lines = engine.metrics().splitlines()
    assert "ragcache_borrowing_switched_off 1.0" in lines
    assert "ragcache_recheck_likeness_ratio 0.0" in lines
    assert f"ragcache_rechecked_answers_total {ENOUGH}.0" in lines
    assert "switched off: answers drifted" in str(stats)


def test_a_ratio_that_nobody_measured_is_reported_and_never_switched_off(engine_of):
    engine = engine_of(Approximate(drifts=True))
    drift_away(engine)
    stats = engine.stats()
    assert (stats.rechecked, stats.drift) == (ENOUGH, 1)
    assert not stats.is_switched_off
    assert not ask(engine).usage.is_exact


def test_before_the_first_recheck_there_is_no_likeness_to_export(engine_of):
    told = engine_of(Approximate()).metrics()
    assert "ragcache_borrowing_switched_off 0.0" in told
    assert "ragcache_recheck_likeness_ratio" not in told


@pytest.mark.usefixtures("calibrated")
def test_answers_that_stay_alike_keep_borrowing(engine_of):
    engine = engine_of(Approximate(), recompute_ratio=None)
    drift_away(engine)
    assert not engine.stats().is_switched_off
    assert not ask(engine).usage.is_exact


def test_forgotten_documents_are_not_brought_back(engine_of):
    backend = Approximate()
    engine = engine_of(backend)
    backend.is_slow = True
    ask(engine)
    assert eventually(lambda: len(backend.rechecks) == 1)
    engine.forget(["salt"])
    backend.is_slow = False
    engine.generate("Why?")
    time.sleep(0.5)
    assert engine.stats().rechecked == 0


class Unended(Approximate):
    """Gives no answer that somebody asked for its end before `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.go_on = threading.Event(), threading.Event()

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        async with aclosing(super().generate(request)) as deltas:
            async for delta in deltas:
                if delta.finish_reason and "recheck" not in request.request_id:
                    self.has_begun.set()
                    await asyncio.to_thread(self.go_on.wait, 30)
                yield delta


def test_what_is_forgotten_while_it_is_asked_is_not_rechecked(engine_of):
    backend = Unended()
    engine = engine_of(backend)
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(ask, engine)
        assert backend.has_begun.wait(30)
        engine.forget(["salt"])
        backend.go_on.set()
        asked.result()
    time.sleep(0.2)
    assert not backend.rechecks
    ask(engine)
    assert eventually(lambda: len(backend.rechecks) == 1), "what comes afterwards is rechecked"


def test_the_cache_can_be_cleared_and_the_engine_closed_during_a_recheck(engine_of):
    backend = Approximate()
    engine = engine_of(backend)
    backend.is_slow = True
    ask(engine)
    assert eventually(lambda: len(backend.rechecks) == 1)
    engine.clear_cache()
    assert eventually(lambda: len(backend.rechecks) == 2)
    engine.close()
    assert len(backend.ended) == 3


def test_a_recheck_that_fails_disturbs_nobody(engine_of, monkeypatch: pytest.MonkeyPatch):
    backend = Approximate()
    engine = engine_of(backend)
    failed: list[str] = []

    def fail(self: Approximate, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        if "recheck" in request.request_id and not failed:
            failed.append(request.request_id)
            raise RuntimeError("no")
        return generate(self, request)

    generate = Approximate.generate
    monkeypatch.setattr(Approximate, "generate", fail)
    ask(engine)
    assert eventually(lambda: bool(failed))
    ask(engine)
    assert rechecked(engine, 1)


def test_an_adopted_guess_is_rechecked_like_any_answer(engine_of):
    backend = Approximate()
    engine = engine_of(backend, speculation="on")

    def template(question: str, documents: Any) -> str:
        return f"{documents[0].text}\n\n{documents[1].text}\n\n{question}"

    with engine.retrieval("Why?", template=template, options=TEN) as retrieval:
        retrieval.found([TIDES, SALT])
        assert eventually(lambda: engine.stats().speculation.started == 1)
    answer = engine.generate(PROMPT, options=TEN)
    assert answer.usage.speculation.outcome == "adopted"
    assert rechecked(engine, 1)
