"""The literal form of a chain's prompts: the texts around the documents, read from one prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from ragcache_engine.prompt.segments import Span, find_text
from ragcache_engine.values import Document

MOST_QUESTIONS = 8
"""A text that stands in a prompt more often is no question: the next one would be written as often."""


@dataclass(frozen=True, slots=True)
class PromptForm:
    """What stood around the documents of one prompt.

    before, after: the texts before the first and after the last document, cut where the question stood.
    between: the texts between the documents.
    ranks: for each document in the order of the prompt, its rank in the retrieval, from 0.
    trims: whether the documents' texts lost the whitespace at their ends; None if none had any.
    """

    before: tuple[str, ...]
    between: tuple[str, ...]
    after: tuple[str, ...]
    ranks: tuple[int, ...]
    trims: bool | None

    @property
    def has_question(self) -> bool:
        """Whether the question stood before or after the documents."""
        return len(self.before) + len(self.after) > 2

    @property
    def is_as_retrieved(self) -> bool:
        """Whether the prompt had the documents in the order of the retrieval."""
        return self.ranks == tuple(range(len(self.ranks)))

    def count_characters(self) -> int:
        """Count the characters of the texts around the documents."""
        return sum(map(len, (*self.before, *self.between, *self.after)))

    def has_head_of(self, other: PromptForm) -> bool:
        """Whether both write prompts alike up to the end of the last document, as far as they show."""
        both = min(len(self.between), len(other.between))
        return (
            self.before == other.before
            and self.between[:both] == other.between[:both]
            and (len(self.ranks) != len(other.ranks) or self.ranks == other.ranks)
            and (self.trims is other.trims or None in (self.trims, other.trims))
        )

    def with_more_of(self, other: PromptForm) -> PromptForm:
        """Return this form with what its prompt did not show and the other's did; the heads are alike."""
        trims = other.trims if self.trims is None else self.trims
        shows = self if self.between else other
        return replace(self, between=shows.between, ranks=shows.ranks, trims=trims)

    def write_head(self, question: str, documents: Sequence[Document]) -> str | None:
        """Write the prompt up to the end of its last document; None if the form does not tell how.

        documents: nearest first. For another number of them than it has seen, the form must have had one
        text between all of them, and their order. What becomes of a blank document it cannot tell.
        """
        texts = [one.text.strip() if self.trims else one.text for one in documents]
        between, ranks = self.between, self.ranks
        if len(texts) != len(ranks):
            if len(set(between)) > 1 or (len(texts) > 1 and not between):
                return None
            if not self.is_as_retrieved:
                return None
            between, ranks = between[:1] * (len(texts) - 1), tuple(range(len(texts)))
        if not texts or not all(text.strip() for text in texts):
            return None
        parts = [question.join(self.before), texts[ranks[0]]]
        for text, rank in zip(between, ranks[1:], strict=True):
            parts += [text, texts[rank]]
        return "".join(parts)

    def write_tail(self, question: str) -> str:
        """Write the prompt from the end of its last document."""
        return question.join(self.after)


def read_forms(prompt: str, question: str, documents: Sequence[Document]) -> Iterator[PromptForm]:
    """Yield the ways in which the prompt may have been made from all these documents, nearest first.

    There is none unless every document stands in the prompt once, and none of them is blank. There are
    two if documents with whitespace at their ends may stand there as they are, or trimmed.
    """
    exact = [one.text for one in documents]
    trimmed = [text.strip() for text in exact]
    if not documents or not all(trimmed):
        return
    for texts, trims in ((exact, False), (trimmed, True)):
        form = _read(prompt, question, texts, None if exact == trimmed else trims)
        if form:
            yield form
        if exact == trimmed:
            return


def _read(
    prompt: str, question: str, texts: Sequence[str], trims: bool | None
) -> PromptForm | None:
    spans: list[Span] = []
    ranks: dict[int, int] = {}  # by where the text begins
    # Longer texts first, so that a text inside another one is not taken for a document of its own.
    for rank in sorted(range(len(texts)), key=lambda rank: len(texts[rank]), reverse=True):
        starts = list(islice(find_text(prompt, texts[rank], spans), 2))
        if len(starts) != 1:
            return None
        ranks[starts[0]] = rank
        spans = sorted([*spans, Span(starts[0], starts[0] + len(texts[rank]), str(rank))])

    before, after = prompt[: spans[0].start], prompt[spans[-1].end :]
    is_found = question and 0 < before.count(question) + after.count(question) <= MOST_QUESTIONS

    def cut(text: str) -> tuple[str, ...]:
        return tuple(text.split(question)) if is_found else (text,)

    return PromptForm(
        before=cut(before),
        between=tuple(prompt[one.end : other.start] for one, other in pairwise(spans)),
        after=cut(after),
        ranks=tuple(ranks[span.start] for span in spans),
        trims=trims,
    )
