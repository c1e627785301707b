"""Prefills documents before anybody asks about them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from ragcache_engine.checks import require_instance, require_items
from ragcache_engine.errors import UnknownDocument, UnknownTemplate
from ragcache_engine.prompt import Render, find_documents
from ragcache_engine.values import DOCUMENTS_HINT, Answer, Document, Usage

T = TypeVar("T")

QUESTION_PLACEHOLDER = "\x00the question comes here\x00"
"""Stands in for a question, and occurs in no document. The prefilled text ends before it."""

WARM_AT_ONCE = 4
"""How many prompts to prefill at a time: enough to fill the model's steps, few beside real questions."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """What warming did.

    sets: how many sets of documents were prefilled. prompt_tokens: the tokens of their prompts.
    computed_tokens: how many of those had to be computed; the others were cached already.
    """

    sets: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0

    def after(self, usage: Usage) -> Warmed:
        """Return these counts with one more set."""
        return Warmed(
            self.sets + 1,
            self.prompt_tokens + usage.prompt_tokens,
            self.computed_tokens + usage.computed_tokens,
        )


def sets_of_each(documents: Sequence[T], *, borrows: bool) -> list[list[T]]:
    """Return the sets to prefill, so that every document is cached.

    documents: each once; ids or Documents. borrows: whether the engine borrows documents from other
      contexts. Then each document comes first in one set, which stores it for prompts that begin with
      it, and second in another one, which stores it as it is borrowed. Otherwise only prompts that
      begin with it can use it.
    """
    if not borrows or len(documents) < 2:
        return [[one] for one in documents]
    return [[one, documents[at - 1]] for at, one in enumerate(documents)]


Prefill = tuple[str, Sequence[Document]]
"""A prompt up to the end of its last document, and the documents that stand in it."""


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
    so no other question would find them cached.
    """
    prompt = template(QUESTION_PLACEHOLDER, documents)
    spans = find_documents(prompt, documents)
    if not spans:
        return None
    text = prompt[: spans[-1].end]
    return None if QUESTION_PLACEHOLDER in text else text


def prefill_all(
    prefills: Sequence[Prefill],
    generate: Callable[[str, Sequence[Document]], Answer],
    *,
    progress: bool,
) -> Warmed:
    """Prefill everything, WARM_AT_ONCE at a time.

    generate: answers a prompt. progress: show a bar on standard error.
    """
    warmed = Warmed()
    with (
        show_progress(len(prefills), progress) as advance,
        ThreadPoolExecutor(WARM_AT_ONCE) as pool,
    ):
        for answer in pool.map(lambda prefill: generate(*prefill), prefills):
            warmed = warmed.after(answer.usage)
            advance()
    return warmed


async def prefill_all_async(
    prefills: Sequence[Prefill],
    agenerate: Callable[[str, Sequence[Document]], Awaitable[Answer]],
    *,
    progress: bool,
) -> Warmed:
    """`prefill_all` for coroutines. Cancelling it, or an error, cancels the prefills that still run."""
    warmed, waiting = Warmed(), iter(prefills)
    with show_progress(len(prefills), progress) as advance:

        async def work() -> None:
            nonlocal warmed
            for text, documents in waiting:
                answer = await agenerate(text, documents)
                warmed = warmed.after(answer.usage)
                advance()

        workers = [asyncio.create_task(work()) for _ in range(WARM_AT_ONCE)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    return warmed


@contextmanager
def show_progress(total: int, wanted: bool) -> Iterator[Callable[[], None]]:
    """Show a progress bar on standard error, if wanted. Yields a function that advances it by one."""
    if not wanted:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("Prefilling documents"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
