"""Clients that know nothing of us: what is read from servers, and what the report says."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import any_client
import httpx2
import pytest
import recognition
from any_client import COMPUTED, RECOGNISED, REPORT, Row, Server, read_rows, report
from programs import keep

METRICS = """# HELP ragcache_prompt_tokens Prompt tokens.
ragcache_prompt_tokens_total{source="device"} 40.0
ragcache_prompt_tokens_total{source="computed"} 60.0
ragcache_recognised_documents_total 5.0
vllm:prompt_tokens_total{engine="0",model_name="smol"} 90.0
vllm:prompt_tokens_total{engine="1",model_name="smol"} 10.0
vllm:prefix_cache_hits_total{engine="0"} 3e+01
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    def get(url: str, **how: Any) -> httpx2.Response:
        return httpx2.Response(200, text=METRICS)

    monkeypatch.setattr(any_client.httpx2, "get", get)
    return Server("any", "http://localhost")


def test_metrics_are_summed_over_labels_but_by_source(server: Server):
    figures = server.figures()
    assert (figures[COMPUTED], figures[RECOGNISED]) == (60, 5)
    assert figures["vllm:prompt_tokens_total"] == 100


def test_tokens_are_those_that_ours_counts_as_computed_and_of_vllm_all_that_hit_nothing(
    server: Server,
):
    ours = server.figures()
    assert server.computed({}, ours) == 60
    of_vllm = {name: value for name, value in ours.items() if name.startswith("vllm")}
    assert server.computed({"vllm:prompt_tokens_total": 20}, of_vllm) == 50


def test_the_report_pairs_each_server_with_vllm_and_counts_equal_answers():
    rows = [
        Row("c", "vLLM", [0.4, 0.6], ["a", "b"], 100, 0),
        Row("c", "RAGCache, exact", [0.4, 0.3], ["a", "x"], 80, 10),
    ]
    lines = [*report(rows, 5)]
    assert (
        "| c | RAGCache, exact | 350 (325 to 375) | 1.50 (1.25 to 1.75) | 80 | 10 of 10 |" in lines
    )
    assert lines[-1] == "c: 1 of 2 exact answers are vLLM's to the letter."


def test_finding_documents_is_measured_with_all_of_them_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(recognition, "REPEATS", 2)
    monkeypatch.setattr(recognition, "ALIKE", 50)
    monkeypatch.setattr(recognition, "LONG", 20_000)
    monkeypatch.setattr("sys.argv", ["recognition.py", "--documents", "200"])
    recognition.main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    found = {row[1]: row[2] for row in rows}
    assert found["20 of them"] == "20"
    assert found["none of them"] == found["near-misses"] == found["1 MB of what they share"] == "0"


def test_a_run_that_is_started_again_knows_what_was_finished(tmp_path: Path):
    rows = [Row("openai (Python)", "vLLM", [0.5], ["yes"], 12.0, 0.0)]
    assert read_rows(None) == read_rows(tmp_path) == []
    keep(tmp_path, REPORT, ["a line"], [asdict(row) for row in rows])
    assert read_rows(tmp_path) == rows
