"""Keep the templates of one chain: learn from each prompt, and decide which templates to trust.

A template is trusted as long as it was right about the last prompt that it made a guess for. After
MISSES_TO_UNLEARN misses in a row it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ragcache_engine.prompt.learning import (
    LearnedTemplate,
    branch_template,
    extend_template,
    learn_template,
    with_blanks_kept,
)
from ragcache_engine.prompt.prompt_parsing import ParsedPrompt, parse_prompt
from ragcache_engine.values import Document, SamplingOptions

MISSES_TO_UNLEARN = 2
MOST_TEMPLATES = 4


@dataclass(frozen=True)
class FinishedPrompt:
    """A prompt to learn from. It is parsed on first use."""

    question: str
    documents: Sequence[Document]
    text: str
    options: SamplingOptions

    @cached_property
    def parsed(self) -> tuple[ParsedPrompt, ...]:
        return parse_prompt(self.text, self.question, self.documents)


@dataclass(slots=True)
class TrackRecord:
    """How often a template was right lately.

    is_proven: the template was right about a prompt that it was not learned from.
    needs_proof: do not trust the template before it is proven.
    misses: wrong guesses since the last right one.
    """

    is_proven: bool = False
    needs_proof: bool = False
    misses: int = 0

    @property
    def is_trusted(self) -> bool:
        return not self.misses and (self.is_proven or not self.needs_proof)

    def note(self, guess: str | None, is_right: bool) -> None:
        """Count one guess of the template. guess: None if the template made none."""
        if guess is not None:
            self.misses = 0 if is_right else self.misses + 1

    def after_learning(self, guess: str | None, is_right: bool) -> TrackRecord:
        """Return the record of the template after it has learned from a prompt.

        guess: what the template predicted for this prompt. If that was wrong, the template needs new
          proof.
        """
        if guess is None:
            return replace(self)
        return TrackRecord(is_proven=is_right, needs_proof=True)


_Learning = Callable[[LearnedTemplate, ParsedPrompt], LearnedTemplate | None]


@dataclass(slots=True)
class Candidate:
    """A learned template with two records: of whole prompts, and of their text up to the last document.

    options: the sampling options of the last prompt that the template was right about.
    """

    template: LearnedTemplate
    options: SamplingOptions
    whole: TrackRecord = field(default_factory=TrackRecord)
    head: TrackRecord = field(default_factory=TrackRecord)

    def trusted(self) -> tuple[LearnedTemplate, SamplingOptions, bool, bool]:
        """Return the template, its options, and whether whole prompts and heads are trusted."""
        return self.template, self.options, self.whole.is_trusted, self.head.is_trusted

    @property
    def is_unlearned(self) -> bool:
        """Whether the template was wrong too often to be kept."""
        return max(self.whole.misses, self.head.misses) >= MISSES_TO_UNLEARN

    def confirm(self, prompt: FinishedPrompt) -> bool:
        """Return True, and update both records, if the template writes exactly this prompt."""
        template = _find_confirmed(self.template, prompt)
        if template is None:
            return False
        if all(seen.question != prompt.question for seen in template.tails):
            # A question that the template was learned from proves nothing.
            self.whole.is_proven = self.head.is_proven = True
        self.whole.misses = self.head.misses = 0
        self.template, self.options = template, prompt.options
        return True

    def extend(self, prompt: FinishedPrompt) -> list[Candidate]:
        """Return the templates that fit this prompt too; none if the prompt has another template."""
        return self._learn_with(prompt, extend_template)

    def branch(self, prompt: FinishedPrompt) -> list[Candidate]:
        """Return templates with the same head and this prompt's tail; nothing if the heads differ."""
        branches = self._learn_with(prompt, branch_template)
        return [replace(branch, whole=TrackRecord(needs_proof=True)) for branch in branches]

    def _learn_with(self, prompt: FinishedPrompt, learn: _Learning) -> list[Candidate]:
        """Return a candidate for each way to parse the prompt that `learn` finds a template for."""
        templates = (learn(self.template, seen) for seen in prompt.parsed)
        found = [template for template in templates if template]
        if len(found) > 1:
            doubt = TrackRecord(needs_proof=True)
            return [
                Candidate(template, prompt.options, replace(doubt), replace(doubt))
                for template in found
            ]
        whole = self.template.write_prompt(prompt.question, prompt.documents)
        head = self.template.write_head(prompt.question, prompt.documents)
        return [
            Candidate(
                template,
                prompt.options,
                self.whole.after_learning(whole, whole == prompt.text),
                self.head.after_learning(head, prompt.text.startswith(head or "")),
            )
            for template in found
        ]


def _find_confirmed(template: LearnedTemplate, prompt: FinishedPrompt) -> LearnedTemplate | None:
    """Return the template, with what it learns about blank documents, if it writes this prompt."""
    forms = [template]
    if template.keeps_blanks is None and not all(d.text.strip() for d in prompt.documents):
        forms = [with_blanks_kept(template, kept) for kept in (True, False)]
    return next(
        (f for f in forms if f.write_prompt(prompt.question, prompt.documents) == prompt.text), None
    )


@dataclass(slots=True)
class ChainTemplates:
    """What the engine has learned of one chain.

    candidates: its templates, the most recently right one first.
    options: those of its last prompt; None before the first prompt.
    explicit_misses: wrong guesses of the explicit template since its last right one.
    has_missed: whether the first candidate was wrong about the last prompt that it made a guess for. If
      so, a new template is trusted only once it is proven.
    """

    candidates: list[Candidate] = field(default_factory=list)
    options: SamplingOptions | None = None
    explicit_misses: int = 0
    has_missed: bool = False

    def learn(self, prompt: FinishedPrompt) -> None:
        """Update the candidates with one more prompt; drop those that were wrong too often."""
        self._judge_first(prompt)
        newest, others = self._explain(prompt)
        self.candidates = [c for c in (*newest, *others) if not c.is_unlearned][:MOST_TEMPLATES]

    def count_characters(self) -> int:
        """Count the characters of the prompts around their documents that the templates keep."""
        return sum(
            seen.count_characters()
            for candidate in self.candidates
            for seen in (*candidate.template.heads, *candidate.template.tails)
        )

    def _explain(self, prompt: FinishedPrompt) -> tuple[list[Candidate], list[Candidate]]:
        """Return the candidates that write this prompt, changed or new if need be, and the others."""
        for at, candidate in enumerate(self.candidates):
            if candidate.confirm(prompt):
                return [candidate], self.candidates[:at] + self.candidates[at + 1 :]
        for at, candidate in enumerate(self.candidates):
            if more := candidate.extend(prompt):
                return more, self.candidates[:at] + self.candidates[at + 1 :]
        branches = (candidate.branch(prompt) for candidate in self.candidates)
        return next(filter(None, branches), None) or self._make_candidates(prompt), self.candidates

    def _judge_first(self, prompt: FinishedPrompt) -> None:
        """Compare the prompt with the first candidate's guess."""
        if not self.candidates:
            return
        first = self.candidates[0]
        whole = first.template.write_prompt(prompt.question, prompt.documents)
        head = first.template.write_head(prompt.question, prompt.documents)
        if whole is not None:
            self.has_missed = whole != prompt.text
        first.whole.note(whole, whole == prompt.text)
        first.head.note(head, head is not None and prompt.text.startswith(head))

    def _make_candidates(self, prompt: FinishedPrompt) -> list[Candidate]:
        """Return a candidate for each way to parse the prompt, learned from this prompt alone."""
        found = prompt.parsed
        needs_proof = self.has_missed or len(found) > 1
        templates = (learn_template((seen,), (seen,)) for seen in found)
        return [
            Candidate(
                template,
                prompt.options,
                whole=TrackRecord(needs_proof=needs_proof),
                head=TrackRecord(needs_proof=needs_proof),
            )
            for template in templates
            if template is not None
        ]
