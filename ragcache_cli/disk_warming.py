"""`ragcache warm`: prefill the documents that a query log asks for most, into a disk cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ragcache_cli import embedding
from ragcache_cli.corpus_index import load_corpus_index
from ragcache_cli.files import folder_sources
from ragcache_cli.model_prompts import prepare_model
from ragcache_cli.precision import choose_dtype
from ragcache_cli.terminal import Phases
from ragcache_cli.trace_files import read_questions
from ragcache_engine import Document, EngineConfig, RAGCacheEngine


@dataclass(frozen=True, slots=True)
class WarmSettings:
    """The arguments of the command.

    top: how many sets of documents to prefill, the most wanted first. engine: settings of EngineConfig.
    """

    corpus: Path
    questions: Path
    model: str
    backend: str
    dtype: str
    top_k: int
    top: int
    engine: dict[str, Any]


def warm_disk(settings: WarmSettings, console: Console) -> None:
    """Search for each question, prefill the sets found most often, and print how much was written.

    Raises RAGCacheError of the corpus, the query log, the configuration or the engine.
    """
    notes = Phases(Console(stderr=True))
    questions = read_questions(settings.questions)
    sources = folder_sources(settings.corpus)
    with notes.waiting("Loading the embedding model"):
        embedder = embedding.load_embedder()
    index = load_corpus_index(settings.corpus, sources, embedder, notes)
    with notes.waiting("Searching for each question"):
        vectors = embedder.embed(questions)
        found = [index.nearest(vector, settings.top_k) for vector in vectors]
    texts = {passage.id: passage.shown for passages in found for passage in passages}
    sets = most_wanted([[passage.id for passage in passages] for passages in found], settings.top)
    model, form = prepare_model(settings.model, settings.backend, notes)
    arguments = {"dtype": choose_dtype(settings.dtype, settings.backend, notes)}
    config = EngineConfig.model_validate(
        {
            "model": model,
            "backend": settings.backend,
            "vllm_args": arguments,
            **settings.engine,
        }
    )

    def prompt_of(question: str, documents: Sequence[Document]) -> str:
        return form.filled([document.text for document in documents], question)

    with notes.waiting("Starting the engine"):
        engine = RAGCacheEngine(config)
    with engine:
        corpus = [Document(name, text) for name, text in texts.items()]
        warmed = engine.warm(sets, template=prompt_of, corpus=corpus, progress=True)
        written = engine.stats().tiers.written_bytes
    console.print(
        f"{warmed.sets} sets of documents, asked for by {len(questions)} questions: "
        f"{warmed.prompt_tokens} tokens, {warmed.computed_tokens} of them computed now; "
        f"{written / (1 << 20):.0f} MiB written to {escape(str(config.disk_cache_dir or 'disk'))}",
        highlight=False,
        soft_wrap=True,
    )


def most_wanted(found: Sequence[Sequence[str]], top: int) -> list[list[str]]:
    """Return the sets found most often, each once; sets with the same beginning are adjacent."""
    counts = Counter(tuple(names) for names in found if names)
    chosen = [names for names, _ in counts.most_common(top)]
    return [list(names) for names in sorted(chosen)]
