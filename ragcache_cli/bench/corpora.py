"""The question sets of a run: made once, cut to what the model's context takes, and kept as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ragcache_cli.bench.corpus_files import Kept
from ragcache_cli.bench.drive import Prepared
from ragcache_cli.bench.plan import Trace
from ragcache_cli.bench.question_sets import QuestionSet, shortened
from ragcache_cli.bench.workload import Skew, drawn, skew_of
from ragcache_cli.prompts import PromptForm

Tokens = Callable[[Sequence[str]], list[list[int]]]
"""Texts to token ids, as the model reads them."""
LONGEST_ANSWER = 32
ANSWER_UNKNOWN = 16
"""Tokens of an answer to a question without a known one."""
BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Ready:
    """A question set at one top-k. prompts: the tokens of each question's prompt."""

    given: QuestionSet
    prepared: Prepared
    found: list[tuple[str, ...]]
    prompts: list[list[int]]
    left_out: int


@dataclass(frozen=True, slots=True)
class About:
    """What a reader has to know of a trace. live_tokens: in the different blocks it asks for."""

    trace: str
    skew: Skew
    prompt_tokens: float
    answer_tokens: float
    live_tokens: int
    left_out: int


@dataclass(slots=True)
class Corpora:
    """load: a set by its name; called once a set. model: a folder or hub id.

    folder: where sets are kept for the workers.
    """

    load: Callable[[str], QuestionSet]
    tokens: Tokens
    form: PromptForm
    model: str
    context_tokens: int
    folder: Path
    _ready: dict[tuple[str, int], Ready] = field(default_factory=dict)
    _sets: dict[str, QuestionSet] = field(default_factory=dict)

    def prepared(self, trace: Trace) -> Prepared:
        """Raises what loading raises; CommandError if no prompt fits the context."""
        return self.ready(trace.set, trace.top_k).prepared

    def ready(self, name: str, top_k: int) -> Ready:
        if (name, top_k) not in self._ready:
            if name not in self._sets:
                self._sets[name] = self.load(name)
            self._ready[name, top_k] = self._made(self._sets[name], name, top_k)
        return self._ready[name, top_k]

    def about(self, trace: Trace, count: int, seed: int) -> About:
        """Of the `count` requests that are drawn for this trace."""
        ready = self.ready(trace.set, trace.top_k)
        numbers = drawn(len(ready.found), count, trace.zipf, seed)
        lengths = [ready.prepared.lengths[number] for number in numbers]
        return About(
            trace=trace.name,
            skew=skew_of([ready.found[number] for number in numbers], len(ready.given.documents)),
            prompt_tokens=sum(len(ready.prompts[number]) for number in numbers) / count,
            answer_tokens=sum(lengths) / count,
            live_tokens=live_tokens([ready.prompts[number] for number in set(numbers)]),
            left_out=ready.left_out,
        )

    def _made(self, given: QuestionSet, name: str, top_k: int) -> Ready:
        found = given.found(top_k)
        texts = [
            self.form.filled([given.documents[one] for one in documents], question.text)
            for documents, question in zip(found, given.questions, strict=True)
        ]
        room = self.context_tokens - LONGEST_ANSWER
        prompts = self.tokens(texts)
        fits = [len(prompt) <= room for prompt in prompts]
        fitting = shortened(given, fits)
        golds = [question.answers[0] if question.answers else "" for question in fitting.questions]
        lengths = [
            min(LONGEST_ANSWER, max(1, len(ids))) if gold else ANSWER_UNKNOWN
            for gold, ids in zip(golds, self.tokens(golds), strict=True)
        ]
        folder = self.folder / f"{name}-{top_k}"
        Kept(
            questions=[question.text for question in fitting.questions],
            documents=dict(fitting.documents),
            rows=list(fitting.rows),
            form=self.form,
            index=fitting.index,
            vectors=fitting.vectors,
        ).write(folder)
        return Ready(
            given=fitting,
            prepared=Prepared(Trace(name, top_k, None), folder, lengths),
            found=[one for one, does in zip(found, fits, strict=True) if does],
            prompts=[one for one, does in zip(prompts, fits, strict=True) if does],
            left_out=len(fits) - sum(fits),
        )


def live_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens in the blocks that hold all these prompts, each beginning they share kept once."""
    blocks = set()
    for prompt in prompts:
        seen = 0
        for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            seen = hash((seen, tuple(prompt[start : start + BLOCK_TOKENS])))
            blocks.add(seen)
    return BLOCK_TOKENS * len(blocks)
