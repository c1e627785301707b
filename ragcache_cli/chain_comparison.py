"""`ragcache demo`: ask the same questions through three chains, and compare times and answers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ByteSize
from rich.console import Console
from rich.markup import escape

from ragcache_cli import embedding
from ragcache_cli.chains import (
    WARM_UP,
    Chain,
    RAGCacheLangChain,
    RAGCacheLlamaIndex,
    StockLangChain,
    StockSettings,
)
from ragcache_cli.demo_report import draw, remark_if_all_fits, summary, table, write_figures
from ragcache_cli.errors import CommandError
from ragcache_cli.extras import needed
from ragcache_cli.folders import cache_home
from ragcache_cli.framework_indexes import build_langchain_store, build_llamaindex_index
from ragcache_cli.index import update_index
from ragcache_cli.machine import installed_versions, this_machine
from ragcache_cli.measurements import Run, same_prompts
from ragcache_cli.models import DEMO_MODEL, DEMO_MODEL_NAME, demo_model
from ragcache_cli.precision import choose_dtype
from ragcache_cli.prompts import CHATML, INSTRUCTION, form_of_model
from ragcache_cli.python_topics import python_topics
from ragcache_cli.questions import QUESTIONS
from ragcache_cli.terminal import Phases
from ragcache_engine import EngineConfig, RAGCacheEngine, SamplingOptions

CONTEXT_TOKENS = 4096
DEVICE_CACHE_BYTES = ByteSize(1 << 30)
BUSY_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The arguments of the command. dtype: as vLLM spells it. questions: how many to ask."""

    model: str
    dtype: str
    questions: int
    max_tokens: int
    output: Path


def compare_chains(settings: DemoSettings, console: Console) -> None:
    """Ask all three chains, print the comparison, write ttft.png and demo.json. Raises RAGCacheError."""
    started_s, phases = time.monotonic(), Phases(console)
    is_busy = _warn_if_busy(console)
    _make_output_folder(settings.output)
    questions = QUESTIONS[: settings.questions]
    with phases.waiting("Loading libraries"):
        _import_all()
    settings = replace(settings, dtype=choose_dtype(settings.dtype, "vllm", phases))
    if settings.model == DEMO_MODEL:
        with phases.waiting(f"Preparing the model {DEMO_MODEL_NAME}"):
            model, form = str(demo_model()), CHATML
    else:
        model = settings.model
        form = form_of_model(model, INSTRUCTION.format(about="about Python"))
    with phases.waiting("Loading the embedding model"):
        embedder = embedding.load_embedder()
    with phases.waiting("Indexing Python's help topics") as done:
        updated = update_index(cache_home() / "python-topics", python_topics(), embedder, done)
    console.print(
        f"  {len(updated.index.passages)} passages, {updated.embedded} of them embedded now"
    )
    store = build_langchain_store(updated.index, embedder)
    stock_settings = StockSettings(
        model, settings.dtype, CONTEXT_TOKENS, DEVICE_CACHE_BYTES, settings.max_tokens
    )
    with phases.waiting("Starting stock vLLM"):
        stock_chain = StockLangChain(store, stock_settings, form)
    with closing(stock_chain):
        stock = _ask_all("a", stock_chain, questions, phases, console)
        with phases.waiting("Closing stock vLLM"):
            stock_chain.close()
    with phases.waiting("Starting RAGCache"):
        engine = RAGCacheEngine(_engine_config(model, settings.dtype))
        engine.generate(WARM_UP, options=SamplingOptions(max_tokens=settings.max_tokens))
    with engine:
        langchain = RAGCacheLangChain(store, engine, form, settings.max_tokens)
        engine.clear_cache()
        first = _ask_all("b", langchain, questions, phases, console)
        llamaindex = RAGCacheLlamaIndex(
            build_llamaindex_index(updated.index, embedder), engine, form, settings.max_tokens
        )
        engine.clear_cache()
        second = _ask_all("c", llamaindex, questions, phases, console)
        with phases.waiting("Closing RAGCache"):
            engine.close()
    _show_results(stock, [first, second], engine.limits.device_tokens, settings, phases, console)
    if is_busy:
        console.print("[yellow]Other programs computed too: do not trust these times.[/yellow]")
    console.print(f"All in all {time.monotonic() - started_s:.0f} s.")


def _warn_if_busy(console: Console) -> bool:
    """Print a warning if other programs compute now, and return whether they do.

    The chains run one after another, so other programs disturb one of them more than the others.
    """
    load, cores = os.getloadavg()[0], this_machine().cores
    if load > cores * BUSY_SHARE:
        console.print(
            f"[yellow]Other programs compute too (a load of {load:.1f} on {cores} cores): the "
            f"times below will be unsteady. Better start again when they are done.[/yellow]",
            soft_wrap=True,
        )
        return True
    return False


def _make_output_folder(folder: Path) -> None:
    """Make the folder now, because an error after minutes of work would lose the result."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"the output folder {folder} cannot be made ({error.strerror}); choose with --output"
        ) from error


def _import_all() -> None:
    """Import what later phases need.

    So the times of those phases include no imports, and a missing package is reported now, not after
    minutes.
    """
    with needed("the demo"):
        import faiss  # noqa: F401
        import langchain_community.llms  # noqa: F401
        import langchain_core.vectorstores  # noqa: F401
        import llama_index.core
        import llama_index.vector_stores.faiss  # noqa: F401
        import matplotlib.figure  # noqa: F401
        import sentence_transformers  # noqa: F401
        import vllm  # noqa: F401


def _engine_config(model: str, dtype: str) -> EngineConfig:
    arguments: dict[str, Any] = {"max_model_len": CONTEXT_TOKENS, "dtype": dtype}
    return EngineConfig(
        model=model,
        backend="vllm",
        device_cache=DEVICE_CACHE_BYTES,
        vllm_log="show",
        vllm_args=arguments,
    )


def _ask_all(
    letter: str, chain: Chain, questions: Sequence[str], phases: Phases, console: Console
) -> Run:
    console.rule(f"({letter}) {chain.name}", align="left")

    def say(text: str) -> None:
        console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    asked = []
    with phases.timed(f"({letter}) {chain.name}: {len(questions)} questions"):
        for number, question in enumerate(questions, 1):
            console.print(f"[bold]{number}/{len(questions)} {escape(question)}[/bold]")
            asked.append(chain.ask(question, say))
            last = asked[-1]
            console.print(
                f"\n[dim]first token after {last.ttft_s:.2f} s; {last.cached.total} of "
                f"{last.prompt_tokens} prompt tokens cached[/dim]"
            )
    return Run(chain.name, tuple(asked))


def _show_results(
    stock: Run,
    others: Sequence[Run],
    device_tokens: int,
    settings: DemoSettings,
    phases: Phases,
    console: Console,
) -> None:
    if not same_prompts([stock, *others]):
        raise CommandError("the chains sent different prompts; please report this")
    console.print()
    console.print(table(stock, others, console.width))
    for line in summary(stock, others):
        console.print(line, highlight=False)
    answer_tokens = settings.max_tokens * len(stock.asked)
    if remark := remark_if_all_fits(stock, answer_tokens, device_tokens):
        console.print(remark, highlight=False)
    picture, figures = settings.output / "ttft.png", settings.output / "demo.json"
    with phases.waiting("Drawing the picture"):
        draw(stock, others, picture)
    write_figures(
        figures,
        [stock, *others],
        this_machine(),
        installed_versions(),
        {
            "model": settings.model,
            "dtype": settings.dtype,
            "max_tokens": settings.max_tokens,
            "context_tokens": CONTEXT_TOKENS,
            "device_cache_bytes": DEVICE_CACHE_BYTES,
            "load_average": os.getloadavg(),
        },
        phases.seconds,
    )
    console.print(f"Written: {picture}, {figures}", soft_wrap=True)
