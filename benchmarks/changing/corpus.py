"""Documents about numbered topics, questions about them, and vectors that keep topics apart.

Nothing here is random: equal arguments give equal texts and vectors in every process.
"""

from __future__ import annotations

import re
from hashlib import sha256
from random import Random

TOP_K = 3
"""How many documents a question gets. Every topic always has more, so topics do not mix."""
QUESTIONS = 5
"""How many questions there are about each topic."""
DIMENSIONS = 64
WORDS = ("moon", "tide", "sky", "light", "bread", "yeast", "ice", "steel", "glass", "bee", "salt")


def write_text(topic: int, number: int, version: int) -> str:
    """Write a document of some 60 words that begins in a way of its own."""
    draw = Random(f"{topic} {number} {version}")
    filler = " ".join(draw.choices(WORDS, k=50))
    return f"{topic}.{number}.{version} is what is known about topic-{topic}: {filler}."


def write_question(topic: int, number: int) -> str:
    return f"What is known about topic-{topic}, asked in way {number}?"


def topic_of(text: str) -> int:
    found = re.search(r"topic-(\d+)", text)
    assert found, f"a text without a topic: {text[:80]!r}"
    return int(found[1])


def embed(text: str) -> list[float]:
    """Return a vector near to those of its topic; no two texts are equally near to a question."""
    draw = Random(sha256(text.encode()).digest())
    vector = [draw.gauss(0, 1) for _ in range(DIMENSIONS)]
    vector[topic_of(text) % DIMENSIONS] += 40.0
    return vector
