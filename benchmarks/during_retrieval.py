"""Measure what the model's work during a retrieval gains: stages of a search, candidates of a reranker.

    python benchmarks/during_retrieval.py --grid --out FOLDER     # simulated GPUs: 20 minutes
    python benchmarks/during_retrieval.py --on a10g --reuse anywhere --rerank-ms 300
    python benchmarks/during_retrieval.py --on vllm --reuse prefix --search-ms 200 --stages

A question's ten nearest passages are found after --search-ms. With --rerank-ms a reranker then keeps
those with most of the question's words. Both wait, as for another host, and take no processor. With
--stages the search tells what it has found after an eighth and a quarter of its time, as a Faiss index on
another host does; an eighth is too early for one question in twelve (docs/search.md).

Engines get each question in turn: speculation "off", "on" and "auto". TTFT counts from the question. The
first questions, by which "auto" learns the chain's times, do not count. With --load they come at random
times, so many times as fast as the model computes them one by one, to one engine after the other.

With --streamed the documents come over seconds, as Stream2LLM (MLSys 2026) published it of its traces.
append: a crawler's pages, one after the other, 0.7 s apart in the mean. update: a vector search in 1 to
26 parts, 4 in the median, which replace what the one before had found from some place on; they come
37 ms apart in the median, and some take seconds. --device-tokens makes memory short.

--tier cold: each question finds empty tiers. disk: what was prefilled before lies on disk, and memory is
empty. host: it is in memory. --on a10g and h100 simulate a 7B model on a GPU in real time, from published
rates: steps sleep. --on vllm is the real one, on this machine.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from programs import command_line
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

MODES = ("off", "on", "auto")
FOUND = 10
EARLY = (1 / 8, 1 / 4)
"""After which shares of a search it tells what it has found."""
TOO_EARLY = 12
"""Of so many questions one has other documents at the first of these."""
PAGE_S = 0.7
"""The mean time between two pages of a crawler."""
PARTS, PART_S, SPREAD = (4, 26), 0.037, 2.2
"""Parts of a vector search: median and most; the median time between two, and by how much (the standard
deviation of its logarithm) it varies, so that a search takes some seconds where one part does."""
LONGEST_PART_S = 9.0
PATIENCE = 3000
FIRST_TOKEN = SamplingOptions(max_tokens=1, add_special_tokens=False)
DEVICE_TOKENS, HOST_TOKENS, DISK_TOKENS = 1 << 16, 1 << 19, 1 << 22
"""What a simulated GPU's tiers hold."""
AT_ONCE = 4
"""How many cells of the grid run at a time: simulated models sleep."""

SEARCHES = (50, 100, 200, 400)
GRID: tuple[tuple[str, ...], ...] = (
    *(
        ("--reuse", "prefix", "--tier", tier, "--stages", "--search-ms", str(search))
        for tier in ("cold", "host")
        for search in SEARCHES
    ),
    *(
        ("--reuse", "prefix", "--stages", "--search-ms", "200", "--tier", tier, "--load", str(load))
        for tier in ("cold", "host")
        for load in (0.5, 2, 8)
    ),
    *(
        ("--reuse", reuse, "--tier", tier, "--rerank-ms", str(rerank))
        for reuse in ("prefix", "anywhere")
        for tier in ("cold", "disk", "host")
        for rerank in (100, 300)
    ),
)
"""The cells, on each simulated GPU."""


def main() -> None:
    asked = _parse()
    if asked.grid:
        run_grid(asked)
        return
    rows = run_cell(asked)
    print(report(rows, asked.modes))
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        kept = {"asked": {name: str(value) for name, value in vars(asked).items()}, "rows": rows}
        (asked.out / f"{_name(asked)}.json").write_text(json.dumps(kept))


def run_cell(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Ask all questions of every engine."""
    corpus, questions = read_set(asked.set, asked.questions + LEAST_QUESTIONS + 1, FOUND)
    neighbours = {name: found[0] for name, found in find_nearest(corpus).items()}
    longer = {one.id: replace(one, text=" ".join([one.text] * asked.times)) for one in corpus}
    questions = [
        one._replace(documents=[longer[document.id] for document in one.documents])
        for one in questions
    ]
    known = Corpus(1, lambda documents: [longer[neighbours[one.id].id] for one in documents])
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        engines: dict[str, RAGCacheEngine] = {}
        models: dict[str, list[psutil.Process]] = {}
        for mode in asked.modes:
            before = set(psutil.Process().children(recursive=True))
            engines[mode] = stack.enter_context(_start(mode, asked))
            models[mode] = list(set(psutil.Process().children(recursive=True)) - before)
        if asked.tier != "cold":
            for engine in engines.values():
                _warm(engine, questions, known, asked)
        if asked.load:
            first, rest = questions[: LEAST_QUESTIONS + 1], questions[LEAST_QUESTIONS + 1 :]
            alone = {
                mode: [
                    (
                        _stream(engines[mode], one, known, asked, -number)
                        if asked.streamed
                        else _ask(engines[mode], one, known, asked, is_early=False)
                    ).usage
                    for number, one in enumerate(first)
                ]
                for mode in asked.modes
            }
            each = (one.ttft_s - one.retrieval_s for one in alone[asked.modes[0]])
            rate = asked.load / statistics.median(each)
            for mode in asked.modes:
                rows += _ask_many(engines[mode], mode, rest, known, asked, rate)
            return rows
        for number, question in enumerate(questions):
            turn = number % len(asked.modes)
            for mode in asked.modes[turn:] + asked.modes[:turn]:
                if asked.tier != "host":
                    _clear(engines[mode])
                others = [one for other in asked.modes if other != mode for one in models[other]]
                with _stopped(others):
                    answer = _ask(engines[mode], question, known, asked, number % TOO_EARLY == 0)
                if number > LEAST_QUESTIONS:
                    rows.append(_row(number, mode, answer))
            if sys.stdout.isatty():
                print(f"\r{number + 1} of {len(questions)} questions", end="", flush=True)
    return rows


def _ask_many(
    engine: RAGCacheEngine,
    mode: str,
    questions: Sequence[Question],
    known: Corpus,
    asked: argparse.Namespace,
    rate: float,
) -> list[dict[str, Any]]:
    """Ask at random times, so many a second: the same times for every engine."""
    dice = random.Random(1)
    begun, at_s, running = time.monotonic(), 0.0, []
    with ThreadPoolExecutor(len(questions)) as threads:
        for number, question in enumerate(questions):
            at_s += dice.expovariate(rate)
            time.sleep(max(0.0, begun + at_s - time.monotonic()))
            if asked.streamed:
                asking = threads.submit(_stream, engine, question, known, asked, number)
            else:
                is_early = number % TOO_EARLY == 0
                asking = threads.submit(_ask, engine, question, known, asked, is_early)
            running.append(asking)
    return [_row(number, mode, one.result()) for number, one in enumerate(running)]


def run_grid(asked: argparse.Namespace) -> None:
    """Run the cells of GRID on each simulated GPU, some at a time, and write a table of them all."""
    asked.out.mkdir(parents=True, exist_ok=True)
    cells = [("--on", gpu, *cell) for gpu in ("a10g", "h100") for cell in GRID]

    def run(cell: tuple[str, ...]) -> None:
        words = [*cell, "--questions", str(asked.questions), "--out", str(asked.out)]
        subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True)
        print(".", end="", flush=True)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(run, cells))
    print()
    lines = list(write_table(asked.out))
    print("\n".join(lines))
    (asked.out / "during-retrieval.md").write_text("\n".join([*lines, ""]))


def write_table(folder: Path) -> Iterator[str]:
    """Write a line for each cell whose rows lie in the folder."""
    names = ("on", "reuse", "tier", "search_ms", "rerank_ms", "load")
    heads = [
        *("on", "reuse", "tier", "search, ms", "reranker, ms", "load"),
        *("TTFT off, ms", "on/off", "auto/off", "slowest auto/off"),
    ]
    lines = []
    for path in sorted(folder.glob("*.json")):
        kept = json.loads(path.read_text())
        asked, rows = kept["asked"], kept["rows"]
        off = [row["ttft_s"] for row in rows if row["mode"] == "off"]
        ratios = [spread(_ratios(rows, mode)) for mode in ("on", "auto")]
        named = [str(asked.get(name, "")) for name in names]
        auto = [row["ttft_s"] for row in rows if row["mode"] == "auto"]
        lines.append([*named, spread(off, ".0f", 1000), *ratios, f"{max(auto) / max(off):.2f}"])
    yield from table(heads, lines)


def _ratios(rows: Sequence[Mapping[str, Any]], mode: str) -> list[float]:
    """Return TTFT over that with speculation off, pair by pair."""
    times = [[row["ttft_s"] for row in rows if row["mode"] == each] for each in (mode, "off")]
    return [mine / off for mine, off in zip(*times, strict=True)]


def _name(asked: argparse.Namespace) -> str:
    parts = (
        *(asked.on, asked.reuse, asked.tier, asked.search_ms, asked.rerank_ms),
        *(asked.kept, asked.times, asked.load, asked.streamed, asked.device_tokens),
    )
    return "-".join(map(str, parts))


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
    settings: dict[str, Any] = {"speculation": mode}
    ratio = None
    if asked.reuse == "anywhere":
        ratio = asked.ratio
        settings |= {"reuse": "anywhere", "recompute_ratio": ratio, "recheck_share": 0}
    if asked.on != "vllm":
        from virtual.accelerator import Accelerator

        device = asked.device_tokens
        tokens = (device, 0, 0) if asked.tier == "cold" else (device, HOST_TOKENS, 0)
        if asked.tier == "disk":
            tokens = (device, HOST_TOKENS, DISK_TOKENS)
        config = EngineConfig(model="any", backend="memory", **settings)
        with RAGCacheEngine(config, backend=Accelerator(asked.on, tokens, ratio)) as engine:
            yield engine
        return
    with tempfile.TemporaryDirectory() as folder:
        if asked.tier != "cold":
            settings["host_cache"] = ByteSize(1 << 30)
        if asked.tier == "disk":
            settings |= {"disk_cache": ByteSize(8 << 30), "disk_cache_dir": folder}
        config = EngineConfig(
            model=asked.model or str(demo_model()),
            device_cache=ByteSize(1 << 30),
            vllm_args={"dtype": asked.dtype, "max_model_len": 4096},
            **settings,
        )
        with RAGCacheEngine(config) as engine:
            yield engine


def _warm(
    engine: RAGCacheEngine, questions: Sequence[Question], known: Corpus, asked: argparse.Namespace
) -> None:
    """Prefill all that the questions find: with exact reuse, the documents of each prompt."""
    if asked.reuse == "prefix":
        sets = [_choose(question, asked) for question in questions]
    else:
        found = {one.id: one for question in questions for one in question.documents}
        sets = sets_of_each(list(found.values()), borrows=True)
    engine.warm(sets, template=_prompt, neighbours=known, progress=sys.stdout.isatty())


def _prompt(question: str, documents: Sequence[Document]) -> str:
    texts = SEPARATOR.join(document.text for document in documents)
    return SYSTEM + USER + texts + ASK.format(question=question)


def _choose(question: Question, asked: argparse.Namespace) -> list[Document]:
    """Return the prompt's documents: of a reranker's, those with most of the question's words."""
    if not asked.rerank_ms:
        return question.documents[: asked.kept]
    wanted = set(re.findall(r"\w+", question.text.lower()))

    def common(document: Document) -> int:
        return len(wanted & set(re.findall(r"\w+", document.text.lower())))

    return sorted(question.documents, key=common, reverse=True)[: asked.kept]


def _ask(
    engine: RAGCacheEngine,
    question: Question,
    known: Corpus,
    asked: argparse.Namespace,
    is_early: bool,
) -> Answer:
    """Retrieve and ask. is_early: whether the first stage has other documents."""
    chosen = _choose(question, asked)
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


def _stream(
    engine: RAGCacheEngine,
    question: Question,
    known: Corpus,
    asked: argparse.Namespace,
    number: int,
) -> Answer:
    """Retrieve documents that come over seconds, and ask. number: draws the times."""
    dice, chosen = random.Random(number), _choose(question, asked)
    with engine.retrieval(question.text, chain="chain") as retrieval:
        for waits_s, documents in _arrivals(chosen, question, asked, dice):
            time.sleep(waits_s)
            retrieval.provisional(documents)
        retrieval.look_up_neighbours(chosen, known)
        retrieval.found(chosen)
    return engine.generate(_prompt(question.text, chosen), options=FIRST_TOKEN)


def _arrivals(
    chosen: Sequence[Document], question: Question, asked: argparse.Namespace, dice: random.Random
) -> Iterator[tuple[float, Sequence[Document]]]:
    """Yield when, after the ones before, which documents are known."""
    if asked.streamed == "append":
        for count in range(1, len(chosen) + 1):
            yield dice.expovariate(1 / PAGE_S), chosen[:count]
        return
    median, most = PARTS
    parts = min(most, 1 + int(dice.expovariate(math.log(2) / (median - 0.5))))
    others = [one for one in question.documents if one not in chosen] or chosen[::-1]
    for part in range(parts):
        is_last, same = part == parts - 1, dice.randrange(len(chosen))
        rest = [dice.choice(others) for _ in chosen[same:]]
        waits_s = min(LONGEST_PART_S, PART_S * dice.lognormvariate(0.0, SPREAD))
        yield waits_s, chosen if is_last else [*chosen[:same], *dict.fromkeys(rest)]


def _row(number: int, mode: str, answer: Answer) -> dict[str, Any]:
    usage = answer.usage
    return {
        "question": number,
        "mode": mode,
        "ttft_s": usage.ttft_s,
        "late_s": usage.ttft_s - usage.retrieval_s,
        "prompt_tokens": usage.prompt_tokens,
        "computed": usage.computed_tokens,
        "borrowed": usage.borrowed.total,
    }


def report(rows: Sequence[Mapping[str, Any]], modes: Sequence[str]) -> str:
    """Write a line for each mode, and the ratios of pairs."""
    lines = []
    for mode in modes:
        mine = [row for row in rows if row["mode"] == mode]
        shares = [f"{_share(mine, name):.2f}" for name in ("computed", "borrowed")]
        ttft = spread([row["ttft_s"] for row in mine], ".0f", 1000)
        ratio = spread(_ratios(rows, mode)) if "off" in modes else ""
        late = sorted(row["late_s"] for row in mine)
        slow = f"{1000 * statistics.median(late):.0f}, {1000 * late[int(0.99 * len(late))]:.0f}"
        lines.append([mode, ttft, slow, *shares, ratio])
    heads = [
        "speculation",
        "TTFT, ms",
        "after the search: median, p99",
        "computed of prompt",
        "borrowed",
        "TTFT over off, in pairs",
    ]
    return "\n".join(table(heads, lines))


def _share(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.fmean(row[name] / row["prompt_tokens"] for row in rows)


def _parse() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--grid", action="store_true", help="all cells, on simulated GPUs")
    parser.add_argument("--on", choices=("vllm", "a10g", "h100"), default="vllm")
    parser.add_argument("--set", default="squad", help="one of the question sets")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--reuse", choices=("prefix", "anywhere"), default="anywhere")
    parser.add_argument("--tier", choices=("cold", "disk", "host"), default="cold")
    parser.add_argument("--search-ms", type=int, default=50)
    parser.add_argument("--rerank-ms", type=int, default=0)
    parser.add_argument("--kept", type=int, default=5, help="documents of a prompt")
    parser.add_argument(
        "--times", type=int, default=2, help="how often a passage stands in a document"
    )
    parser.add_argument(
        "--load", type=float, default=0.0, help="times the model's own speed; 0: at rest"
    )
    parser.add_argument(
        "--streamed", choices=("append", "update"), help="documents come over seconds; with --load"
    )
    parser.add_argument(
        "--device-tokens", type=int, default=DEVICE_TOKENS, help="of a simulated GPU"
    )
    parser.add_argument("--stages", action="store_true", help="tell what is found before the end")
    parser.add_argument("--ratio", type=float, default=0.1, help="recompute_ratio")
    parser.add_argument("--dtype", default="auto", help="of model and cache")
    parser.add_argument("--model", help="a folder or hub id (default: the demo's model)")
    parser.add_argument("--out", type=Path, help="a folder for the raw figures")
    parsed = parser.parse_args()
    if parsed.streamed and not parsed.load:
        parser.error("--streamed needs --load")
    if parsed.grid and not parsed.out:
        parser.error("--grid needs --out")
    return parsed


if __name__ == "__main__":
    main()
