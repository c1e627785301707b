"""Grades an answer by the accepted ones, in the way of SQuAD's evaluation.

Texts are compared in lower case, without articles and without ASCII punctuation; any other sign that is
no letter or digit parts words. Source: Rajpurkar et al., SQuAD (2016), section 6.1.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NO_WORD = re.compile(r"[^\w\s]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def is_right(answer: str, accepted: Iterable[str]) -> bool:
    """Return whether the answer contains an accepted one, whole words only."""
    said = f" {_normalised(answer)} "
    return any(bare and f" {bare} " in said for bare in map(_normalised, accepted))


def token_f1(answer: str, accepted: Iterable[str]) -> float:
    """Return the F1 of the words shared with the nearest accepted answer, 0 to 1."""
    said = _normalised(answer).split()
    return max((_f1(said, _normalised(one).split()) for one in accepted), default=0.0)


def _f1(said: list[str], wanted: list[str]) -> float:
    shared = (Counter(said) & Counter(wanted)).total()
    return 2 * shared / (len(said) + len(wanted)) if shared else 0.0


def _normalised(text: str) -> str:
    bare = _NO_WORD.sub(" ", text.lower().translate(_PUNCTUATION))
    return " ".join(_ARTICLES.sub(" ", bare).split())
