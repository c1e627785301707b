"""Pages of made-up words, and prompts that number them as chains do."""

from __future__ import annotations

import random

DICE = random.Random(1)
WORDS = ["".join(DICE.choices("abcdefghijklmnop", k=DICE.randint(3, 9))) for _ in range(3000)]


def page(words: int = 120) -> str:
    """Return a text of so many words, which is no other one's."""
    return " ".join(DICE.choice(WORDS) for _ in range(words)) + "."


PAGES = [page() for _ in range(8)]


def numbered(*pages: str, question: str = "Why?") -> str:
    """Return a prompt with these pages, each behind its number."""
    texts = "\n\n".join(f"[{rank}] {text}" for rank, text in enumerate(pages, 1))
    return f"Answer from these texts.\n\n{texts}\n\nQuestion: {question}"
