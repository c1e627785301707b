"""Know what the prompts of each chain look like: learn it from prompts, and unlearn what has changed.

A chain is named by an opaque key, such as one for each retriever. Several LLM chains may share a key, so
a few templates are kept for each key, the most recently right one first. A template is trusted as long
as it was right about the last prompt that it made a guess for. After two misses in a row it is dropped.
Source: RAGCache, §5.3 (a speculative generation needs the prompt before the chain has written it).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock

from ragcache_engine.prompt.learning import (
    LearnedTemplate,
    branch_template,
    extend_template,
    learn_template,
    with_blanks_kept,
)
from ragcache_engine.prompt.prompt_parsing import ParsedPrompt, parse_prompt
from ragcache_engine.prompt.template import Render
from ragcache_engine.values import Document, SamplingOptions

logger = logging.getLogger(__name__)

MISSES_TO_UNLEARN = 2
MOST_TEMPLATES = 4
MOST_CHAINS = 64


@dataclass(frozen=True, slots=True)
class Guess:
    """What a chain is expected to send.

    text: the prompt if `is_whole`, else the prompt up to the end of its last document.
    options: those of the last prompt that the template was right about, or with an explicit template
      those of the chain's last prompt; None before the chain's first prompt.
    """

    text: str
    is_whole: bool
    options: SamplingOptions | None


@dataclass(slots=True)
class TemplateBook:
    """Keep the templates of all chains, and forget the chains least recently used.

    Safe to share between threads.
    """

    _chains: OrderedDict[Hashable, _Chain] = field(default_factory=OrderedDict, init=False)
    _options: SamplingOptions | None = field(default=None, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def guess(
        self,
        chain: Hashable,
        question: str,
        documents: Sequence[Document],
        explicit: Render | None = None,
    ) -> Guess | None:
        """Return the prompt that the chain will write with these documents, nearest first.

        Return None if no trusted template can tell.
        explicit: a template given by the user. It is asked first, unless its last two guesses were wrong.
        """
        with self._lock:
            known = self._chain(chain)
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

    def may_guess(self, chain: Hashable, explicit: Render | None = None) -> bool:
        """Return False if `guess` would return None whatever the documents. Takes no lock."""
        known = self._chains.get(chain, _Chain())
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
    ) -> None:
        """Learn from a prompt that the chain has written with these documents, nearest first.

        explicit: the template that the user gave for it; its record is kept too.
        """
        is_right = explicit is not None and _render(explicit, question, documents) == prompt
        with self._lock:
            known = self._chain(chain)
            known.options = self._options = options
            if explicit:
                known.explicit_misses = 0 if is_right else known.explicit_misses + 1
            known.learn(_Prompt(question, documents, prompt, options))

    def _chain(self, key: Hashable) -> _Chain:
        known = self._chains.setdefault(key, _Chain())
        self._chains.move_to_end(key)
        if len(self._chains) > MOST_CHAINS:
            self._chains.popitem(last=False)
        return known


def _render(render: Render, question: str, documents: Sequence[Document]) -> str | None:
    """Return the prompt that a function of the user writes; None if it raises or writes no text."""
    try:
        text = render(question, documents)
    except Exception as error:
        logger.warning("the prompt template given to the retriever failed: %r", error)
        return None
    return text if isinstance(text, str) else None


@dataclass(frozen=True)
class _Prompt:
    """A prompt to learn from. It is parsed when that is first needed."""

    question: str
    documents: Sequence[Document]
    text: str
    options: SamplingOptions

    @cached_property
    def parsed(self) -> tuple[ParsedPrompt, ...]:
        return parse_prompt(self.text, self.question, self.documents)


@dataclass(slots=True)
class _TrackRecord:
    """How often a template was right lately.

    is_proven: it was right about a prompt that it was not learned from.
    needs_proof: it is not trusted before it is proven.
    misses: wrong guesses since the last right one.
    """

    is_proven: bool = False
    needs_proof: bool = False
    misses: int = 0

    @property
    def is_trusted(self) -> bool:
        return not self.misses and (self.is_proven or not self.needs_proof)

    def note(self, guess: str | None, is_right: bool) -> None:
        """Count one guess. None: the template made none."""
        if guess is not None:
            self.misses = 0 if is_right else self.misses + 1

    def after_learning(self, guess: str | None, is_right: bool) -> _TrackRecord:
        """Return the record of the template after it has learned from a prompt.

        guess: what the template said of this prompt before. If that was wrong, it needs new proof.
        """
        if guess is None:
            return replace(self)
        return _TrackRecord(is_proven=is_right, needs_proof=True)


_Learning = Callable[[LearnedTemplate, ParsedPrompt], LearnedTemplate | None]


@dataclass(slots=True)
class _Candidate:
    """A learned template with two records: of whole prompts, and of their text up to the last document.

    options: those of the last prompt that it was right about.
    """

    template: LearnedTemplate
    options: SamplingOptions
    whole: _TrackRecord = field(default_factory=_TrackRecord)
    head: _TrackRecord = field(default_factory=_TrackRecord)

    def trusted(self) -> tuple[LearnedTemplate, SamplingOptions, bool, bool]:
        """Return the template, its options, and whether whole prompts and heads are trusted."""
        return self.template, self.options, self.whole.is_trusted, self.head.is_trusted

    @property
    def is_unlearned(self) -> bool:
        """Whether the template was wrong too often to be kept."""
        return max(self.whole.misses, self.head.misses) >= MISSES_TO_UNLEARN

    def confirm(self, prompt: _Prompt) -> bool:
        """Return True, and update both records, if the template writes exactly this prompt."""
        template = _find_confirmed(self.template, prompt)
        if template is None:
            return False
        if all(seen.question != prompt.question for seen in template.tails):
            # A prompt that the template was learned from proves nothing.
            self.whole.is_proven = self.head.is_proven = True
        self.whole.misses = self.head.misses = 0
        self.template, self.options = template, prompt.options
        return True

    def extend(self, prompt: _Prompt) -> list[_Candidate]:
        """Return what the template may become with this prompt; nothing if it has another template."""
        return self._learn_with(prompt, extend_template)

    def branch(self, prompt: _Prompt) -> list[_Candidate]:
        """Return templates with the same head and this prompt's tail; nothing if the heads differ."""
        branches = self._learn_with(prompt, branch_template)
        return [replace(branch, whole=_TrackRecord(needs_proof=True)) for branch in branches]

    def _learn_with(self, prompt: _Prompt, learn: _Learning) -> list[_Candidate]:
        """Return a candidate for each way to parse the prompt that `learn` finds a template for."""
        templates = (learn(self.template, seen) for seen in prompt.parsed)
        found = [template for template in templates if template]
        if len(found) > 1:
            doubt = _TrackRecord(needs_proof=True)
            return [
                _Candidate(template, prompt.options, replace(doubt), replace(doubt))
                for template in found
            ]
        whole = self.template.write_prompt(prompt.question, prompt.documents)
        head = self.template.write_head(prompt.question, prompt.documents)
        return [
            _Candidate(
                template,
                prompt.options,
                self.whole.after_learning(whole, whole == prompt.text),
                self.head.after_learning(head, prompt.text.startswith(head or "")),
            )
            for template in found
        ]


def _find_confirmed(template: LearnedTemplate, prompt: _Prompt) -> LearnedTemplate | None:
    """Return the template if it writes this prompt, with what the prompt shows of blank documents."""
    forms = [template]
    if template.keeps_blanks is None and not all(d.text.strip() for d in prompt.documents):
        forms = [with_blanks_kept(template, kept) for kept in (True, False)]
    return next(
        (f for f in forms if f.write_prompt(prompt.question, prompt.documents) == prompt.text), None
    )


@dataclass(slots=True)
class _Chain:
    """What was learned of one chain.

    candidates: its templates, the most recently right one first.
    options: those of its last prompt; None before the first prompt.
    explicit_misses: wrong guesses of the explicit template since its last right one.
    has_missed: the first candidate was wrong about the last prompt that it made a guess for. Then a new
      template must prove itself before it is trusted.
    """

    candidates: list[_Candidate] = field(default_factory=list)
    options: SamplingOptions | None = None
    explicit_misses: int = 0
    has_missed: bool = False

    def learn(self, prompt: _Prompt) -> None:
        """Update the candidates with one more prompt; drop those that were wrong too often."""
        self._judge_first(prompt)
        newest, others = self._explain(prompt)
        self.candidates = [c for c in (*newest, *others) if not c.is_unlearned][:MOST_TEMPLATES]

    def _explain(self, prompt: _Prompt) -> tuple[list[_Candidate], list[_Candidate]]:
        """Return the candidates that write this prompt, changed or new if need be, and the others."""
        for at, candidate in enumerate(self.candidates):
            if candidate.confirm(prompt):
                return [candidate], self.candidates[:at] + self.candidates[at + 1 :]
        for at, candidate in enumerate(self.candidates):
            if more := candidate.extend(prompt):
                return more, self.candidates[:at] + self.candidates[at + 1 :]
        branches = (candidate.branch(prompt) for candidate in self.candidates)
        return next(filter(None, branches), None) or self._make_candidates(prompt), self.candidates

    def _judge_first(self, prompt: _Prompt) -> None:
        """Compare the prompt with what the first candidate says of it."""
        if not self.candidates:
            return
        first = self.candidates[0]
        whole = first.template.write_prompt(prompt.question, prompt.documents)
        head = first.template.write_head(prompt.question, prompt.documents)
        if whole is not None:
            self.has_missed = whole != prompt.text
        first.whole.note(whole, whole == prompt.text)
        first.head.note(head, head is not None and prompt.text.startswith(head))

    def _make_candidates(self, prompt: _Prompt) -> list[_Candidate]:
        """Return a candidate for each way to parse the prompt, learned from this prompt alone."""
        found = prompt.parsed
        needs_proof = self.has_missed or len(found) > 1
        templates = (learn_template((seen,), (seen,)) for seen in found)
        return [
            _Candidate(
                template,
                prompt.options,
                whole=_TrackRecord(needs_proof=needs_proof),
                head=_TrackRecord(needs_proof=needs_proof),
            )
            for template in templates
            if template is not None
        ]
