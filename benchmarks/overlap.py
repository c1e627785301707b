"""Measure how much of the search the prefill hides, and what wrong guesses cost.

    python benchmarks/overlap.py --out benchmarks/results/overlap      # an hour, on a quiet machine
    python benchmarks/overlap.py --quick --out /tmp/overlap            # two minutes, to see that it runs

**Hidden search** (RAGCache's Table 3). The index has 300,000 vectors, made from the documents of four
question sets as in embedded_sets.py, in 1,024 IVF lists, of which 12.5 to 100% are searched. Real squad
questions come one at a time, through LangChain's FAISS store. Each is asked twice, in alternating order
and with an empty cache: through `store.as_retriever()`, and through `RAGCacheRetriever`, which gives
the engine the result of each stage. The model has a core to itself; the search and the rest of this
process have the other one. Faiss has one thread. The script also draws the timeline of one question at
each share.

    prefill        = TTFT of the stock retriever - its search
    not overlapped = TTFT of RAGCacheRetriever - prefill      what the search still adds to the TTFT
    hidden         = 1 - not overlapped / search of the stock retriever

each for one question, so that its own prefill counts. The script prints medians and quartiles. "Not
overlapped" contains noise and the cost of stages. If it exceeds the search, "hidden" is negative. Where
a prefill takes ten times as long as its search, its noise is larger than the difference. So there is a
second figure, from the timeline of RAGCacheRetriever alone: the share of its search that ran after the
adopted speculation had begun (0 if none was adopted), whatever that cost.

**Wrong guesses.** The script compares a search that only waits, and gives other documents at each of
eight stages, with a search that waits as long and gives only its final result. It prints the TTFT with
wrong guesses over the TTFT without: one question at a time (goal: at most 1.05), and in rounds of eight
questions at once (goal: at most 1.02), in both modes of speculation.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import faiss
from comparing.questions import QuestionSet, build_store
from embedded_sets import embedded, scaled_up, texts
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document as LangChainDocument
from programs import command_line, keep
from question_files import SETS
from tables import spread, table

from ragcache_cli import timeline
from ragcache_cli.models import demo_model
from ragcache_engine import (
    Document,
    EngineConfig,
    EngineError,
    RAGCacheEngine,
    SamplingOptions,
    SpeculationOutcome,
    Template,
)
from ragcache_engine.config import SpeculationMode
from ragcache_integrations.langchain import RAGCacheRetriever

LISTS = 1_024
SHARES = (0.125, 0.25, 0.5, 1.0)
TOP_K = 2
CONTEXT_TOKENS = 2_048
OPTIONS = SamplingOptions(max_tokens=2, ignore_eos=True)
TEMPLATE = Template(
    "<|im_start|>user\nAnswer from these passages.\n\n",
    "\n\n",
    "\n\nQuestion: {question}<|im_end|>\n<|im_start|>assistant\n",
)
SEARCH_CORE, MODEL_CORE = 0, 1
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
STAGES = 8
AT_ONCE = 8
SEED = 1


@contextmanager
def engine_beside_search(mode: SpeculationMode, *, pinned: bool) -> Iterator[RAGCacheEngine]:
    """Start an engine on one core, and put every thread of this process on another one.

    Raises SystemExit if the two cores are not there.
    """
    if pinned and not {SEARCH_CORE, MODEL_CORE} <= os.sched_getaffinity(0):
        raise SystemExit(f"cores {SEARCH_CORE} and {MODEL_CORE} are needed, or --not-pinned")
    if pinned:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = str(MODEL_CORE)
    config = EngineConfig(
        model=str(demo_model()),
        backend="vllm",
        device_cache="512MiB",
        speculation=mode,
        vllm_args={"max_model_len": CONTEXT_TOKENS},
    )
    with RAGCacheEngine(config) as engine:
        if pinned:
            _pin()
        yield engine
    if pinned:
        _on_cores(os.getpid(), {SEARCH_CORE, MODEL_CORE})


def _pin() -> None:
    import psutil

    for child in psutil.Process().children(recursive=True):
        _on_cores(child.pid, {MODEL_CORE})
    _on_cores(os.getpid(), {SEARCH_CORE})


def _on_cores(process: int, cores: set[int]) -> None:
    for thread in os.listdir(f"/proc/{process}/task"):  # later threads inherit this
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def empty_cache(engine: RAGCacheEngine) -> None:
    """Clear the cache. A cancelled request may first run to the end of its step."""
    for _ in range(1_000):
        try:
            return engine.clear_cache()
        except EngineError:
            time.sleep(0.01)
    raise SystemExit("the engine still runs requests")


def time_first_token(
    engine: RAGCacheEngine, prompt: str, documents: Sequence[Document] | None
) -> tuple[float, Any]:
    """Stream an answer. Returns when its first token came, by perf_counter, and its usage."""
    at_s, usage = 0.0, None
    with engine.stream(prompt, documents, OPTIONS) as pieces:
        for piece in pieces:
            at_s = at_s or time.perf_counter()
            usage = piece.usage
    return at_s, usage


def store_of(passages: Sequence[str], squad: Sequence[str], vectors: int, lists: int) -> FAISS:
    """Build a LangChain store as a user would. Copies of a passage's vector have the passage's text."""
    scaled = scaled_up(embedded("documents"), vectors)
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(scaled.shape[1]), scaled.shape[1], lists)
    index.train(scaled[:: max(1, len(scaled) // (40 * lists))])
    index.add(scaled)
    texts = {f"p{row}": passages[row % len(passages)] for row in range(len(scaled))}
    asked = embedded("questions")[: len(squad)]
    return build_store(QuestionSet(squad, [()] * len(squad), texts, [*texts], index, asked))


def to_engine_documents(documents: Sequence[LangChainDocument]) -> list[Document]:
    return [Document(str(document.id), document.page_content) for document in documents]


def measure_hidden(
    engine: RAGCacheEngine, store: FAISS, asked: Sequence[str], share: float
) -> dict:
    """Ask every question with and without stages, at one share of the lists."""
    store.index.nprobe = int(share * store.index.nlist)
    plain = store.as_retriever(search_kwargs={"k": TOP_K})
    staged = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=TOP_K, template=TEMPLATE)
    rows, outcomes, stages, started = [], Counter[str](), [], 0
    # From the first questions the engine learns the sampling options.
    for number, question in enumerate([*asked[:2], *asked], -2):
        row: dict[str, Any] = {"question": question}
        for arm in ("plain", "staged") if number % 2 else ("staged", "plain"):
            empty_cache(engine)
            began_s = time.perf_counter()
            documents = (plain if arm == "plain" else staged).invoke(question)
            searched_s = time.perf_counter()
            prompt = TEMPLATE(question, to_engine_documents(documents))
            given = to_engine_documents(documents) if arm == "plain" else None
            token_s, usage = time_first_token(engine, prompt, given)
            row[f"{arm}_search_s"] = searched_s - began_s
            row[f"{arm}_ttft_s"] = token_s - began_s
            if arm == "staged":
                row["usage"] = usage
        usage = row.pop("usage")
        report = usage.speculation
        row["outcome"] = report.outcome.value
        row["prefill_s"] = row["plain_ttft_s"] - row["plain_search_s"]
        row["not_overlapped_s"] = row["staged_ttft_s"] - row["prefill_s"]
        row["under_way"] = timeline.hidden_share(report)
        row["hidden"] = 1 - row["not_overlapped_s"] / row["plain_search_s"]
        if number >= 0:
            rows.append(row)
            outcomes[report.outcome.value] += 1
            stages.append(sum(event.step == "stage" for event in report.timeline))
            started += sum(event.step == "started" for event in report.timeline)
    return {
        "share": share,
        "stages": statistics.fmean(stages),
        "speculations": started / len(rows),
        "outcomes": dict(outcomes),
        "rows": rows,
        "last": (question, usage),
    }


def ask_misled(
    engine: RAGCacheEngine,
    question: str,
    passages: Sequence[Document],
    seed: int,
    search_s: float,
    *,
    told: bool,
) -> float:
    """Ask one question whose search only waits. Returns the TTFT in seconds.

    told: whether to give the engine other documents at every stage; if not, only the final ones.
    """
    dice = random.Random(seed)
    guesses = [dice.sample(list(passages), TOP_K) for _ in range(STAGES)]
    began_s = time.perf_counter()
    if not told:
        time.sleep(search_s)
        token_s, _ = time_first_token(engine, TEMPLATE(question, guesses[-1]), guesses[-1])
        return float(token_s - began_s)
    chain = "misled"
    with engine.retrieval(question, chain=chain, template=TEMPLATE, options=OPTIONS) as retrieval:
        for guess in guesses[:-1]:
            time.sleep(search_s / STAGES)
            retrieval.provisional(guess)
        time.sleep(search_s / STAGES)
        retrieval.found(guesses[-1])
    token_s, _ = time_first_token(engine, TEMPLATE(question, guesses[-1]), None)
    return float(token_s - began_s)


def measure_misled(
    engine: RAGCacheEngine,
    asked: Sequence[str],
    passages: Sequence[Document],
    search_s: float,
    at_once: int,
) -> dict:
    """Ask rounds of `at_once` questions, with and without wrong guesses. Returns ratios of mean TTFTs."""
    means: dict[bool, list[float]] = {True: [], False: []}
    before = engine.stats().speculation
    with ThreadPoolExecutor(at_once) as pool:
        for number in range(len(asked) // at_once):
            questions = asked[number * at_once : (number + 1) * at_once]
            for told in (True, False) if number % 2 else (False, True):
                empty_cache(engine)

                def ask(place: int, told: bool = told, number: int = number) -> float:
                    seed = number * at_once + place
                    question = questions[place]  # noqa: B023  # used before the next round
                    return ask_misled(engine, question, passages, seed, search_s, told=told)

                means[told].append(statistics.fmean(pool.map(ask, range(at_once))))
    after = engine.stats().speculation
    pairs = zip(means[True], means[False], strict=True)
    return {
        "at_once": at_once,
        "rounds": len(means[True]),
        "told_s": means[True],
        "silent_s": means[False],
        "ratio": [told / silent for told, silent in pairs],
        "started": after.started - before.started,
        "wasted_prefill_tokens": after.wasted_prefill_tokens - before.wasted_prefill_tokens,
    }


def describe(result: dict[str, Any]) -> Iterator[str]:
    heads = "lists searched, search ms, not overlapped ms, hidden, by timeline, prefill ms"
    heads += ", TTFT without ms, TTFT with ms, stages, begun, adopted"
    if result["hidden"]:
        yield from table(heads.split(", "), map(cells_of_share, result["hidden"]))
    if result["misled"]:
        heads = "wrong guesses, at once, TTFT with ms, without ms, with / without, rounds, begun"
        yield from table(
            heads.split(", "),
            (
                (
                    row["mode"],
                    str(row["at_once"]),
                    spread(row["told_s"], ".0f", 1e3),
                    spread(row["silent_s"], ".0f", 1e3),
                    spread(row["ratio"], ".3f"),
                    str(row["rounds"]),
                    str(row["started"]),
                )
                for row in result["misled"]
            ),
        )


def cells_of_share(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of one share of the lists, with medians and quartiles over its questions."""

    def of(name: str, form: str = ".0f", times: float = 1e3) -> str:
        return spread([one[name] for one in row["rows"]], form, times)

    adopted = row["outcomes"].get(SpeculationOutcome.ADOPTED.value, 0)
    return (
        f"{row['share']:.1%}",
        of("plain_search_s"),
        of("not_overlapped_s"),
        of("hidden", ".0%", 1),
        of("under_way", ".0%", 1),
        of("prefill_s"),
        of("plain_ttft_s"),
        of("staged_ttft_s"),
        f"{row['stages']:.1f}",
        f"{row['speculations']:.1f}",
        f"{adopted} of {len(row['rows'])}",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--vectors", type=int, default=300_000)
    parser.add_argument("--lists", type=int, default=LISTS)
    parser.add_argument("--questions", type=int, default=100, help="at each share of the lists")
    parser.add_argument("--shares", type=float, nargs="*", default=SHARES)
    parser.add_argument("--document-words", type=int, default=250, help="longer ones are cut")
    parser.add_argument("--misled", type=int, default=96, help="questions with wrong guesses")
    parser.add_argument("--search-s", type=float, default=0.4, help="of a search that only waits")
    parser.add_argument("--modes", nargs="*", default=("on", "auto"), choices=("on", "auto"))
    parser.add_argument("--not-pinned", action="store_true", help="leave the cores to the system")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    given = parser.parse_args(arguments)
    if given.quick:
        given.vectors, given.lists, given.questions, given.misled = 45_000, 64, 3, 8
        given.shares, given.modes, given.document_words = (1.0,), ("on",), 60
    faiss.omp_set_num_threads(1)

    passages = [
        " ".join(text.split()[: given.document_words])
        for name in SETS
        for text in texts(name, "documents")
    ]
    squad = texts("squad", "questions")
    drawn = list(dict.fromkeys(random.Random(SEED).sample(squad, len(squad))))
    result: dict[str, Any] = {
        "vectors": given.vectors,
        "pinned": not given.not_pinned,
        "load_average": os.getloadavg(),
        "hidden": [],
        "misled": [],
    }
    given.out.mkdir(parents=True, exist_ok=True)  # for the timelines
    if given.shares and given.questions:
        store = store_of(passages, squad, given.vectors, given.lists)
        with engine_beside_search("on", pinned=not given.not_pinned) as engine:
            for share in given.shares:
                print(f"searching {share:.1%} of the lists", flush=True)
                row = measure_hidden(engine, store, drawn[: given.questions], share)
                timeline.draw(*row.pop("last"), given.out / f"timeline-{100 * share:g}.png")
                result["hidden"].append(row)
        del store
    some = [Document(f"p{at}", text) for at, text in enumerate(passages)]
    for mode in given.modes if given.misled else ():
        print(f"wrong guesses, speculation {mode}", flush=True)
        with engine_beside_search(mode, pinned=not given.not_pinned) as engine:
            ask_misled(engine, drawn[0], some, SEED, 0.01, told=True)
            for at_once in (1, AT_ONCE):
                asked = drawn[: given.misled]
                row = measure_misled(engine, asked, some, given.search_s, at_once)
                result["misled"].append({"mode": mode, **row})
    lines = list(describe(result))
    print(*lines, sep="\n")
    keep(given.out, "overlap", lines, result)


# vLLM starts processes that import this file again.
if __name__ == "__main__":
    main()
