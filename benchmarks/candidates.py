"""Measure what work during retrieval gains: candidates of a reranker, stages of a search.

    python benchmarks/candidates.py --out FOLDER                     # real vLLM, 20 minutes
    python benchmarks/candidates.py --reuse prefix --kept 2 --search-ms 200 --rerank-ms 0 --stages

A question's ten nearest passages are found after --search-ms, and a reranker keeps the five with most
of the question's words, after --rerank-ms: both wait, as for another host, and take no processor. Two
engines get each question in turn, at rest: speculation "off", and "auto", which is told of the
candidates when they are found. With --stages the search tells what it has found after an eighth and a
quarter of its time, as a Faiss index on another host does; an eighth is too early for one question in
twelve (docs/search.md). Each question finds empty memory; with --tier disk, donors that were
warmed before the run lie on disk. TTFT counts from the question, and from the prompt, which is what a
reader of the first token waits for the model. The first questions, by which "auto" learns the chain's
times, do not count.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from prompt_sets import ASK, SEPARATOR, SYSTEM, USER, Question, find_nearest, read_set
from pydantic import ByteSize
from tables import spread, table

from ragcache_cli.models import demo_model
from ragcache_engine import (
    Answer,
    Corpus,
    Document,
    EngineConfig,
    EngineError,
    RAGCacheEngine,
    SamplingOptions,
    sets_of_each,
)
from ragcache_engine.speculation.estimate import LEAST_QUESTIONS

MODES = ("off", "auto")
FOUND = 10
EARLY = (1 / 8, 1 / 4)
"""After which shares of a search it tells what it has found."""
TOO_EARLY = 12
"""Of so many questions one has other documents at the first of these."""
PATIENCE = 3000
FIRST_TOKEN = SamplingOptions(max_tokens=1, add_special_tokens=False)


def main() -> None:
    asked = _parse()
    corpus, questions = read_set(asked.set, asked.questions + LEAST_QUESTIONS + 1, FOUND)
    neighbours = {name: found[0] for name, found in find_nearest(corpus).items()}
    known = Corpus(1, lambda documents: [neighbours.get(one.id) for one in documents])
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        engines: dict[str, RAGCacheEngine] = {}
        models: dict[str, list[psutil.Process]] = {}
        for mode in MODES:
            before = set(psutil.Process().children(recursive=True))
            engines[mode] = stack.enter_context(_start(mode, asked))
            models[mode] = list(set(psutil.Process().children(recursive=True)) - before)
        if asked.tier == "disk":
            for engine in engines.values():
                _warm(engine, questions, known)
        for number, question in enumerate(questions):
            is_early = number % TOO_EARLY == 0
            turn = number % len(MODES)
            for mode in MODES[turn:] + MODES[:turn]:
                _clear(engines[mode])
                others = [one for other in MODES if other != mode for one in models[other]]
                with _stopped(others):
                    answer = _ask(engines[mode], question, known, asked, is_early)
                if number > LEAST_QUESTIONS:
                    rows.append(_row(number, mode, answer))
            print(f"\r{number + 1} of {len(questions)} questions", end="", flush=True)
    print()
    text = report(rows)
    print(text)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        name = f"{asked.reuse}-{asked.tier}-{asked.search_ms}-{asked.rerank_ms}-{asked.kept}"
        (asked.out / f"{name}.json").write_text(json.dumps(rows))
        (asked.out / f"{name}.md").write_text(text)


def _clear(engine: RAGCacheEngine) -> None:
    """Empty the memory between two of the pieces that the engine prepares in idle time."""
    for _ in range(PATIENCE):
        try:
            return engine.clear_cache()
        except EngineError:
            time.sleep(0.02)
    raise RuntimeError("the engine is never idle")


@contextmanager
def _stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop other engines' models for a while: they prepare donors when they are idle, or spin."""
    for one in processes:
        one.suspend()
    try:
        yield
    finally:
        for one in processes:
            one.resume()


@contextmanager
def _start(mode: str, asked: argparse.Namespace) -> Iterator[RAGCacheEngine]:
    settings: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if asked.tier == "disk":
            settings |= {
                "host_cache": ByteSize(1 << 30),
                "disk_cache": ByteSize(8 << 30),
                "disk_cache_dir": folder,
            }
        if asked.reuse == "anywhere":
            settings |= {"reuse": "anywhere", "recompute_ratio": asked.ratio, "recheck_share": 0}
        config = EngineConfig(
            model=asked.model or str(demo_model()),
            speculation=mode,
            device_cache=ByteSize(1 << 30),
            vllm_args={"dtype": asked.dtype, "max_model_len": 4096},
            **settings,
        )
        with RAGCacheEngine(config) as engine:
            yield engine


def _warm(engine: RAGCacheEngine, questions: Sequence[Question], known: Corpus) -> None:
    found = {one.id: one for question in questions for one in question.documents}
    engine.warm(
        sets_of_each(list(found.values()), borrows=True),
        template=lambda text, documents: _prompt(text, documents),
        neighbours=known,
        progress=True,
    )


def _prompt(question: str, documents: Sequence[Document]) -> str:
    texts = SEPARATOR.join(document.text for document in documents)
    return SYSTEM + USER + texts + ASK.format(question=question)


def _rerank(question: Question, kept: int) -> list[Document]:
    """Keep the documents with most of the question's words; of equal ones, those found first."""
    wanted = set(re.findall(r"\w+", question.text.lower()))

    def common(document: Document) -> int:
        return len(wanted & set(re.findall(r"\w+", document.text.lower())))

    return sorted(question.documents, key=common, reverse=True)[:kept]


def _ask(
    engine: RAGCacheEngine,
    question: Question,
    known: Corpus,
    asked: argparse.Namespace,
    is_early: bool,
) -> Answer:
    """Retrieve and ask. is_early: whether the first stage has other documents."""
    chosen = _rerank(question, asked.kept) if asked.rerank_ms else question.documents[: asked.kept]
    search_s, begun = asked.search_ms / 1000, time.monotonic()
    with engine.retrieval(question.text, chain="chain") as retrieval:
        for share in EARLY if asked.stages else ():
            time.sleep(max(0.0, begun + share * search_s - time.monotonic()))
            others = [*chosen[:-1], question.documents[asked.kept]]
            retrieval.provisional(others if is_early and share == EARLY[0] else chosen)
        time.sleep(max(0.0, begun + search_s - time.monotonic()))
        if asked.rerank_ms:
            retrieval.candidates(question.documents, known)
            time.sleep(asked.rerank_ms / 1000)
        retrieval.look_up_neighbours(chosen, known)
        retrieval.found(chosen)
    return engine.generate(_prompt(question.text, chosen), options=FIRST_TOKEN)


def _row(number: int, mode: str, answer: Answer) -> dict[str, Any]:
    usage = answer.usage
    return {
        "question": number,
        "mode": mode,
        "ttft_s": usage.ttft_s,
        "from_prompt_s": usage.ttft_s - usage.retrieval_s,
        "prompt_tokens": usage.prompt_tokens,
        "computed": usage.computed_tokens,
        "borrowed": usage.borrowed.total,
    }


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write a line for each mode, and the ratios of pairs."""
    of = {mode: [row for row in rows if row["mode"] == mode] for mode in MODES}
    lines = list(
        table(
            ["speculation", "TTFT ms", "from the prompt, ms", "computed of prompt", "borrowed"],
            [
                [
                    mode,
                    spread([row["ttft_s"] for row in mine], ".0f", 1000),
                    spread([row["from_prompt_s"] for row in mine], ".0f", 1000),
                    f"{_share(mine, 'computed'):.2f}",
                    f"{_share(mine, 'borrowed'):.2f}",
                ]
                for mode, mine in of.items()
            ],
        )
    )
    for name in ("ttft_s", "from_prompt_s"):
        pairs = zip(of["off"], of["auto"], strict=True)
        ratios = [auto[name] / off[name] for off, auto in pairs]
        lines.append(f"auto/off, {name}, median of {len(ratios)} pairs: {spread(ratios)}")
    return "\n".join(lines) + "\n"


def _share(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.fmean(row[name] / row["prompt_tokens"] for row in rows)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--set", default="squad", help="one of the question sets")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--reuse", choices=("prefix", "anywhere"), default="anywhere")
    parser.add_argument("--tier", choices=("cold", "disk"), default="cold", help="where donors are")
    parser.add_argument("--search-ms", type=int, default=50)
    parser.add_argument("--rerank-ms", type=int, default=300)
    parser.add_argument("--kept", type=int, default=5, help="documents of a prompt")
    parser.add_argument("--stages", action="store_true", help="tell what is found before the end")
    parser.add_argument("--ratio", type=float, default=0.1, help="recompute_ratio")
    parser.add_argument("--dtype", default="auto", help="of model and cache")
    parser.add_argument("--model", help="a folder or hub id (default: the demo's model)")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
