"""Foresee the prompts of each chain: by the user's template, or by the form of the chain's last prompt.

A chain is named by an opaque key, such as one for each retriever. What one tenant's prompts show is used
for that tenant alone. A wrong guess costs work and never changes an answer, so one prompt is enough to
guess by. If the next one has another form, only what both have in common is foreseen.
Source: RAGCache, §5.3 (a speculative generation needs the prompt before the chain has written it).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from ragcache_engine.prompt.form import PromptForm, read_forms
from ragcache_engine.prompt.template import Render
from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.values import Document, SamplingOptions

logger = logging.getLogger(__name__)

MOST_CHAINS = 512
MOST_CHARACTERS = 32 << 10
"""A form with more text around the documents is not remembered."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The prompt that a chain will probably send.

    text: the prompt if `is_whole`, else the prompt up to the end of its last document.
    options: the sampling options of the chain's last prompt; None before its first prompt.
    """

    text: str
    is_whole: bool
    options: SamplingOptions | None


@dataclass(frozen=True, slots=True)
class _Chain:
    """What is known of one chain.

    form: that of the last prompt in which all documents were found; None before the first.
    has_head, has_tail: whether the next prompt will probably have this form up to its last document, and
      from there on.
    misses_template: whether the user's template was wrong about the last prompt.
    is_choosy: whether the last prompt had only some of the documents found, as behind a reranker.
    others: ids of documents whose text may stand in the form, around those of the chain's own search.
    """

    form: PromptForm | None = None
    has_head: bool = False
    has_tail: bool = False
    options: SamplingOptions | None = None
    misses_template: bool = False
    is_choosy: bool = False
    others: frozenset[str] = frozenset()

    def after_prompt(self, forms: Sequence[PromptForm], others: frozenset[str]) -> _Chain:
        """Return what is known after one more prompt. forms: the ways to read it, the likeliest first."""
        return replace(self._with_form(forms), others=self.others | others)

    def _with_form(self, forms: Sequence[PromptForm]) -> _Chain:
        forms = [form for form in forms if form.count_characters() <= MOST_CHARACTERS]
        if not forms:
            return replace(self, has_head=False, has_tail=False)
        if self.form is None:
            return replace(self, form=forms[0], has_head=True, has_tail=forms[0].has_question)
        alike = next((form for form in forms if form.has_head_of(self.form)), None)
        if alike is None:
            form, others = forms[0], frozenset[str]()
            return replace(self, form=form, others=others, has_head=False, has_tail=False)
        has_tail = alike.after == self.form.after
        return replace(self, form=alike.with_more_of(self.form), has_head=True, has_tail=has_tail)


@dataclass(slots=True)
class TemplateBook:
    """Remember the form of each chain's prompts, for the MOST_CHAINS chains of the latest prompts.

    Safe to share between threads. tenant, in every method: whose chain it is.
    """

    _chains: OrderedDict[tuple[str | None, Hashable], _Chain] = field(
        default_factory=OrderedDict, init=False
    )
    _options: SamplingOptions | None = field(default=None, init=False)
    _expected_options: SamplingOptions | None = field(default=None, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def guess(
        self,
        chain: Hashable,
        question: str,
        documents: Sequence[Document],
        explicit: Render | None = None,
        *,
        tenant: str | None = None,
        are_chosen: bool = False,
    ) -> Guess | None:
        """Return the prompt that the chain will write with these documents, nearest first.

        Return None if nothing can tell.
        explicit: the user's template. It is asked first, unless it was wrong about the last prompt.
        are_chosen: whether all these documents will be in the prompt, also where a chain's prompts have
          only some of those found.
        """
        known = self._chains.get((tenant, chain), _Chain())
        if known.is_choosy and not are_chosen:
            return None
        if explicit and not known.misses_template:
            text = _render(explicit, question, documents)
            if text:
                return Guess(text, True, known.options)
        if known.form is None or not known.has_head:
            return None
        head = known.form.write_head(question, documents)
        if not head:
            return None
        tail = known.form.write_tail(question) if known.has_tail else ""
        return Guess(head + tail, known.has_tail, known.options)

    def expect_options(self, options: SamplingOptions) -> None:
        """Expect the first prompt to have these sampling options."""
        self._expected_options = options

    def last_options(self) -> SamplingOptions | None:
        """Return the sampling options of the last prompt of any chain.

        Before the first prompt, return those that are expected; None if nothing is.
        """
        return self._options or self._expected_options

    def may_guess(
        self,
        chain: Hashable,
        explicit: Render | None = None,
        *,
        tenant: str | None = None,
        are_chosen: bool = False,
    ) -> bool:
        """Return False if `guess` would return None for any documents."""
        known = self._chains.get((tenant, chain), _Chain())
        if known.is_choosy and not are_chosen:
            return False
        return known.has_head or (explicit is not None and not known.misses_template)

    def remember(
        self,
        chain: Hashable,
        question: str,
        documents: Sequence[Document],
        prompt: str,
        options: SamplingOptions,
        explicit: Render | None = None,
        *,
        tenant: str | None = None,
        is_choice: bool = False,
        others: Iterable[str] = (),
    ) -> None:
        """Note a prompt that the chain has written with these documents, nearest first.

        explicit: the user's template for this prompt. is_choice: whether others were found as well, which
          are not in it. others: ids of further documents in it, which its form may hold.
        """
        misses = explicit is not None and _render(explicit, question, documents) != prompt
        forms = list(read_forms(prompt, question, documents))
        with self._lock:
            known = self._chains.get((tenant, chain), _Chain())
            known = known.after_prompt(forms, frozenset(others))
            known = replace(known, options=options, misses_template=misses, is_choosy=is_choice)
            self._chains[tenant, chain] = known
            self._chains.move_to_end((tenant, chain))
            self._options = options
            if len(self._chains) > MOST_CHAINS:
                self._chains.popitem(last=False)

    def forget(self, ids: Iterable[str]) -> None:
        """Remember nothing of tenants, nor of chains whose form may hold one of these documents.

        ids: of documents, and those with which tenants are forgotten.
        """
        doomed = set(ids)
        with self._lock:
            for key, chain in list(self._chains.items()):
                if not doomed.isdisjoint((*chain.others, *forget_ids_of(key[0]))):
                    del self._chains[key]


def _render(render: Render, question: str, documents: Sequence[Document]) -> str | None:
    """Return the prompt that a function of the user writes; None if it raises or writes no text."""
    try:
        text = render(question, documents)
    except Exception as error:
        logger.warning("the prompt template given to the retriever failed: %r", error)
        return None
    return text if isinstance(text, str) else None
