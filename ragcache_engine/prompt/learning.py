"""A template learned from finished prompts: it writes the next one exactly, or says that it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ragcache_engine.prompt.patterns import LearnedText, Place, learn_text
from ragcache_engine.prompt.prompt_parsing import ParsedPrompt
from ragcache_engine.values import Document

MOST_PROMPTS = 4


@dataclass(frozen=True, slots=True)
class LearnedTemplate:
    """What some prompts of one chain have in common.

    heads: the prompts that the text up to the last document is learned from, oldest first.
    tails: those that the text after it is learned from: some of the newest.
    keeps_blanks: whether the chain writes blank documents too; None if no prompt had any.
    """

    heads: tuple[ParsedPrompt, ...]
    tails: tuple[ParsedPrompt, ...]
    before: LearnedText
    between: LearnedText
    after: LearnedText
    keeps_blanks: bool | None = None

    def write_prompt(self, question: str, documents: Sequence[Document]) -> str | None:
        """The prompt for the documents, nearest first; None if that is not certain."""
        head = self.write_head(question, documents)
        count = len(self._texts(documents) or ())
        after = self.after.fill(question, Place(0, count))
        return None if head is None or after is None else head + after

    def write_head(self, question: str, documents: Sequence[Document]) -> str | None:
        """That prompt up to its last document; None if that is not certain."""
        texts = self._texts(documents)
        order = self._order(len(texts)) if texts else None
        if not texts or order is None:
            return None
        before = self.before.fill(question, Place(0, len(texts)))
        pieces = [before, texts[order[0]]]
        for rank, (_, at) in enumerate(pairwise(order), 1):
            pieces += [self.between.fill(question, Place(rank, len(texts))), texts[at]]
        known = [piece for piece in pieces if piece is not None]
        return "".join(known) if len(known) == len(pieces) else None

    def _texts(self, documents: Sequence[Document]) -> list[str] | None:
        exact = [document.text for document in documents]
        trimmed = [text.strip() for text in exact]
        if not all(trimmed):
            if self.keeps_blanks is None:
                return None
            if not self.keeps_blanks:
                exact = [text for text in exact if text.strip()]
                trimmed = [text for text in trimmed if text]
        if exact == trimmed or self.is_trimmed is False:
            return exact
        return trimmed if self.is_trimmed else None

    @property
    def is_trimmed(self) -> bool | None:
        return next((seen.is_trimmed for seen in self.heads if seen.is_trimmed is not None), None)

    def _order(self, count: int) -> Sequence[int] | None:
        """Ranks in the retrieval, as the documents stand in the prompt."""
        same_count = (seen.ranks for seen in self.heads if seen.count == count)
        in_order = all(seen.is_in_retrieved_order for seen in self.heads)
        return next(same_count, range(count) if in_order else None)


def learn_template(
    heads: Sequence[ParsedPrompt], tails: Sequence[ParsedPrompt], keeps_blanks: bool | None = None
) -> LearnedTemplate | None:
    """The template of these prompts, oldest first; None if they have none in common."""
    heads, tails = tuple(heads[-MOST_PROMPTS:]), tuple(tails[-MOST_PROMPTS:])
    before = learn_text([seen.examples()[0] for seen in heads])
    between = learn_text([example for seen in heads for example in seen.examples()[1]])
    after = learn_text([seen.examples()[2] for seen in tails])
    forms = {seen.is_trimmed for seen in heads} - {None}
    orders = {seen.count: seen.ranks for seen in heads}
    one_order = all(seen.ranks == orders[seen.count] for seen in heads)
    if before is None or between is None or after is None or len(forms) > 1 or not one_order:
        return None
    return LearnedTemplate(heads, tails, before, between, after, keeps_blanks)


def extend_template(template: LearnedTemplate, seen: ParsedPrompt) -> LearnedTemplate | None:
    """The template after one more prompt; None if that cannot be one of the same template."""
    return learn_template((*template.heads, seen), (*template.tails, seen), template.keeps_blanks)


def branch_template(template: LearnedTemplate, seen: ParsedPrompt) -> LearnedTemplate | None:
    """The template of a prompt that is like the others up to its last document; None if it is not."""
    return learn_template((*template.heads, seen), (seen,), template.keeps_blanks)


def with_blanks_kept(template: LearnedTemplate, kept: bool) -> LearnedTemplate:
    return replace(template, keeps_blanks=kept)
