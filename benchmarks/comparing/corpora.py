"""Loads the question sets of a run once, drops prompts too long for the model, and keeps files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from comparing.corpus_files import StoredSet
from comparing.plan import TraceSpec
from comparing.question_sets import QuestionSet, keep_fitting
from comparing.workload import Skew, draw_questions, measure_skew
from ragcache_cli.prompts import PromptForm

Tokenize = Callable[[Sequence[str]], list[list[int]]]
"""Turns texts into token ids, as the model reads them."""
LONGEST_ANSWER = 32
ANSWER_UNKNOWN = 16
"""How many tokens are generated for a question without a known answer."""
BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Prepared:
    """A question set as files for the workers. lengths: how many tokens each answer gets."""

    folder: Path
    lengths: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReadySet:
    """A question set at one top-k.

    found: for each question the ids of its documents, nearest first. prompts: for each question the token
    ids of its prompt. left_out: how many questions were dropped because their prompts do not fit the
    context.
    """

    given: QuestionSet
    prepared: Prepared
    found: list[tuple[str, ...]]
    prompts: list[list[int]]
    left_out: int


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The facts of a trace for the reader of a report.

    prompt_tokens, answer_tokens: means over its requests. live_tokens: the tokens in all different
    blocks of its prompts. left_out: as in ReadySet.
    """

    trace: str
    skew: Skew
    prompt_tokens: float
    answer_tokens: float
    live_tokens: int
    left_out: int


@dataclass(slots=True)
class Corpora:
    """Loads question sets, and keeps the prepared ones.

    load: loads a set by its name; called once for each set. model: a folder or hub id.
    folder: where to write the sets' files for the workers.
    """

    load: Callable[[str], QuestionSet]
    tokenize: Tokenize
    form: PromptForm
    model: str
    context_tokens: int
    folder: Path
    _ready: dict[tuple[str, int], ReadySet] = field(default_factory=dict)
    _sets: dict[str, QuestionSet] = field(default_factory=dict)

    def prepared(self, trace: TraceSpec) -> Prepared:
        """Return the files of a trace's set. Raises as `ready` does."""
        return self.ready(trace.set, trace.top_k).prepared

    def ready(self, name: str, top_k: int) -> ReadySet:
        """Return a set at one top-k, made on the first call.

        Raises what loading raises; CommandError if no prompt fits the context.
        """
        if (name, top_k) not in self._ready:
            if name not in self._sets:
                self._sets[name] = self.load(name)
            self._ready[name, top_k] = self._make(self._sets[name], name, top_k)
        return self._ready[name, top_k]

    def summarize(self, trace: TraceSpec, count: int, seed: int) -> TraceSummary:
        """Describe the `count` requests that are drawn for this trace."""
        ready = self.ready(trace.set, trace.top_k)
        numbers = draw_questions(len(ready.found), count, trace.zipf, seed)
        lengths = [ready.prepared.lengths[number] for number in numbers]
        return TraceSummary(
            trace=trace.name,
            skew=measure_skew(
                [ready.found[number] for number in numbers], len(ready.given.documents)
            ),
            prompt_tokens=sum(len(ready.prompts[number]) for number in numbers) / count,
            answer_tokens=sum(lengths) / count,
            live_tokens=live_tokens([ready.prompts[number] for number in set(numbers)]),
            left_out=ready.left_out,
        )

    def _make(self, given: QuestionSet, name: str, top_k: int) -> ReadySet:
        found = given.search_all(top_k)
        texts = [
            self.form.filled([given.documents[one] for one in documents], question.text)
            for documents, question in zip(found, given.questions, strict=True)
        ]
        room = self.context_tokens - LONGEST_ANSWER
        prompts = self.tokenize(texts)
        fits = [len(prompt) <= room for prompt in prompts]
        fitting = keep_fitting(given, fits)
        golds = [question.answers[0] if question.answers else "" for question in fitting.questions]
        lengths = [
            min(LONGEST_ANSWER, max(1, len(ids))) if gold else ANSWER_UNKNOWN
            for gold, ids in zip(golds, self.tokenize(golds), strict=True)
        ]
        folder = self.folder / f"{name}-{top_k}"
        StoredSet(
            questions=[question.text for question in fitting.questions],
            documents=dict(fitting.documents),
            rows=list(fitting.rows),
            form=self.form,
            index=fitting.index,
            vectors=fitting.vectors,
        ).write(folder)
        return ReadySet(
            given=fitting,
            prepared=Prepared(folder, lengths),
            found=[one for one, does in zip(found, fits, strict=True) if does],
            prompts=[one for one, does in zip(prompts, fits, strict=True) if does],
            left_out=len(fits) - sum(fits),
        )


def live_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Count the tokens in the blocks that hold all these prompts, with shared beginnings kept once."""
    blocks = set()
    for prompt in prompts:
        seen = 0
        for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            seen = hash((seen, tuple(prompt[start : start + BLOCK_TOKENS])))
            blocks.add(seen)
    return BLOCK_TOKENS * len(blocks)
