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
from io import StringIO
from itertools import permutations
from pathlib import Path
from typing import Any

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
from ragcache_cli.engine_settings import make_command_config
from ragcache_cli.errors import CommandError
from ragcache_cli.extras import needed
from ragcache_cli.files import folder_sources
from ragcache_cli.folders import (
    OTHER_OUTPUT,
    cache_home,
    make_folder,
    whole_file,
    write_whole,
)
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
from ragcache_cli.visible_console import VisibleConsole
from ragcache_engine import EngineConfig, RAGCacheEngine, SamplingOptions, Warmed

ABOUT_PYTHON = INSTRUCTION.format(about="about Python")
PASSAGE_TOKENS = 320
CONTEXT_TOKENS = 2048
"""Of a prompt with its answer, and of a step of either model: a start tries out the longest step."""
OWN_CONTEXT_TOKENS = 4096
"""The same with a user's files, whose passages are longer; at most what the model reads."""
DEVICE_TOKENS = 6_000
"""Tokens that fit the device cache of either side: five prompts, and not half of the corpus. With a
user's files as many more as the context is longer."""
HOST_TOKENS = 40_000
"""Tokens that RAGCache may keep in host memory, and as many on disk: all it prefills, and the prompts."""
USUAL_TOKEN_BYTES = 128 << 10
"""The tensors of one token, where the model's configuration does not tell: of about 8 billion weights."""
REPORT_WIDTH = 120
OTHERS_SHARE = 0.2
"""Times are not to be trusted if other programs took more than this share of one core meanwhile."""
NEW, KEPT, AGAIN = "new questions", "questions of an earlier run, kept on disk", "the same again"
"""What distinguishes the questions of a round, by which tensors there can be."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The arguments of the command.

    dtype: as vLLM spells it. framework: of the chains on RAGCache, "langchain" or "llamaindex".
    corpus: a folder of the user's files; None for Python's help topics on statements. questions: the
    first half of them comes again. recompute_ratio: of EngineConfig. device_bytes, host_bytes: of the
    caches; None for DEVICE_TOKENS and HOST_TOKENS.
    """

    model: str
    dtype: str
    framework: str
    corpus: Path | None
    questions: Sequence[str]
    max_tokens: int
    recompute_ratio: float
    device_bytes: int | None
    host_bytes: int | None
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
    """Ask all sides, print the comparison, write report.txt, ttft.png and demo.json.

    Raises RAGCacheError.
    """
    started_s, phases = time.monotonic(), Phases(console)
    make_folder(settings.output, OTHER_OUTPUT)
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
    config = _engine_config(model, dtype, settings)
    stock_settings = StockSettings(
        model,
        dtype,
        config.vllm_args["max_model_len"],
        int(config.device_cache),  # type: ignore[arg-type]
        settings.max_tokens,
    )
    with ExitStack() as running, ThreadPoolExecutor(2) as beside:
        with phases.waiting("Starting stock vLLM and RAGCache"):
            engine, stock = _start_both(config, stock_settings, running)
        with phases.waiting("Loading the embedding model"):
            embedder = embedding.load_embedder()
        index = _load_index(embedder, settings, phases)
        found = find_passages(index, embedder, settings.questions)
        questions = keep_fitting(
            settings.questions, found, engine, form, settings.max_tokens, console
        )
        # Of a user's folder, which may be large, only what the questions find.
        wanted = {one.id: one for question in questions for one in found[question]}
        warmed, prefill_s = _prefill(
            engine,
            form,
            index,
            list(wanted.values()) if settings.corpus else index.passages,
            phases,
            console,
        )
        if settings.corpus:
            warn_of_full_host(engine, console)
        store = build_langchain_store(index, embedder)
        stock.search(store, form)
        chains = [stock, *_ragcache_chains(engine, index, embedder, store, form, settings)]
        _explain(engine, console)
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
        report = _show_results(new, again, prefill_s, settings.output, console)
        picture = settings.output / "ttft.png"
        with phases.waiting("Drawing the picture"), whole_file(picture, OTHER_OUTPUT) as drawn:
            draw([new, again], drawn)
        with phases.waiting("Closing both"):
            for one in ended:
                one.result()
    figures = _write_figures(new, again, warmed, index, config, settings, phases)
    console.print(f"Written: {report}, {picture}, {figures}", soft_wrap=True)
    if not settings.corpus:
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


def _engine_config(model: str, dtype: str, settings: DemoSettings) -> EngineConfig:
    folder = local_folder(model)
    size = model_size(folder, dtype) if folder else None
    token_bytes = (size and size.kv_token_bytes) or USUAL_TOKEN_BYTES
    context = OWN_CONTEXT_TOKENS if settings.corpus else CONTEXT_TOKENS
    context = min(context, (size and size.context_tokens) or context)
    device_tokens = DEVICE_TOKENS * context // CONTEXT_TOKENS
    device_bytes, host_bytes = settings.device_bytes, settings.host_bytes
    if device_bytes is None:
        device_bytes = device_tokens * token_bytes
    if host_bytes is None:
        host_bytes = HOST_TOKENS * token_bytes
    engine = {
        "reuse": "anywhere",
        "donors": "neighbours",
        "recompute_ratio": settings.recompute_ratio,
        # Nothing is computed between the questions.
        "missing_donors": "compute",
        "recheck_share": 0,
        "device_cache": device_bytes,
        "host_cache": host_bytes,
        "disk_cache": host_bytes,
        "disk_cache_dir": cache_home() / "demo" / "kv",
        "vllm_args": {"max_model_len": context, "max_num_batched_tokens": context},
    }
    return make_command_config(model, "vllm", dtype, engine)


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


def _load_index(embedder: Embedder, settings: DemoSettings, phases: Phases) -> PassageIndex:
    if settings.corpus:
        sources = folder_sources(settings.corpus)
        return load_corpus_index(settings.corpus, sources, embedder, phases)
    with phases.waiting("Indexing Python's help topics on statements") as done:
        return update_index(
            cache_home() / "demo" / "index",
            python_topics(STATEMENTS),
            embedder,
            done,
            PASSAGE_TOKENS,
        ).index


def find_passages(
    index: PassageIndex, embedder: Embedder, questions: Sequence[str]
) -> dict[str, list[Passage]]:
    """Return the passages that the prompt of each question has."""
    vectors = embedder.embed(list(questions))
    return {
        question: index.nearest(vector, TOP_K)
        for question, vector in zip(questions, vectors, strict=True)
    }


def keep_fitting(
    questions: Sequence[str],
    found: Mapping[str, Sequence[Passage]],
    engine: RAGCacheEngine,
    form: PromptForm,
    max_tokens: int,
    console: Console,
) -> list[str]:
    """Return the questions whose prompts fit into the context, and say how many do not.

    found: the passages of each question. Raises CommandError if none fits.
    """
    most = engine.limits.context_tokens - max_tokens
    texts = {one: form.filled([passage.shown for passage in found[one]], one) for one in found}
    fitting = [one for one in questions if len(engine.tokenize(texts[one])) <= most]
    if not fitting:
        raise CommandError(
            f"no prompt of {TOP_K} passages and its answer fit into "
            f"{engine.limits.context_tokens} tokens: give a smaller --max-tokens, or a --model that "
            f"reads more"
        )
    if left_out := len(questions) - len(fitting):
        console.print(
            f"[yellow]left out[/yellow] {left_out} of {len(questions)} questions: their prompts are "
            f"longer than {most:,} tokens",
            soft_wrap=True,
        )
    return fitting


def _prefill(
    engine: RAGCacheEngine,
    form: PromptForm,
    index: PassageIndex,
    passages: Sequence[Passage],
    phases: Phases,
    console: Console,
) -> tuple[Warmed, float]:
    """Return what prefilling these passages computed, and the seconds that it took."""
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
    return warmed, phases.seconds[title]


def warn_of_full_host(engine: RAGCacheEngine, console: Console) -> None:
    """Print a warning if the engine's host memory could not keep all that was prefilled."""
    tiers = engine.stats().tiers
    if tiers.evicted["host"] or tiers.refused:
        console.print(
            f"[yellow]Not all of it fits into host memory, which holds {engine.limits.host_tokens:,} "
            f"tokens: give more with --host-cache, or ask fewer questions.[/yellow]",
            soft_wrap=True,
        )


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


def _show_results(
    new: Round, again: Round, prefill_s: float, output: Path, console: Console
) -> Path:
    """Print table and summary, and write them to a file too. Returns its path."""
    console.print()
    report = output / "report.txt"
    text = StringIO()
    for shown in (console, VisibleConsole(file=text, width=REPORT_WIDTH)):
        shown.print(table([new, again], shown.width))
        for line in summary(new, again, prefill_s):
            shown.print(line, highlight=False)
    write_whole(report, text.getvalue(), OTHER_OUTPUT)
    return report


def _write_figures(
    new: Round,
    again: Round,
    warmed: Warmed,
    index: PassageIndex,
    config: EngineConfig,
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
        _told_settings(index, config, settings),
        phases.seconds,
    )
    return figures


def _show_next_steps(recompute_ratio: float, console: Console) -> None:
    console.print("With your own files:")
    for line in next_steps(_program(), recompute_ratio):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _told_settings(
    index: PassageIndex, config: EngineConfig, settings: DemoSettings
) -> Mapping[str, Any]:
    return {
        "model": settings.model,
        "corpus": str(settings.corpus or "Python's help topics on statements"),
        **config.vllm_args,
        "framework": settings.framework,
        "max_tokens": settings.max_tokens,
        "recompute_ratio": settings.recompute_ratio,
        "top_k": TOP_K,
        "passage_tokens": index.manifest.passage_tokens,
        "device_cache_bytes": config.device_cache,
        "host_cache_bytes": config.host_cache,
        "load_average": os.getloadavg(),
    }


def _program() -> str:
    """Return how to call this program: in an environment that is not activated, by its path."""
    if shutil.which("ragcache"):
        return "ragcache"
    beside = Path(sys.executable).parent / "ragcache"
    return os.path.relpath(beside) if beside.exists() else "python -m ragcache_cli"
