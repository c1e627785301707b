"""Finds texts that stand in several prompts, each time behind another text: documents that nobody named.

A few windows of each prompt are remembered by their hashes, chosen by the hash itself, so that a text has
the same ones wherever it stands. Where a window of a new prompt stood in an earlier one, the two prompts
are compared to both sides, as far as they are equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import count

import numpy as np

from ragcache_engine.corpora.fingerprints import Powers
from ragcache_engine.latest_items import LatestItems

LEAST_CHARACTERS = 512
"""About 128 tokens. To keep shorter texts apart gains little."""

LONGEST_PROMPT = 1 << 20
"""Of longer prompts nothing is remembered."""

MOST_BYTES = 8 << 20
"""How much memory the remembered prompts take; the longest ago are forgotten."""

ONE_IN, ANCHOR_BYTES, MOST_ANCHOR_BYTES = 64, 250, 64 << 20
"""One window in so many is remembered, and takes so many bytes; together so many at most."""

SHORT_LINE = 32
"""A last line of fewer characters is what stands behind a text, such as "[2] " or "Question:"."""

MOST_COMPARED = 64
"""With so many earlier prompts one is compared at most."""

Owner = Hashable


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

    def forget(self, owner: Owner) -> None:
        """Remember no prompt of this owner."""
        for key in [key for key in self._prompts if key[0] == owner]:
            del self._prompts[key]

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
                shared[before[0]] = count_equal(prompt, other)
            if before[1] == at < shared[before[0]]:
                continue  # a turn of the same conversation, or the same instructions
            start = at - count_equal(prompt[free:at][::-1], other[: before[1]][::-1])
            reached = at + count_equal(prompt[at:begin], other[before[1] :])
            text = trim(prompt[start:reached])
            # What came behind it may be equal by chance, as far as the next text's first letters.
            free = max(free, prompt.index(text, start) + len(text))
            if len(text) >= LEAST_CHARACTERS:
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
    """Return a text without what a chain writes around it by chance alike: numbers, labels, brackets.

    That is what stands before its first letter, and a last line that is short.
    """
    begin = next((at for at, one in enumerate(text) if one.isalpha()), len(text))
    whole, _, last = text.rpartition("\n")
    end = len(whole) if len(last) < SHORT_LINE else len(text)
    return text[begin:end].strip()


def count_equal(one: str, other: str) -> int:
    """Return with how many equal characters two texts begin."""
    upto, step = 0, 64
    while one[upto : upto + step] == other[upto : upto + step] and upto < min(len(one), len(other)):
        upto += step
        step *= 2
    upto = min(upto, len(one), len(other))
    while step > 1:
        step //= 2
        part = one[upto : upto + step]
        if part and part == other[upto : upto + step]:
            upto += len(part)
    return upto
