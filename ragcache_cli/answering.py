"""`ragcache ask`: answer questions about a folder of the user's files."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ragcache_cli import embedding, timeline
from ragcache_cli.corpus_index import load_corpus_index
from ragcache_cli.embedding import Embedder
from ragcache_cli.engine_settings import make_command_config
from ragcache_cli.files import folder_sources
from ragcache_cli.index import PassageIndex
from ragcache_cli.model_prompts import prepare_model
from ragcache_cli.models import DEMO_MODEL, DEMO_MODEL_NAME
from ragcache_cli.option_names import in_options
from ragcache_cli.passage_neighbours import as_document, corpus_of
from ragcache_cli.passages import Passage
from ragcache_cli.precision import choose_dtype
from ragcache_cli.prompts import PromptForm
from ragcache_cli.reuse_lines import document_notes, exactness_line, usage_line
from ragcache_cli.terminal import Phases
from ragcache_cli.visible_console import VisibleConsole
from ragcache_engine import (
    Corpus,
    Document,
    InvalidTopK,
    RAGCacheEngine,
    RAGCacheError,
    SamplingOptions,
    Usage,
)
from ragcache_engine.config import BackendName

SMALL_MODEL = (
    f"{DEMO_MODEL_NAME} answered, which needs no download and is too small to answer well: --model takes "
    "any hub id or folder."
)


@dataclass(frozen=True, slots=True)
class AskSettings:
    """The arguments of the command.

    questions: if there are none, read them from standard input, one per line.
    timeline: whether to show what happened when. pictures: a PNG file or a folder for the timeline's
      picture.
    engine: further settings of EngineConfig. options: names of the command's arguments.
    """

    questions: tuple[str, ...]
    corpus: Path
    model: str
    backend: BackendName
    dtype: str
    top_k: int
    max_tokens: int
    timeline: bool = False
    pictures: Path | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    options: Container[str] = ()

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise InvalidTopK(f"--top-k must be at least 1, got {self.top_k}")


def answer_questions(settings: AskSettings, console: Console) -> int:
    """Answer every question, and print why any of them failed. Returns how many failed.

    Raises RAGCacheError if no question can be answered: no corpus, no model, or no engine.
    """
    notes = Phases(VisibleConsole(stderr=True))
    sources = folder_sources(settings.corpus)
    # Before the minutes that a large folder takes: the model may not be there.
    model, form = prepare_model(settings.model, settings.backend, notes)
    config = make_command_config(
        model,
        settings.backend,
        choose_dtype(settings.dtype, settings.backend, notes),
        settings.engine,
    )
    with notes.waiting("Loading the embedding model"):
        embedder = embedding.load_embedder()
    index = load_corpus_index(settings.corpus, sources, embedder, notes)
    corpus, failed, has_answered = corpus_of(index), 0, False
    with notes.waiting("Starting the engine"):
        engine = RAGCacheEngine(config)
    with engine:
        for number, question in enumerate(settings.questions or _read_typed(console), 1):
            try:
                usage = _answer(question, engine, index, corpus, embedder, form, settings, console)
                has_answered = has_answered or usage is not None
                if usage and settings.timeline:
                    _show_timeline(question, usage, number, settings, console)
            except RAGCacheError as error:
                failed += 1
                shown = in_options(str(error), settings.options)
                line = f"[red]error:[/red] {escape(shown)}"
                notes.console.print(line, highlight=False, soft_wrap=True)
    if has_answered and settings.model == DEMO_MODEL and settings.backend == "vllm":
        notes.console.print(SMALL_MODEL, highlight=False)
    return failed


def _read_typed(console: Console) -> Iterator[str]:
    """Yield lines of standard input. If a person types them, print a prompt before each."""
    lines: Iterable[str] = sys.stdin
    if not sys.stdin.isatty():
        yield from (line.strip() for line in lines if line.strip())
        return
    console.print("Type one question per line; end with Ctrl-D.")
    while True:
        try:
            line = console.input("[bold]> [/bold]").strip()
        except EOFError:
            console.print()
            return
        if line:
            yield line


def _answer(
    question: str,
    engine: RAGCacheEngine,
    index: PassageIndex,
    corpus: Corpus,
    embedder: Embedder,
    form: PromptForm,
    settings: AskSettings,
    console: Console,
) -> Usage | None:
    if len(settings.questions) > 1:
        console.print(f"[bold]{escape(question)}[/bold]", highlight=False)

    def prompt_of(question: str, passages: Sequence[Document]) -> str:
        return form.filled([passage.text for passage in passages], question)

    options = SamplingOptions(max_tokens=settings.max_tokens)
    with engine.retrieval(question, template=prompt_of, options=options) as retrieval:
        for found, is_final in index.in_stages(embedder.embed([question])[0], settings.top_k):
            documents = [as_document(passage) for passage in found]
            if is_final:
                retrieval.look_up_neighbours(documents, corpus)
            (retrieval.found if is_final else retrieval.provisional)(documents)
    usage: Usage | None = None
    with engine.stream(prompt_of(question, retrieval.documents), options=options) as pieces:
        for piece in pieces:
            console.print(piece.text, end="", markup=False, highlight=False, soft_wrap=True)
            usage = piece.usage
    console.print("\n")
    _print_sources(found, document_notes(usage) if usage else {}, console)
    if usage:
        if engine.config.reuse == "anywhere":
            console.print(f"[dim]{exactness_line(usage)}[/dim]", highlight=False, soft_wrap=True)
        console.print(f"[dim]{usage_line(usage)}[/dim]\n", highlight=False, soft_wrap=True)
    return usage


def _show_timeline(
    question: str, usage: Usage, number: int, settings: AskSettings, console: Console
) -> None:
    timeline.show(usage.speculation, console)
    if settings.pictures:
        path = timeline.picture_path(settings.pictures, number)
        timeline.draw(question, usage, path)
        console.print(f"[dim]{escape(str(path))}[/dim]", highlight=False, soft_wrap=True)
    console.print()


def _print_sources(found: Sequence[Passage], notes: Mapping[str, str], console: Console) -> None:
    for number, passage in enumerate(found, 1):
        note = f": {notes[passage.id]}" if passage.id in notes else ""
        line = f"[{number}] {passage.title} ({passage.id}){note}"
        console.print(f"[dim]{escape(line)}[/dim]", highlight=False, soft_wrap=True)
