"""Plans which documents to prefill before anybody asks about them, and counts what was done."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ragcache_engine.checks import require_instance, require_items
from ragcache_engine.errors import UnknownDocument, UnknownTemplate
from ragcache_engine.prompt import Render, find_documents, is_too_short
from ragcache_engine.values import DOCUMENTS_HINT, ChatPrompt, Document, Usage

logger = logging.getLogger(__name__)


QUESTION_PLACEHOLDER = "\x00the question comes here\x00"
"""Stands in for a question, and occurs in no document. The prefilled text ends before it."""


class LeftOut(NamedTuple):
    """A set of documents that could not be prefilled: the documents' ids, and why."""

    documents: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Warmed:
    """What warming did.

    sets: how many sets of documents were prefilled. prompt_tokens: the tokens of their prompts.
    computed_tokens: how many of those had to be computed; the others were cached already.
    left_out: the sets that could not be prefilled, such as one that is longer than the model's context.
    """

    sets: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    left_out: tuple[LeftOut, ...] = ()

    def after_held(self, prompt_tokens: int) -> Warmed:
        """Return these counts with one more set, of which nothing had to be computed."""
        return replace(self, sets=self.sets + 1, prompt_tokens=self.prompt_tokens + prompt_tokens)

    def after(self, usage: Usage) -> Warmed:
        """Return these counts with one more set."""
        return replace(
            self.after_held(usage.prompt_tokens),
            computed_tokens=self.computed_tokens + usage.computed_tokens,
        )


Prefill = tuple[str, Sequence[Document]]
"""A prompt up to the end of its last document, and the documents that stand in it."""


def leave_out(prefill: Prefill, error: Exception) -> LeftOut:
    """Return a set that cannot be prefilled, and log it."""
    names = tuple(one.id for one in prefill[1])
    logger.warning("warming leaves out %s: %s", ", ".join(map(repr, names[:9]))[:200], error)
    return LeftOut(names, str(error))


def plan_prefills(
    document_sets: Iterable[Sequence[Document | str]],
    known: Mapping[str, Document],
    template: Render | None,
) -> list[Prefill]:
    """Write what to prefill for each set of documents; an empty set needs nothing.

    known: the documents that ids stand for. template: what the prompts look like, if that is known.
    Raises UnknownDocument or UnknownTemplate, for all sets or for none.
    """
    sets = resolve_documents(document_sets, known)
    return [(_write_prefix(template, documents), documents) for documents in sets if documents]


def resolve_documents(
    document_sets: Iterable[Sequence[Document | str]], known: Mapping[str, Document]
) -> list[list[Document]]:
    """Put documents in the place of ids. Raises UnknownDocument, for all sets or for none."""
    hint = f"or its id; {DOCUMENTS_HINT}"
    sets = [
        [
            one if isinstance(one, str) else require_instance(one, Document, "a document", hint)
            for one in require_items(documents, object, "a set of documents", "such as [document]")
        ]
        for documents in require_items(document_sets, object, "document_sets")
    ]
    missing = [
        one for documents in sets for one in documents if isinstance(one, str) and one not in known
    ]
    if missing:
        raise UnknownDocument(
            f"no text is known for {missing[0]!r} and {len(missing) - 1} other documents: give them "
            f"as Documents, or all of them once in corpus=, or retrieve them first"
        )
    return [[known[one] if isinstance(one, str) else one for one in each] for each in sets]


def _write_prefix(template: Render | None, documents: Sequence[Document]) -> str:
    text = cut_after_documents(template, documents) if template else None
    if text is None:
        raise UnknownTemplate(
            "it is not known what the prompts will look like before the question: give template=, "
            'such as "{context}\n\nQuestion: {question}", with the documents before the question'
        )
    return text


def cut_after_documents(template: Render, documents: Sequence[Document]) -> str | None:
    """Write a prompt and cut it off after its last document.

    Return None unless all documents stand before the question: tensors after the question depend on it,
    so no other question would find them cached. Where all documents are too short to be looked for, the
    prompt is cut off before the question.
    """
    prompt = template(QUESTION_PLACEHOLDER, documents)
    spans = find_documents(prompt, documents)
    if spans:
        text = prompt[: spans[-1].end]
        is_reusable = QUESTION_PLACEHOLDER not in text
    else:
        text, placeholder, _ = prompt.partition(QUESTION_PLACEHOLDER)
        is_reusable = bool(placeholder) and all(map(is_too_short, documents))
    if not is_reusable:
        return None
    # A part of a chat's prompt is a plain text, to which the engine would add special tokens.
    return ChatPrompt(text, prompt.template_args) if isinstance(prompt, ChatPrompt) else text
