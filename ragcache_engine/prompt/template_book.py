"""What the prompts of each chain look like: learned from those that came, forgotten when they change.

A chain is told apart by an opaque key, such as one for each retriever. Several LLM chains may share
one, so a few templates are kept for each, the most recently right one first. A template is trusted
while it was right about the last prompt it spoke about, and leaves after two misses in a row.
Source: RAGCache, §5.3 (what a speculative generation needs to know before the pipeline has written it).
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
    """What a pipeline is expected to send.

    text: the whole prompt, or the prompt up to the end of its last document.
    options: those that came with the chain's last prompt; None before any prompt of it.
    """

    text: str
    is_whole: bool
    options: SamplingOptions | None


@dataclass(slots=True)
class TemplateBook:
    """The templates of all chains; those least recently used are forgotten. Safe to share."""

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
        """What the chain will make of the documents, nearest first; None without a trusted template.

        explicit: goes first, until it was wrong twice in a row.
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
        """Those of the last prompt of any chain; None before the first."""
        return self._options

    def may_guess(self, chain: Hashable, explicit: Render | None = None) -> bool:
        """Whether asking for a guess makes sense at all. Waits for nothing."""
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
        """Learn from a prompt that the chain made of the documents."""
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
    """A function of the user's may raise what it likes; then it has no say."""
    try:
        text = render(question, documents)
    except Exception as error:
        logger.warning("the prompt template given to the retriever failed: %r", error)
        return None
    return text if isinstance(text, str) else None


@dataclass(frozen=True)
class _Prompt:
    question: str
    documents: Sequence[Document]
    text: str
    options: SamplingOptions

    @cached_property
    def parsed(self) -> tuple[ParsedPrompt, ...]:
        return parse_prompt(self.text, self.question, self.documents)


@dataclass(slots=True)
class _TrackRecord:
    """How a template fared. proven: right about a prompt it was not learned from."""

    proven: bool = False
    needs_proof: bool = False
    misses: int = 0

    @property
    def is_trusted(self) -> bool:
        return not self.misses and (self.proven or not self.needs_proof)

    def note(self, guess: str | None, is_right: bool) -> None:
        if guess is not None:
            self.misses = 0 if is_right else self.misses + 1

    def after_learning(self, guess: str | None, is_right: bool) -> _TrackRecord:
        """Once it learned from a prompt it had a guess at: who was wrong has to prove itself."""
        if guess is None:
            return replace(self)
        return _TrackRecord(proven=is_right, needs_proof=True)


_Learning = Callable[[LearnedTemplate, ParsedPrompt], LearnedTemplate | None]


@dataclass(slots=True)
class _Candidate:
    """A learned template, with its record as a whole and that of its text up to the last document."""

    template: LearnedTemplate
    options: SamplingOptions
    whole: _TrackRecord = field(default_factory=_TrackRecord)
    head: _TrackRecord = field(default_factory=_TrackRecord)

    def trusted(self) -> tuple[LearnedTemplate, SamplingOptions, bool, bool]:
        return self.template, self.options, self.whole.is_trusted, self.head.is_trusted

    @property
    def is_unlearned(self) -> bool:
        return max(self.whole.misses, self.head.misses) >= MISSES_TO_UNLEARN

    def confirm(self, prompt: _Prompt) -> bool:
        """Whether it writes this very prompt; then it takes the credit."""
        template = _find_confirmed(self.template, prompt)
        if template is None:
            return False
        if all(seen.question != prompt.question for seen in template.tails):
            self.whole.proven = self.head.proven = True  # one it was learned from proves nothing
        self.whole.misses = self.head.misses = 0
        self.template, self.options = template, prompt.options
        return True

    def join(self, prompt: _Prompt) -> list[_Candidate]:
        """What it becomes with the prompt, if both may be of one template; one for each reading."""
        return self._with(prompt, extend_template)

    def branch(self, prompt: _Prompt) -> list[_Candidate]:
        """Others of the same head, if the prompt is like this one up to its last document."""
        branches = self._with(prompt, branch_template)
        return [replace(branch, whole=_TrackRecord(needs_proof=True)) for branch in branches]

    def _with(self, prompt: _Prompt, learn: _Learning) -> list[_Candidate]:
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
    """The template if it writes this prompt, knowing now what happens to blank documents."""
    forms = [template]
    if template.keeps_blanks is None and not all(d.text.strip() for d in prompt.documents):
        forms = [with_blanks_kept(template, kept) for kept in (True, False)]
    return next(
        (f for f in forms if f.write_prompt(prompt.question, prompt.documents) == prompt.text), None
    )


@dataclass(slots=True)
class _Chain:
    """The candidates of one chain, the most recently right one first."""

    candidates: list[_Candidate] = field(default_factory=list)
    options: SamplingOptions | None = None
    explicit_misses: int = 0
    # The last prompt was not what the first candidate had said: newcomers must prove themselves.
    missed: bool = False

    def learn(self, prompt: _Prompt) -> None:
        self._judge_first(prompt)
        newest, others = self._after(prompt)
        self.candidates = [c for c in (*newest, *others) if not c.is_unlearned][:MOST_TEMPLATES]

    def _after(self, prompt: _Prompt) -> tuple[list[_Candidate], list[_Candidate]]:
        """Those that write this prompt, and the others."""
        for at, candidate in enumerate(self.candidates):
            if candidate.confirm(prompt):
                return [candidate], self.candidates[:at] + self.candidates[at + 1 :]
        for at, candidate in enumerate(self.candidates):
            if more := candidate.join(prompt):
                return more, self.candidates[:at] + self.candidates[at + 1 :]
        branches = (candidate.branch(prompt) for candidate in self.candidates)
        return next(filter(None, branches), None) or self._new(prompt), self.candidates

    def _judge_first(self, prompt: _Prompt) -> None:
        if not self.candidates:
            return
        first = self.candidates[0]
        whole = first.template.write_prompt(prompt.question, prompt.documents)
        head = first.template.write_head(prompt.question, prompt.documents)
        if whole is not None:
            self.missed = whole != prompt.text
        first.whole.note(whole, whole == prompt.text)
        first.head.note(head, head is not None and prompt.text.startswith(head))

    def _new(self, prompt: _Prompt) -> list[_Candidate]:
        found = prompt.parsed
        needs_proof = self.missed or len(found) > 1
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
