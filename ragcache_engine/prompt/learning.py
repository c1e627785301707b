"""Learn a template from finished prompts: it writes the next prompt exactly, or says that it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ragcache_engine.prompt.patterns import LearnedText, Place, learn_text
from ragcache_engine.prompt.prompt_parsing import ParsedPrompt
from ragcache_engine.values import Document

MOST_PROMPTS = 4
"""How many prompts a template is learned from at most: the newest ones."""


@dataclass(frozen=True, slots=True)
class LearnedTemplate:
    """What some prompts of one chain have in common.

    The head of a prompt is its text up to the end of the last document, the tail is the rest.
    heads: the prompts that the head is learned from, oldest first.
    tails: the prompts that the tail is learned from: the newest of `heads`.
    before, between, after: the learned texts around the documents.
    keeps_blanks: whether the chain writes blank documents too; None if no prompt had any.
    """

    heads: tuple[ParsedPrompt, ...]
    tails: tuple[ParsedPrompt, ...]
    before: LearnedText
    between: LearnedText
    after: LearnedText
    keeps_blanks: bool | None = None

    def write_prompt(self, question: str, documents: Sequence[Document]) -> str | None:
        """Write the prompt for these documents, nearest first; None if it is not certain."""
        head = self.write_head(question, documents)
        count = len(self._texts(documents) or ())
        after = self.after.fill(question, Place(0, count))
        return None if head is None or after is None else head + after

    def write_head(self, question: str, documents: Sequence[Document]) -> str | None:
        """Write the prompt up to the end of its last document; None if it is not certain."""
        texts = self._texts(documents)
        ranks = self._ranks(len(texts)) if texts else None
        if not texts or ranks is None:
            return None
        before = self.before.fill(question, Place(0, len(texts)))
        parts = [before, texts[ranks[0]]]
        for number, (_, rank) in enumerate(pairwise(ranks), 1):
            parts += [self.between.fill(question, Place(number, len(texts))), texts[rank]]
        known = [part for part in parts if part is not None]
        return "".join(known) if len(known) == len(parts) else None

    def _texts(self, documents: Sequence[Document]) -> list[str] | None:
        """Return the documents' texts in the form that the chain writes; None if that is not certain."""
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
        """Whether the chain trims the documents' texts; None if no prompt has shown it."""
        return next((seen.is_trimmed for seen in self.heads if seen.is_trimmed is not None), None)

    def _ranks(self, count: int) -> Sequence[int] | None:
        """Return the ranks of `count` retrieved documents in the order in which the prompt has them."""
        same_count = (seen.ranks for seen in self.heads if seen.count == count)
        is_as_retrieved = all(seen.is_as_retrieved for seen in self.heads)
        return next(same_count, range(count) if is_as_retrieved else None)


def learn_template(
    heads: Sequence[ParsedPrompt], tails: Sequence[ParsedPrompt], keeps_blanks: bool | None = None
) -> LearnedTemplate | None:
    """Return the template of these prompts, given oldest first; None if they have none in common."""
    heads, tails = tuple(heads[-MOST_PROMPTS:]), tuple(tails[-MOST_PROMPTS:])
    before = learn_text([seen.examples()[0] for seen in heads])
    between = learn_text([example for seen in heads for example in seen.examples()[1]])
    after = learn_text([seen.examples()[2] for seen in tails])
    forms = {seen.is_trimmed for seen in heads} - {None}
    ranks = {seen.count: seen.ranks for seen in heads}
    has_one_order = all(seen.ranks == ranks[seen.count] for seen in heads)
    if before is None or between is None or after is None or len(forms) > 1 or not has_one_order:
        return None
    return LearnedTemplate(heads, tails, before, between, after, keeps_blanks)


def extend_template(template: LearnedTemplate, seen: ParsedPrompt) -> LearnedTemplate | None:
    """Return the template after one more prompt; None if that prompt has another template."""
    return learn_template((*template.heads, seen), (*template.tails, seen), template.keeps_blanks)


def branch_template(template: LearnedTemplate, seen: ParsedPrompt) -> LearnedTemplate | None:
    """Return a template with the same head and this prompt's tail; None if the heads differ."""
    return learn_template((*template.heads, seen), (seen,), template.keeps_blanks)


def with_blanks_kept(template: LearnedTemplate, kept: bool) -> LearnedTemplate:
    """Return the template for a chain that writes blank documents too, or that leaves them out."""
    return replace(template, keeps_blanks=kept)
