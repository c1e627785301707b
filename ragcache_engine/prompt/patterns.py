"""Learn the texts around documents from examples: what is fixed, and where question and numbers go.

A text stands at a place: before, between or after the documents. It may hold the question, and numbers
that follow from the place ("[2]", "Source 3 of 5:"). A text is written for a place only if the examples
leave no doubt about what stands there; otherwise the result is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice

_DIGITS = re.compile(r"(\d+)")
_MOST_OCCURRENCES = 8


class Slot(Enum):
    """A part of a pattern that stands for the user's words: the question."""

    QUESTION = "question"


@dataclass(frozen=True, slots=True)
class Number:
    """A number that follows from the place: its rank or the count of documents, plus a constant."""

    follows_rank: bool
    plus: int

    def at(self, place: Place) -> str:
        """Return the number at this place, in digits."""
        return str((place.rank if self.follows_rank else place.count) + self.plus)


Atom = str | Slot | Number
"""One part of a pattern: fixed text, the question, or a number."""
Pattern = tuple[Atom, ...]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a text stands in a prompt.

    rank: for a text between two documents, the position of the first of them, from 1; else 0.
    count: how many documents the prompt has.
    """

    rank: int
    count: int


@dataclass(frozen=True, slots=True)
class Example:
    """A text seen at a place.

    has_question_once: the question stands exactly once in all texts around the documents of this
      prompt, so that this one occurrence must be the question itself.
    """

    place: Place
    text: str
    question: str
    has_question_once: bool


@dataclass(frozen=True, slots=True)
class LearnedText:
    """What examples say about the texts before, between or after the documents.

    seen: for each place with an example, its pattern, if that is certain.
    general: the pattern for all other places; None if the examples do not agree on one.
    new_ranks, new_counts: whether examples with several ranks, or several counts, have confirmed the
      general pattern. If so, it holds also for ranks, or counts, that no example had.
    """

    seen: dict[Place, Pattern]
    general: Pattern | None
    new_ranks: bool
    new_counts: bool

    def fill(self, question: str, place: Place) -> str | None:
        """Return the text at this place; None if the examples leave doubts."""
        pattern = self.seen.get(place)
        if pattern is None:
            pattern = self.general if self._covers(place) else None
        return None if pattern is None else _fill(pattern, question, place)

    def _covers(self, place: Place) -> bool:
        return (self.new_ranks or any(place.rank == seen.rank for seen in self.seen)) and (
            self.new_counts or any(place.count == seen.count for seen in self.seen)
        )


def learn_text(examples: Sequence[Example]) -> LearnedText | None:
    """Return what all examples together say; None if they contradict each other."""
    by_place: dict[Place, list[Example]] = {}
    for example in examples:
        by_place.setdefault(example.place, []).append(example)
    seen: dict[Place, Pattern] = {}
    for place, here in by_place.items():
        patterns = _patterns_of_one_place(here)
        if not patterns:
            return None
        if len(patterns) == 1 and patterns[0] is not None:
            seen[place] = patterns[0]
    return LearnedText(
        seen,
        general=_generalise(seen),
        new_ranks=len({place.rank for place in seen}) > 1,
        new_counts=len({place.count for place in seen}) > 1,
    )


def count_occurrences(text: str, question: str) -> int:
    """Return how often the question stands in the text; occurrences may overlap."""
    if not question:
        return 0
    number, at = 0, text.find(question)
    while at >= 0:
        number, at = number + 1, text.find(question, at + 1)
    return number


def _fill(pattern: Pattern, question: str, place: Place) -> str:
    def text(atom: Atom) -> str:
        if isinstance(atom, str):
            return atom
        return atom.at(place) if isinstance(atom, Number) else question

    return "".join(map(text, pattern))


def _patterns_of_one_place(examples: Sequence[Example]) -> list[Pattern | None]:
    """Return the patterns that fit all examples of one place.

    No pattern: the examples contradict each other. One: it is certain. Several patterns, or [None]: the
    examples leave doubts.
    """
    newest = examples[-1]
    other = next((e for e in reversed(examples) if e.question != newest.question), None)
    if other is None:
        if any(example.text != newest.text for example in examples):
            return []
        if not any(example.has_question_once for example in examples):
            return [None]
        return [_pattern_of_every_occurrence(newest)]
    if count_occurrences(newest.text, newest.question) > _MOST_OCCURRENCES:
        return [None]
    possible = islice(_readings(newest, other), 8)
    fitting = [p for p in possible if all(_reproduces(p, example) for example in examples)]
    meant = [
        _pattern_of_every_occurrence(example) for example in examples if example.has_question_once
    ]
    return [p for p in meant[:1] if p in fitting] or list(dict.fromkeys(fitting))


def _reproduces(pattern: Pattern, example: Example) -> bool:
    return _fill(pattern, example.question, example.place) == example.text


def _pattern_of_every_occurrence(example: Example) -> Pattern:
    if not example.question:
        return (example.text,)
    atoms: list[Atom] = []
    for at, part in enumerate(example.text.split(example.question)):
        atoms += [Slot.QUESTION, part] if at else [part]
    return _merge_strings(atoms)


def _readings(first: Example, second: Example) -> Iterator[Pattern]:
    """Yield every pattern that both texts have, those with the question further to the front first."""
    for atoms in _align(first, second, 0, 0):
        yield _merge_strings(atoms)


def _align(first: Example, second: Example, i: int, j: int) -> Iterator[list[Atom]]:
    """Yield every pattern of first.text[i:] and second.text[j:]."""
    at = first.text.find(first.question, i) if first.question and second.question else -1
    if at < 0:
        if first.text[i:] == second.text[j:]:
            yield [first.text[i:]]
        return
    fixed = first.text[i:at]
    if not second.text.startswith(fixed, j):
        return
    j += len(fixed)
    if second.text.startswith(second.question, j):
        for rest in _align(first, second, at + len(first.question), j + len(second.question)):
            yield [fixed, Slot.QUESTION, *rest]
    if second.text.startswith(first.text[at], j):
        for rest in _align(first, second, at + 1, j + 1):
            yield [fixed, first.text[at], *rest]


def _merge_strings(atoms: Sequence[Atom]) -> Pattern:
    """Join neighbouring strings and drop empty ones, so that equal patterns are equal values."""
    tidy: list[Atom] = []
    for atom in atoms:
        if isinstance(atom, str) and tidy and isinstance(tidy[-1], str):
            tidy[-1] += atom
        elif atom != "":
            tidy.append(atom)
    return tuple(tidy)


def _generalise(seen: dict[Place, Pattern]) -> Pattern | None:
    """Return one pattern for all places, with numbers that follow from them; None if there is doubt."""
    split = {place: _split_digits(pattern) for place, pattern in seen.items()}
    if len({len(atoms) for atoms in split.values()}) != 1:
        return None
    general: list[Atom] = []
    for column in zip(*split.values(), strict=True):
        atom = _find_common_atom(list(split), column)
        if atom is None:
            return None
        general.append(atom)
    return _merge_strings(general)


def _split_digits(pattern: Pattern) -> list[Atom]:
    atoms: list[Atom] = []
    for atom in pattern:
        # Text and digits alternate, so numbers of different lengths stand in the same column.
        atoms += _DIGITS.split(atom) if isinstance(atom, str) else [atom]
    return atoms


def _find_common_atom(places: Sequence[Place], column: Sequence[Atom]) -> Atom | None:
    """Return the atom that becomes column[i] at places[i]; None if there is none, or two."""
    if all(atom == column[0] for atom in column):
        return column[0]
    numbers = [_parse_number(atom) for atom in column]
    fits: list[Atom] = []
    follow: tuple[Callable[[Place], int], Callable[[Place], int]] = (
        lambda place: place.rank,
        lambda place: place.count,
    )
    for follows_rank, followed in zip((True, False), follow, strict=True):
        apart = {
            None if number is None else number - followed(place)
            for place, number in zip(places, numbers, strict=True)
        }
        if len(apart) == 1 and (plus := apart.pop()) is not None:
            fits.append(Number(follows_rank, plus))
    return fits[0] if len(fits) == 1 else None


def _parse_number(atom: Atom) -> int | None:
    """Return the number; None for text that str() would not write for a number, such as "007"."""
    if not isinstance(atom, str) or not (atom.isascii() and atom.isdigit()):
        return None
    return int(atom) if str(int(atom)) == atom else None
