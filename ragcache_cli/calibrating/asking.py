"""Asks one engine the same questions in several ways: exactly, one by one or at once, and at a ratio."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ragcache_cli.calibrating.cases import Case
from ragcache_cli.errors import CommandError
from ragcache_cli.model_prompts import ASK_INSTRUCTION
from ragcache_cli.prompts import BEFORE_QUESTION, BETWEEN_PASSAGES, plain_form
from ragcache_cli.terminal import Done
from ragcache_engine import (
    Answer,
    Corpus,
    NoChatTemplate,
    RAGCacheEngine,
    RefusedMessages,
    SamplingOptions,
)

AT_ONCE = 16
"""How many questions to ask at once, where batches are to differ from those of single questions."""


class Asker:
    """Asks an engine the questions of these cases, greedily.

    cases: those whose prompt fits into the model's context; `left_out` counts the others.
    Raises CommandError if no prompt fits.
    """

    def __init__(self, engine: RAGCacheEngine, cases: Sequence[Case], max_tokens: int) -> None:
        self._engine = engine
        self._options = SamplingOptions(max_tokens=max_tokens)
        room = engine.limits.context_tokens - max_tokens
        written = [(case, _write_prompt(engine, case)) for case in cases]
        fitting = [(case, text) for case, text in written if len(engine.tokenize(text)) <= room]
        if not fitting:
            raise CommandError(
                f"no prompt fits into the model's context of {engine.limits.context_tokens} tokens "
                f"with an answer of {max_tokens}: give a smaller --top-k or --max-tokens"
            )
        self.left_out = len(cases) - len(fitting)
        self.cases = [case for case, _ in fitting]
        self._prompts = [text for _, text in fitting]

    def prepare(self, corpus: Corpus) -> None:
        """Tell the engine the documents' neighbours, and let it compile what it compiles late."""
        for case in self.cases:
            with self._engine.retrieval(case.asked.question) as retrieval:
                retrieval.look_up_neighbours(case.documents, corpus)
        self._ask(0, replace(self._options, max_tokens=1), exact=True)

    def exactly(self, done: Done) -> list[Answer]:
        """Ask one question after the other, from an empty cache."""
        self._engine.clear_cache()
        return [
            self._told(done, at, self._ask(at, self._options, exact=True))
            for at in range(len(self.cases))
        ]

    def exactly_at_once(self, done: Done) -> list[Answer]:
        """Ask AT_ONCE questions at the same time, from an empty cache."""
        self._engine.clear_cache()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            coming = threads.map(
                lambda at: self._ask(at, self._options, exact=True), range(len(self.cases))
            )
            return [self._told(done, at, answer) for at, answer in enumerate(coming)]

    def store_donors(self, done: Done) -> None:
        """Let the engine compute what it borrows from, as `warm` would, from an empty cache.

        At ratio 1 a prompt leaves its donors, and no tensors that it finds again at another ratio.
        """
        self._engine.clear_cache()
        options = replace(self._options, max_tokens=1)
        for at in range(len(self.cases)):
            self._told(done, at, self._ask(at, options, ratio=1.0))

    def at_ratio(self, ratio: float, done: Done) -> list[Answer]:
        """Ask one question after the other at this recompute ratio."""
        return [
            self._told(done, at, self._ask(at, self._options, ratio=ratio))
            for at in range(len(self.cases))
        ]

    def _ask(
        self,
        at: int,
        options: SamplingOptions,
        *,
        exact: bool = False,
        ratio: float | None = None,
    ) -> Answer:
        documents = self.cases[at].documents
        return self._engine.generate(
            self._prompts[at], documents, options, exact=exact, recompute_ratio=ratio
        )

    def _told(self, done: Done, at: int, answer: Answer) -> Answer:
        done(at + 1, len(self.cases))
        return answer


def _write_prompt(engine: RAGCacheEngine, case: Case) -> str:
    """Write the prompt by the engine's chat template, or plainly for a model without one.

    Some templates refuse a system message: then the user's message begins with the instruction.
    """
    texts = [document.text for document in case.documents]
    context = BETWEEN_PASSAGES.join(texts)
    content = f"{context}{BEFORE_QUESTION}{case.asked.question}"
    user = {"role": "user", "content": content}
    try:
        return engine.chat.prompt([{"role": "system", "content": ASK_INSTRUCTION}, user])
    except NoChatTemplate:
        return plain_form(ASK_INSTRUCTION).filled(texts, case.asked.question)
    except RefusedMessages:
        return engine.chat.prompt([{**user, "content": f"{ASK_INSTRUCTION}\n\n{content}"}])
