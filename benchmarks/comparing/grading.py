"""Tells whether an answer contains the accepted one."""

from __future__ import annotations

import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Bring a text into the form of SQuAD's evaluation: lower case, no punctuation, no articles."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def contained(answer: str, gold: str) -> bool:
    """Return whether the answer contains the accepted one, whole words only."""
    return bool(normalised(gold)) and f" {normalised(gold)} " in f" {normalised(answer)} "
