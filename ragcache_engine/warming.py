"""Prompts that prefill documents before anybody asks about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ragcache_engine.errors import UnknownDocument
from ragcache_engine.prompt import Render, find_documents
from ragcache_engine.values import Document, Usage

QUESTION = "\x00the question comes here\x00"
"""Stands in for a question, and in no document. What is prefilled ends before it."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """What warming did. computed_tokens: those that had to be prefilled; the others were cached."""

    sets: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0

    def after(self, usage: Usage) -> Warmed:
        return Warmed(
            self.sets + 1,
            self.prompt_tokens + usage.prompt_tokens,
            self.computed_tokens + usage.computed_tokens,
        )


def resolved(
    document_sets: Iterable[Sequence[Document | str]], known: Mapping[str, Document]
) -> list[list[Document]]:
    """Documents for ids. Raises UnknownDocument, all or nothing."""
    sets = [list(documents) for documents in document_sets]
    missing = [
        one for documents in sets for one in documents if isinstance(one, str) and one not in known
    ]
    if missing:
        raise UnknownDocument(
            f"no text is known for {missing[0]!r} and {len(missing) - 1} other documents: give them "
            f"as Documents, or all of them once in corpus=, or retrieve them first"
        )
    return [[known[one] if isinstance(one, str) else one for one in each] for each in sets]


def head(render: Render, documents: Sequence[Document]) -> str | None:
    """The prompt up to the end of its last document; None if they do not stand before the question.

    What follows the question depends on it, and would be cached for nobody.
    """
    prompt = render(QUESTION, documents)
    spans = find_documents(prompt, documents)
    if not spans:
        return None
    text = prompt[: spans[-1].end]
    return None if QUESTION in text else text


@contextmanager
def progress_bar(total: int, wanted: bool) -> Iterator[Callable[[], None]]:
    """A bar on standard error, if it is wanted; what is yielded moves it on by one."""
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
