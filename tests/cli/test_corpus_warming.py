"""Prefilling a whole corpus, with progress."""

from __future__ import annotations

from collections.abc import Sequence

from ragcache_cli.corpus_warming import SETS_AT_ONCE, warm_corpus
from ragcache_cli.prompts import CHATML
from ragcache_engine import Corpus, Document, EngineConfig, RAGCacheEngine


def test_all_documents_are_prefilled_and_found_later():
    documents = [Document(name, f"What is known of {name}. " * 9) for name in ("a", "b", "c")]

    def find(asked: Sequence[Document]) -> list[Document | None]:
        return [None] * len(asked)

    with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        warmed = warm_corpus(engine, documents, Corpus(1, find), CHATML)
        prompt = CHATML.filled([documents[2].text], "Why?")
        usage = engine.generate(prompt, [documents[2]]).usage
    assert warmed.sets == 3
    assert usage.cached.total > 0.5 * usage.prompt_tokens


def test_progress_is_told_until_all_documents_are_prefilled():
    documents = [Document(f"d{n}", f"What is known of {n}. " * 9) for n in range(SETS_AT_ONCE + 3)]
    told: list[tuple[int, int]] = []

    def find(asked: Sequence[Document]) -> list[Document | None]:
        return [None] * len(asked)

    with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        warmed = warm_corpus(
            engine,
            documents,
            Corpus(1, find),
            CHATML,
            done=lambda count, total: told.append((count, total)),
        )
    assert told == [(SETS_AT_ONCE, len(documents)), (len(documents), len(documents))]
    assert warmed.sets == len(documents)
    assert warmed.computed_tokens > 0
