"""benchmarks/during_retrieval.py: a simulated GPU that takes real time, and the table of all cells."""

from __future__ import annotations

import argparse
import json
import random
import threading
from pathlib import Path

import pytest

pytest.importorskip("faiss")
from during_retrieval import GRID, LONGEST_PART_S, _arrivals, report, write_table
from prompt_sets import Question
from virtual.accelerator import Accelerator, OwedClock

from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SamplingOptions

TIDES = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 60)
TOKENS = (4096, 0, 0)


def test_the_clock_is_ahead_by_what_the_model_has_computed_until_that_is_slept():
    clock = OwedClock()
    before = clock.now()
    clock.run_model(10.0)
    assert clock.now() >= before + 10
    clock.wait_until(before + 60)
    assert clock.pay() >= 49
    assert clock.pay() == 0.0


def test_an_answer_takes_the_time_that_the_gpu_would():
    backend = Accelerator("a10g", TOKENS, None)
    with RAGCacheEngine(EngineConfig(model="any", backend="memory"), backend=backend) as engine:
        one = SamplingOptions(max_tokens=1)
        first = engine.generate(f"{TIDES.text}\n\nWhy?", [TIDES], options=one).usage
        again = engine.generate(f"{TIDES.text}\n\nWhen?", [TIDES], options=one).usage
    step_s = backend._prefill_s(0, first.prompt_tokens)
    assert first.ttft_s >= step_s > 0.1
    assert again.cached.total > 0.9 * again.prompt_tokens


def test_a_step_goes_on_though_its_request_was_given_up():
    backend = Accelerator("a10g", TOKENS, None)
    with RAGCacheEngine(EngineConfig(model="any", backend="memory"), backend=backend) as engine:
        stream = engine.stream(f"{TIDES.text}\n\nWhy?", [TIDES])
        threading.Timer(0.05, stream.close).start()
        assert engine.generate("Another prompt").text


def test_every_cell_has_a_line_with_its_ratios(tmp_path: Path):
    for search, gain in ((50, 0.5), (100, 1.0)):
        rows = [
            {"mode": mode, "ttft_s": 0.2 * (1 if mode == "off" else gain)}
            for _ in range(4)
            for mode in ("off", "on", "auto")
        ]
        asked = {
            "on": "h100",
            "reuse": "prefix",
            "tier": "cold",
            "search_ms": search,
            "rerank_ms": 0,
            "load": 0.0,
        }
        (tmp_path / f"{search}.json").write_text(json.dumps({"asked": asked, "rows": rows}))
    lines = [line for line in write_table(tmp_path) if "h100" in line]
    assert len(lines) == 2
    assert any("| 50 |" in line and "0.50 (0.50 to 0.50)" in line for line in lines)


def test_a_report_tells_every_mode():
    rows = [
        {
            "mode": mode,
            "ttft_s": 0.2,
            "late_s": late_s,
            "prompt_tokens": 10,
            "computed": 5,
            "borrowed": 0,
        }
        for mode in ("off", "auto")
        for late_s in (0.01, 0.02, 0.3)
    ]
    text = report(rows, ["off", "auto"])
    assert (text.count("0.50"), text.count("20, 300")) == (2, 2)


def arrivals(streamed: str, number: int) -> list[tuple[float, list[str]]]:
    pages = [Document(f"d{at}", f"page {at}") for at in range(10)]
    asked = argparse.Namespace(streamed=streamed)
    question = Question("Why?", [], pages)
    found = _arrivals(pages[:5], question, asked, random.Random(number))
    return [(wait_s, [one.id for one in documents]) for wait_s, documents in found]


def test_a_crawlers_pages_come_one_after_the_other():
    assert [documents for _, documents in arrivals("append", 1)] == [
        [f"d{at}" for at in range(count)] for count in range(1, 6)
    ]


@pytest.mark.parametrize("number", range(20))
def test_the_parts_of_a_search_end_with_what_was_chosen(number: int):
    parts = arrivals("update", number)
    assert 1 <= len(parts) <= 26
    assert parts[-1][1] == ["d0", "d1", "d2", "d3", "d4"]
    assert all(0 < wait_s <= LONGEST_PART_S for wait_s, _ in parts)
    assert arrivals("update", number) == parts, "the same for every engine"


def test_no_cell_is_there_twice():
    assert len(set(GRID)) == len(GRID)
