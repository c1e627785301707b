"""Measure what reuse at any position costs and gains: right answers, computed tokens, first tokens.

    python benchmarks/anywhere.py --sets squad nq_open --questions 200 --model FOLDER --out FOLDER

Real questions of the shared sets with their nearest documents, as they came, are answered exactly (as
with reuse="prefix") and at each ratio from each kind of donors: stored alone, behind the nearest
neighbour (also in int8), behind two of them (written as one document, the farther first), or "any",
from whatever prompt had the document before. A question's donors are computed before it is asked, as
while indexing; "any" has what its own stream left. Every other question begins with the exact way, so
that none profits from its place.

Every answer is a line of a file in --out, named for model, dtype and top-k. A run asks what is not yet
there and writes the report anew: stop it when you like, go on with more questions, sets or ways. An
answer is right if it contains an accepted one. Shares are of all questions, differences are taken
question by question, with the 95% interval of a bootstrap. With --at-once a question is answered at all
ratios at the same time: soon done where only answers matter, and without times to first tokens. In
bfloat16 answers then differ by that batch, too.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from prompt_sets import SEPARATOR, Question, find_nearest, read_set, tell_neighbours
from question_files import SETS
from tables import table

from ragcache_cli.calibrating.grading import is_right, token_f1
from ragcache_cli.calibrating.likeness import bound_mean
from ragcache_cli.models import demo_model
from ragcache_engine import Answer, Document, EngineConfig, RAGCacheEngine, SamplingOptions
from ragcache_engine.anywhere.rouge import rouge_l

PACKED = "neighbours in int8"
BEHIND = {"alone": 0, "neighbours": 1, PACKED: 1, "two neighbours": 2}
"""Kinds of donors, and behind how many neighbours each has a document."""
ANY = "any"
OPTIONS = SamplingOptions(max_tokens=24, add_special_tokens=False)
FIRST_TOKEN = replace(OPTIONS, max_tokens=1)
HEADS = (
    *("set", "donors, ratio", "n", "right", "less exact (95%)", "F1", "less exact (95%)"),
    *("ROUGE-L", "equal", "not computed", "exact/this TTFT, median"),
)

Row = dict[str, Any]
Neighbours = dict[str, Document]
"""For each document what its donor stands behind; nothing for one that is stored alone."""


class Way(NamedTuple):
    """How a question is answered. donors: None answers exactly."""

    donors: str | None = None
    ratio: float = 0.0


class Settings(NamedTuple):
    """How to measure. deadline: by time.monotonic(). at_once: all ratios of a kind together."""

    model: str
    dtype: str
    deadline: float
    at_once: bool

    def is_over(self) -> bool:
        return time.monotonic() > self.deadline


def main() -> None:
    asked = _parse()
    model = asked.model or str(demo_model())
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / f"{Path(model).name}-{asked.dtype}-top{asked.top_k}.jsonl"
    path.touch()
    deadline = time.monotonic() + 60 * asked.minutes
    settings = Settings(model, asked.dtype, deadline, asked.at_once)
    ways = [Way(donors, ratio) for donors in asked.donors for ratio in asked.ratios]
    prepared = [Way(), *(way for way in ways if way.donors not in (ANY, PACKED))]
    others = [[way for way in ways if way.donors == kind] for kind in (PACKED, ANY)]
    for name in asked.sets:
        corpus, questions = read_set(name, asked.questions, asked.top_k)
        for together in (prepared, *others):
            measure(name, corpus, questions, together, settings, path)
    text = report(read(path))
    path.with_suffix(".md").write_text(text)
    print(text)


def measure(
    name: str,
    corpus: Sequence[Document],
    questions: Sequence[Question],
    ways: Sequence[Way],
    settings: Settings,
    path: Path,
) -> None:
    """Ask each question in the ways that are missing, on one engine, and write its rows at once."""
    done = {(row["question"], way_of(row)) for row in read(path) if row["set"] == name}
    missing = {
        number: [way for way in ways if (number, way) not in done]
        for number in range(len(questions))
    }
    last = max((number for number, todo in missing.items() if todo), default=-1)
    if last < 0 or settings.is_over():
        return
    is_any = ways[0].donors == ANY
    donors = {"donors": ANY} if is_any else {"missing_donors": "compute"}
    if ways[0].donors == PACKED:
        donors["donor_dtype"] = "int8"
    config = EngineConfig.model_validate(
        {
            "model": settings.model,
            "device_cache": 1 << 30,
            "reuse": "anywhere",
            "recompute_ratio": 0.0,
            "speculation": "off",
            "recheck_share": 0.0,
            "vllm_args": {"dtype": settings.dtype, "max_model_len": 8192},
            **donors,
        }
    )
    stored = store_behind(corpus, kinds_in(ways))
    with RAGCacheEngine(config) as engine, path.open("a") as file:
        for number, question in enumerate(questions[: last + 1]):
            todo = missing[number]
            if settings.is_over():
                return
            if not todo:
                if is_any:  # later questions borrow what this one leaves, also after a break
                    ask(engine, question, ways[0], stored, FIRST_TOKEN)
                continue
            prepare(engine, question, kinds_in(todo), stored)
            todo = todo if number % 2 else todo[::-1]
            if settings.at_once:
                answers = ask_at_once(engine, question, todo, stored)
            else:
                answers = [ask(engine, question, way, stored, OPTIONS) for way in todo]
            rows = [
                row_of(name, number, question, *pair) for pair in zip(todo, answers, strict=True)
            ]
            if settings.at_once:
                rows = [{**row, "ttft_s": None} for row in rows]
            file.write("".join(json.dumps(row) + "\n" for row in rows))
            file.flush()
            print(f"\r{name}: {number + 1} of {last + 1} questions", end="", flush=True)
    print()


def kinds_in(ways: Sequence[Way]) -> set[str]:
    return {way.donors for way in ways if way.donors in BEHIND}


def store_behind(corpus: Sequence[Document], kinds: set[str]) -> dict[str, Neighbours]:
    """Return for each kind of donors what every document is stored behind."""
    most = max((BEHIND[kind] for kind in kinds), default=0)
    nearest = find_nearest(corpus, most) if most else {}

    def joined(nearest_first: Sequence[Document]) -> Document:
        found = nearest_first[::-1]
        texts = SEPARATOR.join(one.text for one in found)
        return Document("+".join(one.id for one in found), texts)

    return {
        kind: {name: joined(found[: BEHIND[kind]]) for name, found in nearest.items()}
        for kind in kinds
        if BEHIND[kind]
    }


def prepare(
    engine: RAGCacheEngine, question: Question, kinds: set[str], stored: dict[str, Neighbours]
) -> None:
    """Let the engine compute the first document, and the others' donors, by other prompts.

    The question's own would leave its approximate tensors, which an equal plan finds again.
    """
    first, *later = question.documents
    ask(engine, Question("?", [], [first]), Way(), stored, FIRST_TOKEN)
    for kind in kinds:
        # A prompt's first document is exact, and no donor: so one comes twice.
        ask(engine, Question("?", [], [*later[:1], *later]), Way(kind), stored, FIRST_TOKEN)


def ask(
    engine: RAGCacheEngine,
    question: Question,
    way: Way,
    stored: dict[str, Neighbours],
    options: SamplingOptions,
) -> Answer:
    tell_neighbours(engine, question.documents, stored.get(way.donors or "", {}))
    return generate(engine, question, way, options)


def ask_at_once(
    engine: RAGCacheEngine,
    question: Question,
    ways: Iterable[Way],
    stored: dict[str, Neighbours],
) -> list[Answer]:
    """Return the answers of ways that stand together by their donors, one kind after the other."""
    answers: list[Answer] = []
    for kind, ratios in groupby(ways, attrgetter("donors")):
        tell_neighbours(engine, question.documents, stored.get(kind or "", {}))
        several = list(ratios)
        with ThreadPoolExecutor(len(several)) as pool:
            answers += pool.map(lambda way: generate(engine, question, way, OPTIONS), several)
    return answers


def generate(
    engine: RAGCacheEngine, question: Question, way: Way, options: SamplingOptions
) -> Answer:
    return engine.generate(
        question.prompt,
        question.documents,
        options,
        exact=way.donors is None,
        recompute_ratio=None if way.donors is None else way.ratio,
    )


def row_of(name: str, number: int, question: Question, way: Way, answer: Answer) -> Row:
    usage = answer.usage
    return {
        "set": name,
        "question": number,
        **way._asdict(),
        "accepted": question.answers,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "ttft_s": usage.ttft_s,
        "prompt_tokens": usage.prompt_tokens,
        "cached": usage.cached.total,
        "borrowed": usage.borrowed.total,
    }


def way_of(row: Row) -> Way:
    return Way(row["donors"], row["ratio"])


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- the report ----------------------------------------------------------------------------------------


def report(rows: Sequence[Row]) -> str:
    """Write a line for each set and way, and for all sets together where there are several."""
    exact = {(row["set"], row["question"]): row for row in rows if row["donors"] is None}
    pairs = [(row, exact[row["set"], row["question"]]) for row in rows]
    names = [name for name in SETS if any(row["set"] == name for row in rows)]
    kinds = [None, *BEHIND, ANY]
    ways = sorted(
        {way_of(row) for row in rows}, key=lambda way: (kinds.index(way.donors), way.ratio)
    )
    lines = []
    for name in names + ["all"] * (len(names) > 1):
        for way in ways:
            group = [
                pair for pair in pairs if way_of(pair[0]) == way and name in (pair[0]["set"], "all")
            ]
            label = f"{way.donors}, {way.ratio:g}" if way.donors else "exact"
            if group:
                lines.append([name, label, str(len(group)), *_figures(group)])
    return "\n".join(table(HEADS, lines))


def _figures(pairs: Sequence[tuple[Row, Row]]) -> Iterator[str]:
    for grade in (is_right, token_f1):
        graded = [[float(grade(row["text"], row["accepted"])) for row in pair] for pair in pairs]
        differences = [now - exactly for now, exactly in graded]
        low, high = (bound_mean(differences, share) for share in (0.025, 0.975))
        yield f"{statistics.fmean(now for now, _ in graded):.3f}"
        yield f"{statistics.fmean(differences):+.3f} ({low:+.3f} to {high:+.3f})"
    rouge = [rouge_l(row["text"], exact["text"]) for row, exact in pairs]
    error = statistics.stdev(rouge) / math.sqrt(len(rouge)) if len(rouge) > 1 else math.nan
    yield f"{statistics.fmean(rouge):.3f} ± {error:.3f}"
    yield f"{statistics.fmean(row['token_ids'] == exact['token_ids'] for row, exact in pairs):.2f}"
    found = sum(row["cached"] + row["borrowed"] for row, _ in pairs)
    yield f"{found / sum(row['prompt_tokens'] for row, _ in pairs):.2f}"
    quicker = [
        exact["ttft_s"] / row["ttft_s"] for row, exact in pairs if exact["ttft_s"] and row["ttft_s"]
    ]
    yield f"{statistics.median(quicker):.1f}" if quicker else "-"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["squad"])
    parser.add_argument("--questions", type=int, default=200, help="of each set; 0: report only")
    parser.add_argument("--top-k", type=int, default=5, help="documents of a question")
    parser.add_argument("--donors", nargs="+", choices=[*BEHIND, ANY], default=["neighbours"])
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.0, 0.05, 0.1, 0.15, 0.3])
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no question later")
    parser.add_argument("--dtype", default="float32", help="as vLLM's (default: float32)")
    parser.add_argument(
        "--at-once", action="store_true", help="a question at all ratios at the same time"
    )
    parser.add_argument("--model", help="a folder or hub id (default: the demo's model)")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
