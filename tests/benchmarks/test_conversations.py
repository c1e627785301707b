"""benchmarks/conversations.py: what a chat computes again, and what borrowing its turns does."""

from __future__ import annotations

import conversations
import pytest
from conversations import Turn, answers_report, count, count_report, play, read_conversations
from question_files import Asked

from ragcache_engine import Document, EngineConfig, MemoryBackend, RAGCacheEngine

PASSAGES = [
    Document(f"sea-{n}", f"The sea has tides and salt, says page {n}. " * 9) for n in range(9)
]
TURNS = [
    Turn(f"What does page {n} say of the tides?", PASSAGES[n : n + 2], ["tides"])
    for n in range(conversations.TURNS)
]


@pytest.fixture
def engine():
    config = EngineConfig(backend="memory", reuse="anywhere", donors="any", recompute_ratio=0.0)
    answering = MemoryBackend(
        lambda _: "It has tides and salt.", recompute_ratio=0.0, any_donors=True
    )
    with RAGCacheEngine(config, backend=answering) as made:
        yield made


def test_a_conversation_is_the_first_questions_about_one_article():
    def asked(gold: str) -> Asked:
        row = {"doc_id": gold, "text": "A passage."}
        return Asked({"query": "Why?", "answers": ["So"], "gold_doc_ids": [gold]}, [row])

    many = [asked("a"), asked("b")] * conversations.TURNS + [asked("b"), asked("few")]
    found = read_conversations(many, {"a": "sea", "b": "moon", "few": "wind"})
    assert [len(turns) for turns in found] == [conversations.TURNS] * 2


def test_what_was_found_in_an_earlier_turn_is_counted_as_found_again(engine: RAGCacheEngine):
    rows = count(engine, TURNS)
    assert [row["again"] for row in rows] == [0] + [1] * 7
    assert rows[0]["history"] == 0 < rows[1]["history"] < rows[7]["history"] < rows[7]["prompt"]
    assert rows[7]["whole"] > rows[7]["prompt"]
    assert "| 8 |" in "\n".join(count_report([rows, rows]))


def test_turns_are_borrowed_once_they_stood_in_an_earlier_prompt(engine: RAGCacheEngine):
    rows = play(engine, TURNS, "anna", 0.0)
    exact = [row for row in rows if row["ratio"] is None]
    assert [row["turn"] for row in exact] == [*range(len(TURNS))]
    assert not any(row["borrowed"] for row in exact)
    borrowed = [row["borrowed"] for row in rows if row["ratio"] == 0.0]
    told = len(engine.tokenize(TURNS[0].told("It has tides and salt.")))
    assert [round(tokens / told) for tokens in borrowed] == [1, 2, 3, 4, 5, 6]
    lines = "\n".join(answers_report([{"conversation": 0, **row} for row in rows]))
    assert "| exact | 6 | 1.000 |" in lines
