"""Find which texts may stand in a prompt, without a search for each of them.

A few words from the inside of a text are its landmarks. They stand whole in every prompt that contains
the text, be it exact, with trimmed ends or as written in a JSON string; see `find_documents`. So a prompt
that lacks one of them does not contain the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

MOST_LANDMARKS = 8
LANDMARK_CHARACTERS = 400
"""Landmarks come from so many characters in the middle of a text: the ends of many texts are the same."""

_WORD = re.compile(r"\w+")
_INNER_WORD = re.compile(r"(?<=\W)\w+(?=\W)")

Landmarks = tuple[str, ...]
"""Words, the longest first. Empty if nothing can be said about the text: it may stand in any prompt."""


def words_of(prompt: str) -> frozenset[str]:
    """Return the words of a prompt: what landmarks are looked up in."""
    return frozenset(_WORD.findall(prompt))


def landmarks_of(text: str) -> Landmarks:
    """Choose the landmarks of a text. Long words are the rarest, so they rule out most prompts."""
    trimmed = text.strip()
    begin = max(0, (len(trimmed) - LANDMARK_CHARACTERS) // 2)
    middle = trimmed[begin : begin + LANDMARK_CHARACTERS]
    # Only words with an end on both sides: one at the edge of the text may go on in the prompt.
    words = set(_INNER_WORD.findall(middle))
    in_json = json.dumps(middle, ensure_ascii=False)[1:-1]
    if in_json != middle:
        words.intersection_update(_INNER_WORD.findall(in_json))
    return tuple(sorted(words, key=lambda word: (-len(word), word))[:MOST_LANDMARKS])


class LandmarkIndex:
    """Tell by the words of a prompt which of many numbered collections of texts it may contain."""

    def __init__(self) -> None:
        self._with_word: dict[str, set[int]] = {}
        self._without_landmarks: set[int] = set()

    def add(self, number: int, texts: Collection[Landmarks]) -> None:
        """Add a collection of texts, given by their landmarks. `number` is not in the index yet."""
        for landmarks in texts:
            if landmarks:
                self._with_word.setdefault(landmarks[0], set()).add(number)
            else:
                self._without_landmarks.add(number)

    def remove(self, number: int, texts: Collection[Landmarks]) -> None:
        """Remove a collection that was added with the same texts."""
        self._without_landmarks.discard(number)
        for word in {landmarks[0] for landmarks in texts if landmarks}:
            numbers = self._with_word[word]
            numbers.discard(number)
            if not numbers:
                del self._with_word[word]

    def find(self, words: frozenset[str]) -> set[int]:
        """Return the numbers of the collections of which the prompt may contain a text."""
        known = words & self._with_word.keys()
        return self._without_landmarks.union(*(self._with_word[word] for word in known))
