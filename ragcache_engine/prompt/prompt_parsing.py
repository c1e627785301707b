"""Take a finished prompt apart at its documents. Templates are learned from the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragcache_engine.prompt.patterns import Example, Place, count_occurrences
from ragcache_engine.values import Document

_MOST_OCCURRENCES = 32
"""How often a document's text may stand in a prompt; a prompt with more is not parsed."""


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """One prompt, taken apart.

    before, between, after: the texts around the documents; `between` has one fewer than documents.
    ranks: for each document in the order of the prompt, its rank in the retrieval, from 0.
    is_trimmed: whether the documents' texts lost the whitespace at their ends; None if none had any.
    """

    question: str
    before: str
    between: tuple[str, ...]
    after: str
    ranks: tuple[int, ...]
    is_trimmed: bool | None

    @property
    def count(self) -> int:
        """How many documents the prompt has."""
        return len(self.ranks)

    @property
    def is_as_retrieved(self) -> bool:
        """Whether the prompt has the documents in the order of the retrieval."""
        return self.ranks == tuple(range(self.count))

    def count_characters(self) -> int:
        """Count the characters that are kept: those of the question and of the texts around documents."""
        return sum(map(len, (self.question, self.before, *self.between, self.after)))

    def examples(self) -> tuple[Example, tuple[Example, ...], Example]:
        """Return the text before, the texts between, and the text after the documents as examples."""
        texts = (self.before, *self.between, self.after)
        once = sum(count_occurrences(text, self.question) for text in texts) == 1

        def example(text: str, rank: int) -> Example:
            return Example(Place(rank, self.count), text, self.question, once)

        between = tuple(example(text, rank) for rank, text in enumerate(self.between, 1))
        return example(self.before, 0), between, example(self.after, 0)


def parse_prompt(
    prompt: str, question: str, documents: Sequence[Document]
) -> tuple[ParsedPrompt, ...]:
    """Return the ways in which the prompt may have been made from all these documents.

    The result is empty without documents, and where there is doubt: a document is missing, blank or
    retrieved twice, or its text stands elsewhere in the prompt too. It has two entries if both the
    exact texts and the trimmed texts explain the prompt.
    """
    exact = [document.text for document in documents]
    trimmed = [text.strip() for text in exact]
    if not documents or not all(trimmed) or len(set(trimmed)) < len(trimmed):
        return ()
    as_it_is = _parse(prompt, question, exact, None if exact == trimmed else False)
    if exact == trimmed:
        return (as_it_is,) if as_it_is else ()
    if not as_it_is and all(text in prompt for text in exact):
        return ()
    without_edges = _parse(prompt, question, trimmed, True)
    return tuple(one for one in (as_it_is, without_edges) if one)


def _parse(
    prompt: str, question: str, texts: Sequence[str], is_trimmed: bool | None
) -> ParsedPrompt | None:
    """Parse the prompt with the texts in this form; None if they do not explain it without doubt."""
    starts = _find_in_order(prompt, texts)
    ranks = tuple(range(len(texts)))
    if starts is None:
        singles = _find_each_once(prompt, texts)
        if singles is None:
            return None
        ranks = tuple(sorted(ranks, key=singles.__getitem__))
        starts = [singles[rank] for rank in ranks]
    ends = [start + len(texts[rank]) for start, rank in zip(starts, ranks, strict=True)]
    if any(end > start for end, start in zip(ends, starts[1:], strict=False)):
        return None
    if not _are_all_inside(prompt, texts, list(zip(starts, ends, strict=True))):
        return None
    return ParsedPrompt(
        question=question,
        before=prompt[: starts[0]],
        between=tuple(prompt[end:start] for end, start in zip(ends, starts[1:], strict=False)),
        after=prompt[ends[-1] :],
        ranks=ranks,
        is_trimmed=is_trimmed,
    )


def _find_in_order(prompt: str, texts: Sequence[str]) -> list[int] | None:
    """Return where the texts start if they follow each other in exactly one way, else None."""
    # For each text: where it may start, with the number of ways to place the texts before it.
    ways: list[dict[int, int]] = []
    for rank, text in enumerate(texts):
        starts = _find_starts(prompt, text)
        if starts is None:
            return None
        here: dict[int, int] = {}
        for start in starts:
            number = 1
            if rank:
                length = len(texts[rank - 1])
                number = sum(n for at, n in ways[-1].items() if at + length <= start)
            if number:
                here[start] = number
        ways.append(here)
    if sum(ways[-1].values()) != 1:
        return None
    chain = [next(iter(ways[-1]))]
    for rank in range(len(texts) - 2, -1, -1):
        chain.append(next(at for at in ways[rank] if at + len(texts[rank]) <= chain[-1]))
    return chain[::-1]


def _are_all_inside(prompt: str, texts: Sequence[str], spans: Sequence[tuple[int, int]]) -> bool:
    """Return False if a text also stands outside the spans, where it might be the document itself."""
    for text in texts:
        for at in _find_starts(prompt, text) or ():
            if not any(start <= at and at + len(text) <= end for start, end in spans):
                return False
    return True


def _find_each_once(prompt: str, texts: Sequence[str]) -> list[int] | None:
    """Return where each text starts if each stands exactly once, in any order; otherwise None."""
    found = [_find_starts(prompt, text) or [] for text in texts]
    return [start for (start,) in found] if all(len(starts) == 1 for starts in found) else None


def _find_starts(prompt: str, text: str) -> list[int] | None:
    """Return every place where the text starts; None if there are more than _MOST_OCCURRENCES."""
    starts: list[int] = []
    at = prompt.find(text)
    while at >= 0:
        starts.append(at)
        if len(starts) > _MOST_OCCURRENCES:
            return None
        at = prompt.find(text, at + 1)
    return starts
