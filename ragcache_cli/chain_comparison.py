"""`ragcache demo`: ask the same questions three ways, and compare times and answers.

Stock vLLM and one RAGCache engine run side by side. Every question goes to each side before the next one,
in every order in turn, so that other programs of the machine disturb all sides alike.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from pydantic import ByteSize
from rich.console import Console

from ragcache_cli import embedding
from ragcache_cli.chains import (
    TOP_K,
    WARM_UP,
    Chain,
    RAGCacheLangChain,
    RAGCacheLlamaIndex,
    StockLangChain,
    StockSettings,
)
from ragcache_cli.corpus_index import load_corpus_index
from ragcache_cli.corpus_warming import warm_corpus
from ragcache_cli.demo_report import draw, next_steps, summary, table, write_figures
from ragcache_cli.embedding import Embedder
from ragcache_cli.errors import CommandError
from ragcache_cli.extras import needed
from ragcache_cli.files import folder_sources
from ragcache_cli.folders import cache_home
from ragcache_cli.framework_indexes import build_langchain_store, build_llamaindex_index
from ragcache_cli.index import PassageIndex, update_index
from ragcache_cli.machine import installed_versions, this_machine
from ragcache_cli.measurements import Asked, Round, Run, Side, mostly_from_disk, same_prompts
from ragcache_cli.model_prompts import ASK_INSTRUCTION, prepare_model
from ragcache_cli.model_size import local_folder, model_size
from ragcache_cli.passage_neighbours import as_document, corpus_of
from ragcache_cli.passages import Passage
from ragcache_cli.precision import choose_dtype
from ragcache_cli.processor_time import OthersWatch, children_s, wait_for_rest
from ragcache_cli.prompts import INSTRUCTION, PromptForm
from ragcache_cli.python_topics import STATEMENTS, python_topics
from ragcache_cli.questions import STATEMENT_QUESTIONS
from ragcache_cli.quick_imports import pausing_garbage_collection
from ragcache_cli.side_by_side import LEGEND, show_question
from ragcache_cli.terminal import Phases
from ragcache_cli.trace_files import read_questions
from ragcache_engine import EngineConfig, RAGCacheEngine, SamplingOptions, Warmed

ABOUT_PYTHON = INSTRUCTION.format(about="about Python")
PASSAGE_TOKENS = 320
CONTEXT_TOKENS = 2048
"""Of a prompt with its answer, and of a step of either model: a start tries out the longest step."""
DEVICE_TOKENS = 6_000
"""Tokens that fit the device cache of either side: five prompts, and not half of the corpus."""
HOST_TOKENS = 40_000
"""Tokens that RAGCache may keep in host memory, and as many on disk: all it prefills, and the prompts."""
USUAL_TOKEN_BYTES = 128 << 10
"""The tensors of one token, where the model's configuration does not tell: of about 8 billion weights."""
OTHERS_SHARE = 0.2
"""Times are not to be trusted if other programs took more than this share of one core meanwhile."""
NEW, KEPT, AGAIN = "new questions", "questions of an earlier run, kept on disk", "the same again"
"""What distinguishes the questions of a round, by which tensors there can be."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The arguments of the command.

    dtype: as vLLM spells it. framework: of the chains on RAGCache, "langchain" or "llamaindex".
    corpus: a folder of the user's files; None for Python's help topics on statements. questions: the
    first half of them comes again. recompute_ratio: of EngineConfig.
    """

    model: str
    dtype: str
    framework: str
    corpus: Path | None
    questions: Sequence[str]
    max_tokens: int
    recompute_ratio: float
    output: Path


def questions_about(corpus: Path | None, questions: Path | None) -> Sequence[str]:
    """Return the user's questions about a folder, or the demo's.

    Raises CommandError if only one of both is given, BadTrace if no question can be read.
    """
    if (corpus is None) != (questions is None):
        raise CommandError(
            "--corpus and --questions go together: a folder, and the questions asked of it"
        )
    return STATEMENT_QUESTIONS if questions is None else read_questions(questions)


def compare_chains(settings: DemoSettings, console: Console) -> None:
    """Ask all sides, print the comparison, write ttft.png and demo.json. Raises RAGCacheError."""
    started_s, phases = time.monotonic(), Phases(console)
    _make_output_folder(settings.output)
    with needed("the demo"):
        others = OthersWatch()
    with phases.waiting("Loading libraries"):
        _import_all(settings.framework)
    _warn_of_others(others, console)
    dtype = choose_dtype(settings.dtype, "vllm", phases)
    if settings.corpus:
        folder_sources(settings.corpus)  # raises before anything starts
    model, form = prepare_model(settings.model, "vllm", phases)
    if not settings.corpus:
        form = PromptForm(
            form.before.replace(ASK_INSTRUCTION, ABOUT_PYTHON), form.between, form.after
        )
    token_bytes = _token_bytes(model, dtype)
    device_bytes = ByteSize(DEVICE_TOKENS * token_bytes)
    stock_settings = StockSettings(model, dtype, CONTEXT_TOKENS, device_bytes, settings.max_tokens)
    with ExitStack() as running, ThreadPoolExecutor(2) as beside:
        with phases.waiting("Starting stock vLLM and RAGCache"):
            engine, stock = _start_both(
                _engine_config(model, dtype, token_bytes, settings), stock_settings, running
            )
        with phases.waiting("Loading the embedding model"):
            embedder = embedding.load_embedder()
        index, warmed, prefill_s = _index_and_prefill(
            engine, form, embedder, settings, phases, console
        )
        store = build_langchain_store(index, embedder)
        stock.search(store, form)
        chains = [stock, *_ragcache_chains(engine, index, embedder, store, form, settings)]
        _explain(engine, console)
        questions = settings.questions
        others = OthersWatch()
        with phases.timed(f"{len(questions)} questions, each to all three"):
            new = ask_round(NEW, chains, questions, console)
        if mostly_from_disk(new.run(Side.EXACT)):
            new = replace(new, title=KEPT)
        half = questions[: max(1, len(questions) // 2)]
        with phases.timed(f"{len(half)} of them again"):
            again = ask_round(AGAIN, chains, half, console, asked=len(questions))
        others_share = others.share()
        ended = [beside.submit(one.close) for one in (engine, stock)]
        _show_results(new, again, prefill_s, console)
        picture = settings.output / "ttft.png"
        with phases.waiting("Drawing the picture"):
            draw([new, again], picture)
        with phases.waiting("Closing both"):
            for one in ended:
                one.result()
    figures = _write_figures(new, again, warmed, dtype, settings, phases)
    console.print(f"Written: {picture}, {figures}", soft_wrap=True)
    _show_next_steps(settings.recompute_ratio, console)
    if others_share > OTHERS_SHARE:
        console.print(
            f"[yellow]Other programs took {others_share:.1f} of {_count_cores()} meanwhile: do not trust "
            "these times.[/yellow]",
            soft_wrap=True,
        )
    console.print(f"All in all {time.monotonic() - started_s:.0f} s.")


def ask_round(
    title: str, chains: Sequence[Chain], questions: Sequence[str], console: Console, asked: int = 0
) -> Round:
    """Ask every chain each question before the next one, in every order of the chains in turn.

    Each waits until another model, which answered before, is at rest: their users have only one.
    asked: how many questions came before, in other rounds. Raises CommandError if chains send different
    prompts.
    """
    orders = list(permutations(chains))
    names = [chain.name for chain in chains]
    answers: dict[str, list[Asked]] = {name: [] for name in names}
    before: Chain | None = None
    for number, question in enumerate(questions, 1):
        heading = f"{number}/{len(questions)} {question}"
        with show_question(heading, names, console) as shown:
            for chain in orders[(asked + number - 1) % len(orders)]:
                name = chain.name
                if before is None or chain.model is not before.model:
                    wait_for_rest(children_s)
                before = chain
                one = chain.ask(question, lambda text, name=name: shown.say(name, text))  # type: ignore[misc]
                answers[name].append(one)
                shown.ended(name, one)
    runs = tuple(Run(name, tuple(answers[name])) for name in names)
    if not same_prompts(runs):
        raise CommandError("the chains sent different prompts; please report this")
    return Round(title, runs)


def _warn_of_others(others: OthersWatch, console: Console) -> None:
    """Print a warning if other programs computed while this one loaded its libraries."""
    share = others.share()
    if share > OTHERS_SHARE:
        console.print(
            f"[yellow]Other programs take {share:.1f} of {_count_cores()}: the times below will be "
            f"unsteady. Better start again when they are done.[/yellow]",
            soft_wrap=True,
        )


def _count_cores() -> str:
    cores = this_machine().cores
    return f"{cores} core{'s' * (cores > 1)}"


def _make_output_folder(folder: Path) -> None:
    """Make the folder now, because an error after minutes of work would lose the result."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"the output folder {folder} cannot be made ({error.strerror}); choose with --output"
        ) from error


def _import_all(framework: str) -> None:
    """Import what later phases need, of the frameworks only what the settings ask for.

    So the times of those phases include no imports, and a missing package is reported now, not after
    minutes.
    """
    with needed("the demo"), pausing_garbage_collection():
        import faiss  # noqa: F401
        import langchain_community.llms  # noqa: F401
        import langchain_core.vectorstores  # noqa: F401
        import matplotlib.figure  # noqa: F401
        import sentence_transformers  # noqa: F401
        import vllm  # noqa: F401

        if framework == "llamaindex":
            import llama_index.core
            import llama_index.vector_stores.faiss  # noqa: F401


def _token_bytes(model: str, dtype: str) -> int:
    """Return the size of one token's tensors, as far as the model's configuration tells."""
    folder = local_folder(model)
    known = model_size(folder, dtype).kv_token_bytes if folder else None
    return known or USUAL_TOKEN_BYTES


def _engine_config(
    model: str, dtype: str, token_bytes: int, settings: DemoSettings
) -> EngineConfig:
    arguments: dict[str, Any] = {
        "max_model_len": CONTEXT_TOKENS,
        "max_num_batched_tokens": CONTEXT_TOKENS,
        "dtype": dtype,
    }
    return EngineConfig(
        model=model,
        backend="vllm",
        reuse="anywhere",
        donors="neighbours",
        recompute_ratio=settings.recompute_ratio,
        recheck_share=0,  # nothing is computed between the questions
        device_cache=ByteSize(DEVICE_TOKENS * token_bytes),
        host_cache=ByteSize(HOST_TOKENS * token_bytes),
        disk_cache=ByteSize(HOST_TOKENS * token_bytes),
        disk_cache_dir=cache_home() / "demo" / "kv",
        vllm_log="show",
        vllm_args=arguments,
    )


def _start_both(
    config: EngineConfig, stock_settings: StockSettings, running: ExitStack
) -> tuple[RAGCacheEngine, StockLangChain]:
    """Start both models at once: most of a start is one core's work. `running` closes them."""

    def start() -> RAGCacheEngine:
        engine = running.enter_context(RAGCacheEngine(config))
        engine.generate(WARM_UP, options=SamplingOptions(max_tokens=2))
        return engine

    with ThreadPoolExecutor(1) as beside:
        starting = beside.submit(start)
        stock = running.enter_context(closing(StockLangChain(stock_settings)))
        return starting.result(), stock


def _index_and_prefill(
    engine: RAGCacheEngine,
    form: PromptForm,
    embedder: Embedder,
    settings: DemoSettings,
    phases: Phases,
    console: Console,
) -> tuple[PassageIndex, Warmed, float]:
    """Return the index, what prefilling its passages computed, and the seconds that it took.

    Of a user's folder only the passages that the questions find are prefilled.
    """
    if settings.corpus:
        sources = folder_sources(settings.corpus)
        index = load_corpus_index(settings.corpus, sources, embedder, phases)
        passages = _found_passages(index, embedder, settings.questions)
    else:
        with phases.waiting("Indexing Python's help topics on statements") as done:
            index = update_index(
                cache_home() / "demo" / "index",
                python_topics(STATEMENTS),
                embedder,
                done,
                PASSAGE_TOKENS,
            ).index
        passages = index.passages
    title = f"Prefilling {len(passages)} passages"
    with phases.waiting(title) as done:
        warmed = warm_corpus(
            engine,
            [as_document(passage) for passage in passages],
            corpus_of(index),
            form,
            among=[as_document(passage) for passage in index.passages],
            done=done,
        )
    console.print(
        f"  {warmed.computed_tokens:,} of {warmed.prompt_tokens:,} "
        f"tokens computed, the others found: each passage alone, for exact reuse, and behind its nearest "
        f"neighbour, to be borrowed",
        highlight=False,
    )
    return index, warmed, phases.seconds[title]


def _found_passages(
    index: PassageIndex, embedder: Embedder, questions: Sequence[str]
) -> Sequence[Passage]:
    """Return the passages that these questions find."""
    vectors = embedder.embed(list(questions))
    found = {one.id: one for row in vectors for one in index.nearest(row, TOP_K)}
    return list(found.values())


def _ragcache_chains(
    engine: RAGCacheEngine,
    index: PassageIndex,
    embedder: Embedder,
    store: Any,
    form: PromptForm,
    settings: DemoSettings,
) -> list[Chain]:
    """Make a chain that answers exactly, and one that borrows, in the framework of the settings."""
    made: list[Chain] = []
    for is_exact in (True, False):
        if settings.framework == "langchain":
            made.append(
                RAGCacheLangChain(store, engine, form, settings.max_tokens, is_exact=is_exact)
            )
        else:
            llama_index = build_llamaindex_index(index, embedder)
            made.append(
                RAGCacheLlamaIndex(
                    llama_index, engine, form, settings.max_tokens, is_exact=is_exact
                )
            )
    return made


def _explain(engine: RAGCacheEngine, console: Console) -> None:
    console.print(
        f"Each question with its {TOP_K} nearest passages. Either model has a device cache of "
        f"{engine.limits.device_tokens:,} tokens; RAGCache also uses host memory and disk. Both its "
        f"sides share one engine: a request with exact=True never finds a tensor that is not exact. "
        f"{LEGEND}\n",
        highlight=False,
    )


def _show_results(new: Round, again: Round, prefill_s: float, console: Console) -> None:
    console.print()
    console.print(table([new, again], console.width))
    for line in summary(new, again, prefill_s):
        console.print(line, highlight=False)


def _write_figures(
    new: Round,
    again: Round,
    warmed: Warmed,
    dtype: str,
    settings: DemoSettings,
    phases: Phases,
) -> Path:
    """Write demo.json and return its path."""
    figures = settings.output / "demo.json"
    write_figures(
        figures,
        [new, again],
        warmed,
        this_machine(),
        installed_versions(),
        _told_settings(settings, dtype),
        phases.seconds,
    )
    return figures


def _show_next_steps(recompute_ratio: float, console: Console) -> None:
    console.print("With your own files:")
    for line in next_steps(_program(), recompute_ratio):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _told_settings(settings: DemoSettings, dtype: str) -> Mapping[str, Any]:
    return {
        "model": settings.model,
        "dtype": dtype,
        "framework": settings.framework,
        "max_tokens": settings.max_tokens,
        "recompute_ratio": settings.recompute_ratio,
        "top_k": TOP_K,
        "passage_tokens": PASSAGE_TOKENS,
        "context_tokens": CONTEXT_TOKENS,
        "device_tokens": DEVICE_TOKENS,
        "load_average": os.getloadavg(),
    }


def _program() -> str:
    """Return how to call this program: in an environment that is not activated, by its path."""
    if shutil.which("ragcache"):
        return "ragcache"
    beside = Path(sys.executable).parent / "ragcache"
    return os.path.relpath(beside) if beside.exists() else "python -m ragcache_cli"
