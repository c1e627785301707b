"""A template learned from finished prompts: it writes the next one exactly, or says that it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ragcache_engine.prompt.patterns import LearnedText, Place, learned
from ragcache_engine.prompt.prompt_parsing import Observation
from ragcache_engine.values import Document

MOST_OBSERVATIONS = 4


@dataclass(frozen=True, slots=True)
class LearnedTemplate:
    """What some prompts of one chain have in common.

    heads: the prompts that the text up to the last document is learned from, oldest first.
    tails: those that the text after it is learned from: some of the newest.
    blanks_kept: whether the chain writes blank documents too; None if no prompt had any.
    """

    heads: tuple[Observation, ...]
    tails: tuple[Observation, ...]
    before: LearnedText
    between: LearnedText
    after: LearnedText
    blanks_kept: bool | None = None

    def prompt(self, question: str, documents: Sequence[Document]) -> str | None:
        """The prompt for the documents, nearest first; None if that is not certain."""
        head = self.head(question, documents)
        count = len(self._texts(documents) or ())
        after = self.after.filled(question, Place(0, count))
        return None if head is None or after is None else head + after

    def head(self, question: str, documents: Sequence[Document]) -> str | None:
        """That prompt up to its last document; None if that is not certain."""
        texts = self._texts(documents)
        order = self._order(len(texts)) if texts else None
        if not texts or order is None:
            return None
        before = self.before.filled(question, Place(0, len(texts)))
        pieces = [before, texts[order[0]]]
        for rank, (_, at) in enumerate(pairwise(order), 1):
            pieces += [self.between.filled(question, Place(rank, len(texts))), texts[at]]
        known = [piece for piece in pieces if piece is not None]
        return "".join(known) if len(known) == len(pieces) else None

    def _texts(self, documents: Sequence[Document]) -> list[str] | None:
        exact = [document.text for document in documents]
        trimmed = [text.strip() for text in exact]
        if not all(trimmed):
            if self.blanks_kept is None:
                return None
            if not self.blanks_kept:
                exact = [text for text in exact if text.strip()]
                trimmed = [text for text in trimmed if text]
        if exact == trimmed or self.trimmed is False:
            return exact
        return trimmed if self.trimmed else None

    @property
    def trimmed(self) -> bool | None:
        return next((seen.trimmed for seen in self.heads if seen.trimmed is not None), None)

    def _order(self, count: int) -> Sequence[int] | None:
        """Ranks in the retrieval, as the documents stand in the prompt."""
        same_count = (seen.order for seen in self.heads if seen.count == count)
        in_order = all(seen.is_in_order for seen in self.heads)
        return next(same_count, range(count) if in_order else None)


def learn(
    heads: Sequence[Observation], tails: Sequence[Observation], blanks_kept: bool | None = None
) -> LearnedTemplate | None:
    """The template of these prompts, oldest first; None if they have none in common."""
    heads, tails = tuple(heads[-MOST_OBSERVATIONS:]), tuple(tails[-MOST_OBSERVATIONS:])
    before = learned([seen.examples()[0] for seen in heads])
    between = learned([example for seen in heads for example in seen.examples()[1]])
    after = learned([seen.examples()[2] for seen in tails])
    forms = {seen.trimmed for seen in heads} - {None}
    orders = {seen.count: seen.order for seen in heads}
    one_order = all(seen.order == orders[seen.count] for seen in heads)
    if before is None or between is None or after is None or len(forms) > 1 or not one_order:
        return None
    return LearnedTemplate(heads, tails, before, between, after, blanks_kept)


def joined(template: LearnedTemplate, seen: Observation) -> LearnedTemplate | None:
    """The template after one more prompt; None if that cannot be one of the same template."""
    return learn((*template.heads, seen), (*template.tails, seen), template.blanks_kept)


def branched(template: LearnedTemplate, seen: Observation) -> LearnedTemplate | None:
    """The template of a prompt that is like the others up to its last document; None if it is not."""
    return learn((*template.heads, seen), (seen,), template.blanks_kept)


def with_blanks(template: LearnedTemplate, kept: bool) -> LearnedTemplate:
    return replace(template, blanks_kept=kept)
