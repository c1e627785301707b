"""ROUGE-L: how alike two texts are, by the longest sequence of words that both have in this order.

As the package rouge-score computes it without stemming, with two differences: words of every script
count, each Chinese, Japanese and Korean character as a word; and two texts without words are alike.
That package would bring nltk, absl and numpy along.
Source: Lin, ROUGE: A Package for Automatic Evaluation of Summaries (2004), section 3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def rouge_l(answer: str, reference: str) -> float:
    """Return the F1 of the longest common subsequence of words, 0 to 1; it is the same both ways."""
    mine, theirs = _WORDS.findall(answer.lower()), _WORDS.findall(reference.lower())
    if mine == theirs:
        return 1.0
    return 2 * _count_common(mine, theirs) / (len(mine) + len(theirs))


def _count_common(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, with one bit for each word of `left`.

    Each row of the usual table is one integer, so that long answers take milliseconds.
    Source: Hyyrö, Bit-Parallel LCS-length Computation Revisited (2004).
    """
    places: dict[str, int] = {}
    for at, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << at
    every = (1 << len(left)) - 1
    row = every
    for word in right:
        matches = row & places.get(word, 0)
        row = ((row + matches) | (row - matches)) & every
    return len(left) - row.bit_count()
