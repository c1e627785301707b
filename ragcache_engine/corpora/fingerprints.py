"""Finds registered texts in a prompt in one pass over its characters, however many are registered.

A text is known by the hash of WINDOW of its characters, its anchor, and by the hash of the whole. The
hashes of all windows of a prompt come from one running sum, as Karp and Rabin have it: sums of
character i times BASE**i, of which a difference, divided by BASE**start, is the hash of any part. So a
prompt costs one pass, and each place where an anchor stands one comparison, whatever the text's length.
A digest decides in the end: a text that stands there changed is not found.
"""

from __future__ import annotations

import json
from bisect import bisect_right, insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_engine.corpora.document import digest_of

Name = TypeVar("Name", bound=Hashable)
Hashes = NDArray[np.uint64]

WINDOW = 32
"""How many characters an anchor has. Shorter texts are not registered: they fill few blocks of tensors,
and would be found by chance."""

BASE = np.uint64(0x9E3779B97F4A7C15)
"""An odd number, so that it can be divided by, modulo 2**64."""
BASE_INVERSE = np.uint64(pow(int(BASE), -1, 1 << 64))

BITS_OF_AN_ANCHOR = 32
"""The filter before the anchors has so many bits for each, so that few windows pass by chance."""

BITS_OF_A_SEEN_WINDOW = 8
SMALLEST_BITS, GROWTH = 16, 1
"""Filters have 2**16 bits at first, and twice as many when they are full."""

LARGEST_SEEN = 28
"""The largest filter of seen windows has 2**28 bits, 32 MiB: enough for 300,000 documents."""

SEEN_SHARE = 4
"""Of one window in four is remembered that a text has it: enough to find one that no other text has."""

MOST_STALE = 1 << 17
"""After so many removed anchors the filters are made anew."""

CHARACTERS_PER_PLACE = 4
"""A prompt is looked at in one place for each so many characters, at most. Only one that is made of
repetitions has more places where a text might begin."""

BLOCK = 8192
"""So many characters are worked on at a time: what that takes stays in the processor's cache."""

DIGESTED = 2
"""So many times the characters of a prompt are digested at most, whatever collides."""


@dataclass(frozen=True, slots=True)
class Found(Generic[Name]):
    """A text at the characters [start, end) of a prompt.

    name: of one that was registered with it. Where several were, each is found once, in their order, and
      the last of them wherever else the text stands.
    """

    start: int
    end: int
    name: Name


@dataclass(frozen=True, slots=True, eq=False)
class _Written(Generic[Name]):
    """A text as it may stand in a prompt. anchor: the hash of the WINDOW at `offset`."""

    anchor: int
    offset: int
    length: int
    whole: int
    digest: bytes
    names: dict[Name, None] = field(default_factory=dict)


class FingerprintIndex(Generic[Name]):
    """Remembers texts by their fingerprints, not the texts themselves; about 1 KB for each.

    A text is found without the white space at its ends, as it is and as written in a JSON string.
    powers: shared by several indexes; None: its own.
    """

    def __init__(self, powers: Powers | None = None) -> None:
        self._powers = powers or Powers()
        self._written: dict[bytes, _Written[Name]] = {}  # by digest
        self._by_anchor: dict[int, dict[_Written[Name], None]] = {}
        self._anchors = _Bits(SMALLEST_BITS, BITS_OF_AN_ANCHOR)
        self._seen = [_Bits(SMALLEST_BITS, BITS_OF_A_SEEN_WINDOW)]
        self._stale = 0

    def __len__(self) -> int:
        """Count the different texts, each as often as there are ways to write it."""
        return len(self._written)

    def add(self, name: Name, text: str) -> Sequence[bytes]:
        """Remember a text. Returns what `remove` wants; nothing for a text too short to be found."""
        digests = []
        for form in written_forms(text):
            digest = digest_of(form)
            if digest not in self._written:
                written = self._written[digest] = self._fingerprint(form, digest)
                self._by_anchor.setdefault(written.anchor, {})[written] = None
                self._note_anchor(written.anchor)
            self._written[digest].names[name] = None
            digests.append(digest)
        return digests

    def remove(self, name: Name, digests: Sequence[bytes]) -> None:
        """Forget a text again. digests: what `add` returned."""
        for digest in digests:
            written = self._written[digest]
            del written.names[name]
            if not written.names:
                del self._written[digest]
                others = self._by_anchor[written.anchor]
                del others[written]
                if not others:
                    del self._by_anchor[written.anchor]
                    self._stale += 1
        if self._stale > MOST_STALE:
            self._make_filters(self._anchors.log2)

    def find(self, prompt: str, taken: Sequence[tuple[int, int]] = ()) -> list[Found[Name]]:
        """Return the texts that stand in a prompt, in its order, without overlaps.

        Longer texts come first, so that a text which contains another stays whole. taken: parts of the
        prompt, in order, where none is looked for.
        """
        if len(prompt) < WINDOW or not self._written:
            return []
        sums = self._powers.sums(prompt)
        most = len(prompt) // CHARACTERS_PER_PLACE + 1
        places = self._places(sums, most, taken)
        taken = list(taken)  # apart, in order
        found: list[tuple[int, _Written[Name]]] = []
        left = DIGESTED * len(prompt)
        for start, written in sorted(places, key=lambda place: (-place[1].length, place[0])):
            end = start + written.length
            if _overlaps(taken, start, end):
                continue
            left -= written.length
            if left < 0:
                break
            if digest_of(prompt[start:end]) == written.digest:
                insort(taken, (start, end))
                found.append((start, written))
        return _name_each(sorted(found, key=lambda one: one[0]))

    def _places(
        self, sums: Hashes, most: int, taken: Sequence[tuple[int, int]] = ()
    ) -> list[tuple[int, _Written[Name]]]:
        """Return where texts begin whose anchor and whose whole have the hashes of the prompt there.

        taken: as in `find`.
        """
        tried = list(self._anchored(sums, most))
        if not tried:
            return []
        starts = np.array([start for start, _ in tried])
        lengths = np.array([written.length for _, written in tried])
        wholes = np.array([written.whole for _, written in tried], np.uint64)
        is_there = self._powers.parts(sums, starts, starts + lengths) == wholes
        found = (tried[at] for at in np.flatnonzero(is_there))
        free = (one for one in found if not _overlaps(taken, one[0], one[0] + one[1].length))
        return [*_without_overlaps(free)]

    def _anchored(self, sums: Hashes, most: int) -> Iterator[tuple[int, _Written[Name]]]:
        """Yield where texts would begin whose anchor stands in the prompt, and that have room in it.

        most: so many are looked at.
        """
        for begin in range(0, len(sums) - WINDOW, BLOCK):
            windows = self._powers.windows(sums, begin, BLOCK)
            passed = np.flatnonzero(self._anchors.has(windows))
            for at, anchor in zip(passed.tolist(), windows[passed].tolist(), strict=True):
                for written in self._by_anchor.get(anchor, ()):
                    most -= 1
                    if most < 0:
                        return
                    start = begin + at - written.offset
                    if start >= 0 and start + written.length < len(sums):
                        yield start, written

    def _fingerprint(self, text: str, digest: bytes) -> _Written[Name]:
        """Return the fingerprint of a text. Its anchor is one that no other text has, if there is one."""
        sums = self._powers.sums(text)
        windows = self._powers.windows(sums, 0, len(sums))
        is_free = ~self._anchors.has(windows)
        is_sampled = windows % np.uint64(SEEN_SHARE) == 0
        is_new = is_sampled & ~np.logical_or.reduce([bits.has(windows) for bits in self._seen])
        # In the middle: the ends of many texts are the same.
        choices = next(some for some in (is_new & is_free, is_free, windows > 0) if some.any())
        places = np.flatnonzero(choices)
        offset = int(places[len(places) // 2])
        self._note_seen(windows[is_sampled])
        whole = self._powers.parts(sums, np.array([0]), np.array([len(text)]))
        return _Written(int(windows[offset]), offset, len(text), int(whole[0]), digest)

    def _note_anchor(self, anchor: int) -> None:
        self._anchors.note(np.array([anchor], np.uint64))
        if self._anchors.is_full:
            self._make_filters(self._anchors.log2 + GROWTH)

    def _make_filters(self, log2: int) -> None:
        """Make the filter of anchors anew, with 2**log2 bits; that of seen windows too if it is stale."""
        self._anchors = _Bits(log2, BITS_OF_AN_ANCHOR)
        self._anchors.note(np.array(list(self._by_anchor), np.uint64))
        if self._stale > MOST_STALE:
            self._seen = [_Bits(SMALLEST_BITS, BITS_OF_A_SEEN_WINDOW)]
            self._stale = 0

    def _note_seen(self, windows: Hashes) -> None:
        if self._seen[-1].is_full and self._seen[-1].log2 == LARGEST_SEEN:
            self._seen.clear()  # all is new again, which costs time and finds the same
            self._seen.append(_Bits(SMALLEST_BITS, BITS_OF_A_SEEN_WINDOW))
        if self._seen[-1].is_full:
            self._seen.append(_Bits(self._seen[-1].log2 + GROWTH, BITS_OF_A_SEEN_WINDOW))
        self._seen[-1].note(windows)


def written_forms(text: str) -> list[str]:
    """Return the ways in which a text is looked for; none for a text that is too short."""
    trimmed = text.strip()
    if len(trimmed) < WINDOW:
        return []
    in_json = (json.dumps(trimmed, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    return [*dict.fromkeys((trimmed, *in_json))]


def _name_each(places: Sequence[tuple[int, _Written[Name]]]) -> list[Found[Name]]:
    """Return the texts at these places, in their order, each with one of its names."""
    coming: dict[_Written[Name], Iterator[Name]] = {}
    last: dict[_Written[Name], Name] = {}
    found = []
    for start, written in places:
        for name in islice(coming.setdefault(written, iter(written.names)), 1):
            last[written] = name
        found.append(Found(start, start + written.length, last[written]))
    return found


def _overlaps(taken: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    """Return whether [start, end) overlaps with one of these spans, which are apart and in order."""
    at = bisect_right(taken, (start, end))
    return bool((at and taken[at - 1][1] > start) or (at < len(taken) and taken[at][0] < end))


def _without_overlaps(
    places: Iterable[tuple[int, _Written[Name]]],
) -> Iterator[tuple[int, _Written[Name]]]:
    """Leave out where a text begins inside itself, as in a row of one letter. places: in order."""
    ends: dict[_Written[Name], int] = {}
    for start, written in places:
        if start >= ends.get(written, 0):
            ends[written] = start + written.length
            yield start, written


class Powers:
    """The powers of BASE and of its inverse, as many as the longest text so far has characters.

    Threads may share it: what another one makes anew is the same, and longer.
    """

    def __init__(self) -> None:
        self._both = np.ones(1, np.uint64), np.ones(1, np.uint64)

    def sums(self, text: str) -> Hashes:
        """Return, for each end of the text from 0 on, the sum of its characters times their powers."""
        characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        up, _ = self._reach(len(characters))
        sums = np.empty(len(characters) + 1, np.uint64)
        sums[0] = 0
        for begin in range(0, len(characters), BLOCK):
            part = characters[begin : begin + BLOCK].astype(np.uint64)
            part += np.uint64(1)  # a character of 0 would weigh nothing
            part *= up[begin : begin + len(part)]
            part[:1] += sums[begin : begin + 1]
            np.cumsum(part, out=sums[begin + 1 : begin + 1 + len(part)])
        return sums

    def windows(self, sums: Hashes, begin: int, most: int) -> Hashes:
        """Return the hash of the WINDOW characters at each of so many places of a text, from begin on."""
        _, down = self._reach(len(sums))
        end = min(begin + most, len(sums) - WINDOW)
        return (sums[begin + WINDOW : end + WINDOW] - sums[begin:end]) * down[begin:end]

    def parts(self, sums: Hashes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Hashes:
        """Return the hashes of the characters [start, end) of a text."""
        _, down = self._reach(len(sums))
        return (sums[ends] - sums[starts]) * down[starts]

    def _reach(self, length: int) -> tuple[Hashes, Hashes]:
        both = self._both
        if length > len(both[0]):
            ones = np.ones(max(length, 2 * len(both[0])), np.uint64)
            up, down = ones * BASE, ones * BASE_INVERSE
            up[0] = down[0] = 1
            self._both = both = np.cumprod(up), np.cumprod(down)
        return both


class _Bits:
    """A set of hashes, of which it may say by chance that one is in it that is not.

    log2: it has 2**log2 bits, which are enough for a hash in every `bits_each` of them.
    """

    def __init__(self, log2: int, bits_each: int) -> None:
        self.log2 = log2
        self._bits = np.zeros(1 << (log2 - 3), np.uint8)
        self._noted, self._most = 0, (1 << log2) // bits_each

    @property
    def is_full(self) -> bool:
        return self._noted >= self._most

    def note(self, hashes: Hashes) -> None:
        byte, bit = self._places(hashes)
        np.bitwise_or.at(self._bits, byte, bit)
        self._noted += len(hashes)

    def has(self, hashes: Hashes) -> NDArray[np.bool_]:
        byte, bit = self._places(hashes)
        found: NDArray[np.bool_] = (self._bits[byte] & bit) != 0
        return found

    def _places(self, hashes: Hashes) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        # The low bits of a product modulo 2**64 depend on few characters, the high ones on all.
        mixed = hashes >> np.uint64(64 - self.log2)
        bits = np.left_shift(np.uint8(1), (mixed & np.uint64(7)).astype(np.uint8))
        return mixed >> np.uint64(3), bits
