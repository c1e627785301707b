"""`ragcache warm`: prefill documents into a disk cache, before anybody asks.

With exact reuse these are the sets that a query log asks for most. With reuse at any position they are
all documents of the corpus, because there each document counts for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ragcache_cli import embedding
from ragcache_cli.corpus_index import load_corpus_index
from ragcache_cli.corpus_warming import warm_corpus
from ragcache_cli.embedding import Embedder
from ragcache_cli.engine_settings import make_command_config
from ragcache_cli.errors import CannotWrite, CommandError
from ragcache_cli.files import folder_sources
from ragcache_cli.folders import cache_home, make_folder
from ragcache_cli.index import PassageIndex
from ragcache_cli.model_prompts import prepare_model
from ragcache_cli.model_size import local_folder, model_size
from ragcache_cli.passage_neighbours import as_document, corpus_of
from ragcache_cli.precision import choose_dtype
from ragcache_cli.prompts import PromptForm
from ragcache_cli.terminal import Phases
from ragcache_cli.trace_files import read_questions
from ragcache_cli.visible_console import VisibleConsole
from ragcache_cli.warming_estimate import WarmingEstimate, estimate_warming
from ragcache_engine import Corpus, DiskState, Document, RAGCacheEngine, TierCounters, Warmed
from ragcache_engine.knowledge.cost import CostProfile

MIB = 1 << 20
OTHER_CACHE = "name another folder with --disk-cache-dir"


@dataclass(frozen=True, slots=True)
class WarmSettings:
    """The arguments of the command.

    questions: None for the whole corpus, which only reuse at any position takes.
    top: how many sets of documents to prefill, the most wanted first. engine: settings of EngineConfig.
    """

    corpus: Path
    questions: Path | None
    model: str
    backend: str
    dtype: str
    top_k: int
    top: int
    engine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_anywhere(self) -> bool:
        return self.engine.get("reuse") == "anywhere"

    def __post_init__(self) -> None:
        if self.questions is None and not self.is_anywhere:
            raise CommandError(
                "--questions is missing: exact reuse depends on which documents come together. "
                "With --reuse anywhere all documents are prefilled, without a query log"
            )


def warm_disk(settings: WarmSettings, console: Console) -> None:
    """Prefill documents, and print how much was computed and written.

    Raises RAGCacheError of the corpus, the query log, the configuration or the engine.
    """
    notes = Phases(VisibleConsole(stderr=True))
    questions = read_questions(settings.questions) if settings.questions else []
    sources = folder_sources(settings.corpus)
    # Before the minutes that a large folder takes: the model may not be there.
    model, form = prepare_model(settings.model, settings.backend, notes)
    config = make_command_config(
        model,
        settings.backend,
        choose_dtype(settings.dtype, settings.backend, notes),
        settings.engine,
    )
    folder = (config.disk_cache_dir or cache_home() / "kv").expanduser()
    if settings.backend != "memory":
        make_folder(folder, OTHER_CACHE, is_private=True)
    with notes.waiting("Loading the embedding model"):
        embedder = embedding.load_embedder()
    index = load_corpus_index(settings.corpus, sources, embedder, notes)
    sets = _find_sets(questions, index, embedder, settings, notes)
    with notes.waiting("Starting the engine"):
        engine = RAGCacheEngine(config)
    with engine:
        if settings.is_anywhere:
            wanted = {name for names in sets for name in names}
            documents = [
                as_document(passage)
                for passage in index.passages
                if not questions or passage.id in wanted
            ]
            warmed = _warm_documents(engine, documents, corpus_of(index), form, console)
            what = f"{len(documents)} documents"
        else:
            warmed = _warm_sets(engine, sets, index, form)
            what = f"{warmed.sets} sets of documents"
        tiers = engine.stats().tiers
    if warmed.left_out:
        what += f" ({len(warmed.left_out)} of them left out, see above)"
    asked = f", asked for by {len(questions)} questions" if questions else ""
    console.print(
        f"{what}{asked}: {warmed.prompt_tokens} tokens, {warmed.computed_tokens} of them computed now; "
        f"{escape(describe_written(tiers, folder, settings.backend))}",
        highlight=False,
        soft_wrap=True,
    )


def describe_written(tiers: TierCounters, folder: Path, backend: str) -> str:
    """Say how much was written where. Raises CannotWrite if the folder takes no more."""
    if backend == "memory":
        return "nothing is written without a model"
    if tiers.disk in (DiskState.OFF, DiskState.READ_ONLY):
        raise CannotWrite(
            f"the disk cache in {folder} is {tiers.disk}, with {tiers.written_bytes / MIB:.0f} MiB "
            f"written: make room there, or {OTHER_CACHE}"
        )
    return f"{tiers.written_bytes / MIB:.0f} MiB written to {folder}"


def _find_sets(
    questions: Sequence[str],
    index: PassageIndex,
    embedder: Embedder,
    settings: WarmSettings,
    notes: Phases,
) -> list[list[str]]:
    """Return the sets of documents that the questions find most often."""
    if not questions:
        return []
    with notes.waiting("Searching for each question"):
        found = [index.nearest(vector, settings.top_k) for vector in embedder.embed(questions)]
    return most_wanted([[passage.id for passage in passages] for passages in found], settings.top)


def _warm_sets(
    engine: RAGCacheEngine, sets: Sequence[Sequence[str]], index: PassageIndex, form: PromptForm
) -> Warmed:
    def prompt_of(question: str, documents: Sequence[Document]) -> str:
        return form.filled([document.text for document in documents], question)

    wanted = {name for names in sets for name in names}
    corpus = [as_document(passage) for passage in index.passages if passage.id in wanted]
    return engine.warm(sets, template=prompt_of, corpus=corpus, only_missing=True, progress=True)


def _warm_documents(
    engine: RAGCacheEngine,
    documents: Sequence[Document],
    corpus: Corpus,
    form: PromptForm,
    console: Console,
) -> Warmed:
    """Say what it takes, then prefill each document as prompts will use it."""
    config = engine.config
    path = config.cost_profile
    profile = (
        CostProfile.from_json(path.read_text(encoding="utf-8")) if path else CostProfile.default()
    )
    estimate = estimate_warming(
        documents,
        lambda text: len(engine.tokenize(text, add_special_tokens=False)),
        profile,
        system_text=form.before,
        corpus=corpus if config.donors == "neighbours" else None,
    )
    for line in estimate_lines(
        estimate, _token_bytes(engine), config.disk_cache, is_measured=path is not None
    ):
        console.print(line, highlight=False, soft_wrap=True)
    return warm_corpus(engine, documents, corpus, form, progress=True)


def estimate_lines(
    estimate: WarmingEstimate, token_bytes: int | None, disk_bytes: int, *, is_measured: bool
) -> list[str]:
    """Say what prefilling takes at most. token_bytes: of one token's tensors; None if unknown.

    is_measured: whether the seconds come from this machine's own profile.
    """
    by = (
        "by this machine's profile"
        if is_measured
        else "by a rough formula for a GPU; `ragcache profile` measures it, --profile takes the result"
    )
    size_bytes = None if token_bytes is None else estimate.tokens * token_bytes
    size = "" if size_bytes is None else f", {size_bytes / MIB:,.0f} MiB on disk"
    lines = [
        f"{estimate.documents:,} documents: at most {estimate.tokens:,} tokens to compute{size}, about "
        f"{estimate.seconds:,.0f} s ({by}). What is on disk already need not be computed again: you may "
        f"stop at any time and go on later."
    ]
    if size_bytes is not None and size_bytes > disk_bytes:
        lines.append(
            f"The disk cache has {disk_bytes / MIB:,.0f} MiB and keeps only a part: raise --disk-cache."
        )
    return lines


def _token_bytes(engine: RAGCacheEngine) -> int | None:
    folder = local_folder(engine.config.model)
    dtype = str(engine.config.vllm_args.get("dtype", "auto"))
    return model_size(folder, dtype).kv_token_bytes if folder else None


def most_wanted(found: Sequence[Sequence[str]], top: int) -> list[list[str]]:
    """Return the sets found most often, each once; sets with the same beginning are adjacent."""
    counts = Counter(tuple(names) for names in found if names)
    chosen = [names for names, _ in counts.most_common(top)]
    return [list(names) for names in sorted(chosen)]
