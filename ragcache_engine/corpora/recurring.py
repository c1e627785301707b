"""Finds texts that stand in several prompts, each time behind another text: documents that nobody named.

A few windows of each prompt are remembered by their hashes, chosen by the hash itself, so that a text has
the same ones wherever it stands. Where a window of a new prompt stood in an earlier one, the two prompts
are compared to both sides, as far as they are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from ragcache_engine.corpora.fingerprints import Powers
from ragcache_engine.latest_items import LatestItems

LEAST_CHARACTERS = 512
"""About 128 tokens. To keep shorter texts apart gains little."""

LONGEST_PROMPT = 1 << 20
"""Of longer prompts nothing is remembered."""

MOST_BYTES = 8 << 20
"""How much memory the remembered prompts take; the longest ago are forgotten."""

ONE_IN, ANCHOR_BYTES, MOST_ANCHOR_BYTES = 64, 350, 64 << 20
"""One window in so many is remembered, and takes so many bytes; together so many at most."""

SHORT_LINE = 32
"""A last line of fewer characters is what stands behind a text, such as "[2] " or "Question:"."""

FIRST_STEP = 64
"""So many characters are compared first, twice as many then."""

MOST_COMPARED = 64
"""With so many earlier prompts one is compared at most."""

Owner = Any
"""Whose prompts are compared with one another: any value that can be hashed."""


class RecurringTexts:
    """The latest prompts, by owner. Not safe to share between threads.

    powers: as in FingerprintIndex.
    """

    def __init__(self, powers: Powers | None = None) -> None:
        self._powers = powers or Powers()
        self._prompts: LatestItems[tuple[Owner, int], str] = LatestItems(
            MOST_BYTES, lambda _, text: len(text.encode("utf-8", "surrogatepass"))
        )
        self._anchors: LatestItems[tuple[Owner, int], tuple[int, int]] = LatestItems(
            MOST_ANCHOR_BYTES, lambda _, __: ANCHOR_BYTES
        )
        self._numbers = count()

    def add(self, owner: Owner, prompt: str, taken: Sequence[tuple[int, int]] = ()) -> list[str]:
        """Remember a prompt; return the texts that stood in earlier ones behind something else.

        taken: parts of it that are known already, in order; nothing is looked for there.
        """
        if not LEAST_CHARACTERS <= len(prompt) <= LONGEST_PROMPT:
            return []
        number = next(self._numbers)
        found = [*self._find(owner, prompt, taken, number)]
        self._prompts[owner, number] = prompt
        return found

    def forget(self, is_doomed: Callable[[Owner], bool]) -> None:
        """Remember no prompt of these owners."""
        for known in (self._prompts, self._anchors):
            for key in [key for key in known if is_doomed(key[0])]:
                del known[key]

    def _find(
        self, owner: Owner, prompt: str, taken: Sequence[tuple[int, int]], number: int
    ) -> Iterator[str]:
        shared: dict[int, int] = {}  # by prompt, with how many characters both begin
        reached = free = 0  # up to here all is compared; and is found, or known
        parts = iter([*taken, (len(prompt), len(prompt))])
        begin, end = next(parts)
        for at, anchor in self._choose(prompt):
            before = self._anchors.get((owner, anchor))
            self._anchors[owner, anchor] = number, at
            self._anchors.touch((owner, anchor))
            while at >= end:
                reached = free = max(reached, end)
                begin, end = next(parts)
            if at < reached or at >= begin or before is None:
                continue
            other = self._prompts.get((owner, before[0]))
            if other is None or (before[0] not in shared and len(shared) >= MOST_COMPARED):
                continue
            if before[0] not in shared:
                shared[before[0]] = count_equal(prompt, 0, other, 0, len(prompt))
            if before[1] == at < shared[before[0]]:
                continue  # a turn of the same conversation, or the same instructions
            start = at - count_equal_before(prompt, at, other, before[1], at - free)
            ahead = count_equal(prompt, at, other, before[1], begin - at)
            reached = at + ahead
            text = trim(prompt[start:reached])
            # What came behind it may be equal by chance, as far as the next text's first letters.
            free = max(free, prompt.index(text, start) + len(text))
            # Both times near the beginning, as behind a date.
            is_instruction = max(start, before[1] - (at - start)) < LEAST_CHARACTERS
            is_same_talk = before[1] + ahead == len(other)
            if len(text) >= LEAST_CHARACTERS and not is_instruction and not is_same_talk:
                yield text

    def _choose(self, prompt: str) -> Iterator[tuple[int, int]]:
        """Yield where the windows begin that are remembered, and their hashes."""
        sums = self._powers.sums(prompt)
        windows = self._powers.windows(sums, 0, len(sums))
        # The low bits depend on few characters, the high ones on all.
        places = np.flatnonzero((windows >> np.uint64(40)) % np.uint64(ONE_IN) == 0)
        # Only a prompt that is made of repetitions has many more.
        places = places[: 4 * len(prompt) // ONE_IN]
        yield from zip(places.tolist(), windows[places].tolist(), strict=True)


def trim(text: str) -> str:
    """Return a text without what stands around it by chance alike: numbers, labels, the end of another.

    That is a first and a last line that are short, and what stands before its first letter.
    """
    begin = 0
    while 0 <= (line_end := text.find("\n", begin)) < begin + SHORT_LINE:
        begin = line_end + 1
    begin = next((at for at in range(begin, len(text)) if text[at].isalpha()), len(text))
    whole, _, last = text.rpartition("\n")
    end = len(whole) if len(last) < SHORT_LINE else len(text)
    return text[begin:end].strip()


def count_equal(one: str, at: int, other: str, place: int, most: int) -> int:
    """Return how many characters of two texts are equal from these places on, at most so many."""
    most = min(most, len(one) - at, len(other) - place)
    upto, step = 0, FIRST_STEP
    while upto < most and step:
        step = min(step, most - upto)
        is_equal = one[at + upto : at + upto + step] == other[place + upto : place + upto + step]
        upto += step if is_equal else 0
        step = step * 2 if is_equal else step // 2
    return upto


def count_equal_before(one: str, at: int, other: str, place: int, most: int) -> int:
    """Return how many characters of two texts are equal before these places, at most so many."""
    most = min(most, at, place)
    upto, step = 0, FIRST_STEP
    while upto < most and step:
        step = min(step, most - upto)
        is_equal = one[at - upto - step : at - upto] == other[place - upto - step : place - upto]
        upto += step if is_equal else 0
        step = step * 2 if is_equal else step // 2
    return upto
