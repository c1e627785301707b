"""benchmarks/anywhere.py: what borrowing does to right answers, in pieces that add up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("faiss")

import anywhere
from anywhere import ANY, Settings, Way, measure, read, report
from prompt_sets import Question
from word_bags import WordBags

from ragcache_cli import embedding
from ragcache_engine import Document, EngineConfig, MemoryBackend, RAGCacheEngine

CORPUS = [
    Document(f"{name}-{page}", f"What page {page} tells about {name}. " * 20)
    for name in ("tides", "salt", "wind")
    for page in range(3)
]
QUESTIONS = [
    Question(f"Why {at}?", ["moon"], [CORPUS[at], *CORPUS[at + 3 : at + 6]]) for at in range(3)
]
PREPARED = [Way(), Way("alone", 0.0), Way("neighbours", 0.1), Way("two neighbours", 0.1)]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let engines have no model; return the prompts they are given."""
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "The moon does."

    def start(config: EngineConfig) -> RAGCacheEngine:
        plain = config.model_copy(update={"backend": "memory"})
        return RAGCacheEngine(plain, backend=MemoryBackend(answer, recompute_ratio=0.0))

    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(embedding, "load_embedder", WordBags)
    monkeypatch.setattr(anywhere, "RAGCacheEngine", start)
    return prompts


def run(
    path: Path,
    ways: list[Way],
    count: int = 3,
    deadline: float = math.inf,
    at_once: bool = False,
) -> list[Any]:
    path.touch()
    settings = Settings("org/model", "float32", deadline, at_once)
    measure("squad", CORPUS, QUESTIONS[:count], ways, settings, path)
    return [(row["question"], anywhere.way_of(row)) for row in read(path)]


def test_each_question_is_answered_in_each_way_however_often_the_run_is_broken(
    tmp_path: Path, asked: list[str]
):
    path = tmp_path / "rows.jsonl"
    assert run(path, PREPARED, deadline=-math.inf) == []
    run(path, PREPARED[:2], count=1)
    run(path, PREPARED, count=2)
    rows = run(path, PREPARED)
    assert sorted(rows, key=str) == sorted(((n, w) for n in range(3) for w in PREPARED), key=str)
    answers = len(asked)
    assert run(path, PREPARED) == rows
    assert len(asked) == answers


def test_ratios_that_are_asked_at_once_give_the_same_rows_without_times(
    tmp_path: Path, asked: list[str]
):
    ways = [*PREPARED[:2], Way("alone", 0.1), Way("neighbours", 0.0), Way("neighbours", 0.1)]
    one_by_one, at_once = tmp_path / "one.jsonl", tmp_path / "all.jsonl"
    run(one_by_one, ways)
    run(at_once, ways, at_once=True)
    timeless = [{**row, "ttft_s": None} for row in read(one_by_one)]
    assert sorted(read(at_once), key=str) == sorted(timeless, key=str)
    assert "| - |" in report(read(at_once))


def test_donors_are_there_before_a_question_is_asked_which_is_asked_once_a_way(
    tmp_path: Path, asked: list[str]
):
    path = tmp_path / "rows.jsonl"
    run(path, PREPARED)
    assert [asked.count(one.prompt) for one in QUESTIONS] == [len(PREPARED)] * len(QUESTIONS)
    borrowed = {anywhere.way_of(row): row["borrowed"] for row in read(path) if not row["question"]}
    assert borrowed[PREPARED[0]] == 0
    assert all(borrowed[way] > 0 for way in PREPARED[1:])


def test_after_a_break_any_has_what_its_earlier_questions_left(tmp_path: Path, asked: list[str]):
    path = tmp_path / "rows.jsonl"
    run(path, [Way(ANY)], count=2)
    del asked[:]
    run(path, [Way(ANY)])
    questions = [one.prompt for one in QUESTIONS]
    assert [prompt for prompt in asked if prompt in questions] == questions


def row(number: int, donors: str | None, text: str, name: str = "squad") -> dict[str, Any]:
    return {
        "set": name,
        "question": number,
        "donors": donors,
        "ratio": 0.1 if donors else 0.0,
        "accepted": ["the Moon"],
        "text": text,
        "token_ids": [ord(one) for one in text],
        "ttft_s": 0.1 if donors else 0.4,
        "prompt_tokens": 100,
        "cached": 20,
        "borrowed": 60 if donors else 0,
    }


def cells(text: str, name: str, way: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {name} | {way} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][2:]


def test_right_answers_are_shares_of_all_questions_beside_the_exact_ones_in_pairs():
    rows = [row(n, None, "moon" if n < 10 else "sun") for n in range(20)]
    rows += [row(n, "neighbours", "moon" if 2 <= n < 11 else "sun") for n in range(20)]
    count, right, less, f1, _, rouge, equal, reused, sooner = cells(
        report(rows), "squad", "neighbours, 0.1"
    )
    assert (count, right, f1, equal, reused, sooner) == (
        "20",
        "0.450",
        "0.450",
        "0.85",
        "0.80",
        "4.0",
    )
    difference, low, _, high = less.strip("()").replace("(", "").split()
    assert float(low) < float(difference) == -0.05 < float(high)
    assert rouge.startswith("0.850")
    assert cells(report(rows), "squad", "exact")[1:3] == ["0.500", "+0.000 (+0.000 to +0.000)"]


def test_sets_are_also_counted_together():
    rows = [row(0, donors, "moon") for donors in (None, "alone")]
    rows += [row(0, donors, "sun", "nq_open") for donors in (None, "alone")]
    assert cells(report(rows), "all", "alone, 0.1")[:2] == ["2", "0.500"]
    assert " all " not in report(rows[:2])
