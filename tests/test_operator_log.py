"""One line for each event that an operator cares for, and silence unless somebody listens."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable

import pytest

from ragcache_engine import Document, EngineDied, RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend

TIDES = Document("tides", "The moon pulls the oceans and the tides follow it " * 9)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("ragcache_engine")
    ]


def test_an_engines_life_is_told_in_a_few_lines(
    engine_on: Callable[..., RAGCacheEngine], caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.INFO, "ragcache_engine"):
        engine = engine_on(MemoryBackend(device_blocks=64))
        for _ in range(5):
            engine.generate(f"{TIDES.text}\n\nWhy?", [TIDES])
        engine.forget(["tides", "salt"])
        engine.clear_cache()
        engine.close()
    said = lines(caplog)
    assert len(said) == 4, "one line an event, and none for a request"
    assert "64 blocks of 16 tokens" in said[0]
    assert said[1:3] == ["2 documents were forgotten", "device and host were cleared"]
    assert said[3] == "the engine closes: 5 requests finished, 0 failed, 0 restarts"


def test_a_restart_is_told_with_its_cause_and_its_end(
    engine_on: Callable[..., RAGCacheEngine], caplog: pytest.LogCaptureFixture
):
    died = []

    def die_once(step: int) -> None:
        if not died:
            died.append(step)
            raise EngineDied("it ran out of memory")

    engine = engine_on(MemoryBackend(fault=die_once))
    engine.generate("Why?")
    assert engine.stats().restarts == 1
    warnings = [
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    ]
    assert warnings == [
        "it ran out of memory; starting it once more",
        "the model runs again, after 1 restarts in all",
    ]


def test_nothing_is_printed_unless_somebody_listens():
    script = (
        "from ragcache_engine import EngineConfig, RAGCacheEngine\n"
        "with RAGCacheEngine(EngineConfig(backend='memory')) as engine:\n"
        "    engine.generate('Why?'); engine.forget(['a'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
