"""Know what the prompts of each chain look like: learn it from prompts, and unlearn what has changed.

A chain is named by an opaque key, such as one for each retriever. What one tenant's prompts teach stays
with that tenant. Several LLM chains may share a key, so
a few templates are kept for each key, the most recently right one first. A template is trusted as long
as it was right about the last prompt that it made a guess for. After two misses in a row it is dropped.
Source: RAGCache, §5.3 (a speculative generation needs the prompt before the chain has written it).
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from ragcache_engine.prompt.chain_store import ChainStore
from ragcache_engine.prompt.chain_templates import (
    MISSES_TO_UNLEARN,
    ChainTemplates,
    FinishedPrompt,
)
from ragcache_engine.prompt.template import Render
from ragcache_engine.values import Document, SamplingOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Guess:
    """The prompt that a chain will probably send.

    text: the prompt if `is_whole`, else the prompt up to the end of its last document.
    options: the sampling options of the last prompt that the template was right about. With an explicit
      template, those of the chain's last prompt. None before the chain's first prompt.
    """

    text: str
    is_whole: bool
    options: SamplingOptions | None


@dataclass(slots=True)
class TemplateBook:
    """Keep the templates of all chains within limits; see chain_store.py. Safe to share between threads.

    tenant, in every method: whose chain it is.
    """

    _chains: ChainStore = field(default_factory=ChainStore, init=False)
    _options: SamplingOptions | None = field(default=None, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def guess(
        self,
        chain: Hashable,
        question: str,
        documents: Sequence[Document],
        explicit: Render | None = None,
        *,
        tenant: str | None = None,
    ) -> Guess | None:
        """Return the prompt that the chain will write with these documents, nearest first.

        Return None if no trusted template can tell.
        explicit: the user's template. It is asked first, unless its last two guesses were wrong.
        """
        with self._lock:
            known = self._chains.use(tenant, chain) or ChainTemplates()
            options = known.options
            tries_explicit = known.explicit_misses < MISSES_TO_UNLEARN
            candidates = [c.trusted() for c in known.candidates]
        if explicit and tries_explicit and (text := _render(explicit, question, documents)):
            return Guess(text, True, options)
        for template, options, is_whole, _ in candidates:
            if is_whole and (text := template.write_prompt(question, documents)):
                return Guess(text, True, options)
        for template, options, _, is_head in candidates:
            if is_head and (text := template.write_head(question, documents)):
                return Guess(text, False, options)
        return None

    def last_options(self) -> SamplingOptions | None:
        """Return the sampling options of the last prompt of any chain; None before the first prompt."""
        return self._options

    def may_guess(
        self, chain: Hashable, explicit: Render | None = None, *, tenant: str | None = None
    ) -> bool:
        """Return False if `guess` would return None for any documents. Takes no lock."""
        known = self._chains.find(tenant, chain) or ChainTemplates()
        return (explicit is not None and known.explicit_misses < MISSES_TO_UNLEARN) or any(
            c.whole.is_trusted or c.head.is_trusted for c in known.candidates
        )

    def learn(
        self,
        chain: Hashable,
        question: str,
        documents: Sequence[Document],
        prompt: str,
        options: SamplingOptions,
        explicit: Render | None = None,
        *,
        tenant: str | None = None,
    ) -> None:
        """Learn from a prompt that the chain has written with these documents, nearest first.

        explicit: the user's template for this prompt; the book counts its misses too.
        """
        is_right = explicit is not None and _render(explicit, question, documents) == prompt
        with self._lock:
            known = self._chains.find(tenant, chain) or ChainTemplates()
            known.options = self._options = options
            if explicit:
                known.explicit_misses = 0 if is_right else known.explicit_misses + 1
            known.learn(FinishedPrompt(question, documents, prompt, options))
            self._chains.put(tenant, chain, known)


def _render(render: Render, question: str, documents: Sequence[Document]) -> str | None:
    """Return the prompt that a function of the user writes; None if it raises or writes no text."""
    try:
        text = render(question, documents)
    except Exception as error:
        logger.warning("the prompt template given to the retriever failed: %r", error)
        return None
    return text if isinstance(text, str) else None
