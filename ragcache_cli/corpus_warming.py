"""Prefills every document of a corpus, so that prompts find it wherever it stands in them."""

from __future__ import annotations

from collections.abc import Sequence

from ragcache_cli.prompts import PromptForm
from ragcache_cli.terminal import Done
from ragcache_engine import Corpus, Document, RAGCacheEngine, Warmed, sets_of_each

SETS_AT_ONCE = 16
"""How many sets to prefill between two reports of progress."""


def warm_corpus(
    engine: RAGCacheEngine,
    documents: Sequence[Document],
    corpus: Corpus,
    form: PromptForm,
    *,
    among: Sequence[Document] = (),
    progress: bool = False,
    done: Done | None = None,
) -> Warmed:
    """Prefill these documents, behind their neighbours if the engine borrows from there.

    corpus: where to look up neighbours. among: all its documents, if only some are prefilled.
    form: what prompts look like. progress: show a bar. done: called with how many documents are
    prefilled, and how many there are. Raises what RAGCacheEngine.warm raises.
    """

    def prompt_of(question: str, documents: Sequence[Document]) -> str:
        return form.filled([document.text for document in documents], question)

    names = [document.id for document in documents]
    sets = sets_of_each(names, borrows=engine.config.reuse == "anywhere")
    size = SETS_AT_ONCE if done else max(1, len(sets))
    warmed = []
    for start in range(0, len(sets), size):
        part = sets[start : start + size]
        warmed.append(
            engine.warm(
                part,
                template=prompt_of,
                corpus=among or documents,
                neighbours=corpus,
                only_missing=True,
                progress=progress,
            )
        )
        if done:
            done(start + len(part), len(sets))
    return _add_up(warmed)


def _add_up(parts: Sequence[Warmed]) -> Warmed:
    return Warmed(
        sum(part.sets for part in parts),
        sum(part.prompt_tokens for part in parts),
        sum(part.computed_tokens for part in parts),
        tuple(one for part in parts for one in part.left_out),
    )
