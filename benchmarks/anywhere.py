"""Measure what reuse at any position costs and gains: answers, computed tokens, time to the first token.

    python benchmarks/anywhere.py --sets squad nq_open --questions 200 --out FOLDER

Real questions of the shared sets with their nearest documents, as they came. One engine answers each
question exactly (as with reuse="prefix"), and at each ratio from donors of several kinds: stored alone,
behind the nearest neighbour, or behind two of them (written as one document, the farther first). Every
other question begins with the approximate ways, so that none profits from its place. All documents are
prefilled before, as while indexing. Each approximate answer is compared with the exact one: ROUGE-L,
equal tokens, the accepted answer contained. Writes raw.json and report.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from comparing.grading import contained
from prompt_sets import SEPARATOR, Question, find_nearest, read_set, tell_neighbours
from pydantic import ByteSize

from ragcache_cli.models import demo_model
from ragcache_engine import Answer, Document, EngineConfig, RAGCacheEngine, SamplingOptions
from ragcache_engine.anywhere.rouge import rouge_l

DOCUMENTS_AT_ONCE = 5
"""How many documents one warming prompt holds."""
DONORS = {"alone": 0, "neighbours": 1, "two neighbours": 2}
"""Behind how many neighbours a document is stored."""
OPTIONS = SamplingOptions(max_tokens=24, add_special_tokens=False)


Neighbours = dict[str, Document]
"""For each document what its donor stands behind; nothing for one that is stored alone."""


class Way(NamedTuple):
    """How a question is answered. donors: one of DONORS; None answers exactly."""

    donors: str | None
    ratio: float = 0.0

    @property
    def label(self) -> str:
        return "exact" if self.donors is None else f"{self.donors}, {self.ratio:g}"


def main() -> None:
    asked = _parse()
    out: Path = asked.out
    out.mkdir(parents=True, exist_ok=True)
    ways = [Way(donors, ratio) for donors in asked.donors for ratio in asked.ratios]
    rows: list[dict[str, Any]] = []
    for name in asked.sets:
        rows += measure(
            name,
            asked.questions,
            asked.top_k,
            ways,
            asked.model or str(demo_model()),
        )
        (out / "raw.json").write_text(json.dumps(rows))
        (out / "report.md").write_text(report(rows))
    print(report(rows))


def measure(
    name: str, count: int, top_k: int, ways: Sequence[Way], model: str
) -> list[dict[str, Any]]:
    corpus, questions = read_set(name, count, top_k)
    kinds = [way.donors for way in ways if way.donors is not None]
    stored = store_behind(corpus, list(dict.fromkeys(kinds)))
    config = EngineConfig(
        model=model,
        device_cache=ByteSize(6 << 30),
        reuse="anywhere",
        recompute_ratio=0.0,
        missing_donors="compute",
        donors="neighbours",
        speculation="off",
        vllm_args={"dtype": "float32", "max_model_len": 8192},
    )
    rows = []
    with RAGCacheEngine(config) as engine:
        seconds = warm(engine, questions, stored.values())
        for number, question in enumerate(questions):
            order = [Way(None), *ways] if number % 2 else [*ways, Way(None)]
            answers = {way: ask(engine, question, way, stored) for way in order}
            exact = answers[Way(None)]
            for way, answer in answers.items():
                rows.append(
                    {
                        "set": name,
                        "question": number,
                        "way": way.label,
                        "warm_s": seconds,
                        **compare(answer, exact, question),
                    }
                )
            print(f"\r{name}: {number + 1} of {len(questions)} questions", end="", flush=True)
    print()
    return rows


def store_behind(corpus: Sequence[Document], kinds: Sequence[str]) -> dict[str, Neighbours]:
    """Return for each kind of donors what every document is stored behind."""
    nearest = find_nearest(corpus, max(DONORS[kind] for kind in kinds) or 1)

    def joined(found: Sequence[Document]) -> Document:
        if len(found) == 1:
            return found[0]
        farthest_first = found[::-1]
        return Document(
            "+".join(one.id for one in farthest_first),
            SEPARATOR.join(one.text for one in farthest_first),
        )

    return {
        kind: {
            name: joined(found[: DONORS[kind]]) for name, found in nearest.items() if DONORS[kind]
        }
        for kind in kinds
    }


def ask(
    engine: RAGCacheEngine, question: Question, way: Way, stored: dict[str, Neighbours]
) -> Answer:
    tell_neighbours(engine, question.documents, stored.get(way.donors or "", {}))
    return engine.generate(
        question.prompt,
        question.documents,
        OPTIONS,
        exact=way.donors is None,
        recompute_ratio=None if way.donors is None else way.ratio,
    )


def warm(
    engine: RAGCacheEngine, questions: Sequence[Question], stored: Iterable[Neighbours]
) -> float:
    """Prefill every document of the questions, alone and as it is stored; return the seconds."""
    documents = {one.id: one for question in questions for one in question.documents}
    started = time.perf_counter()
    for known in ({}, *filter(None, stored)):
        tell_neighbours(engine, list(documents.values()), known)
        names = list(documents)
        for start in range(0, len(names), DOCUMENTS_AT_ONCE):
            batch = [documents[name] for name in names[start : start + DOCUMENTS_AT_ONCE]]
            # The first document of a prompt is exact, and no donor behind a neighbour: it comes twice.
            batch = [batch[0], *batch] if len(batch) > 1 else batch * 2
            engine.generate(Question("?", [], batch).prompt, batch, SamplingOptions(max_tokens=1))
    return time.perf_counter() - started


def compare(answer: Answer, exact: Answer, question: Question) -> dict[str, Any]:
    usage = answer.usage
    return {
        "ttft_s": usage.ttft_s,
        "prompt_tokens": usage.prompt_tokens,
        "cached": usage.cached.total,
        "borrowed": usage.borrowed.total,
        "rouge_l": 1.0 if answer.text == exact.text else rouge_l(answer.text, exact.text),
        "equal": answer.token_ids == exact.token_ids,
        "contained": any(contained(answer.text, gold) for gold in question.answers),
        "can_answer": any(contained(exact.text, gold) for gold in question.answers),
        "text": answer.text,
    }


# -- the report ----------------------------------------------------------------------------------------


def report(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| set | donors, ratio | n | not computed | TTFT ms, median (quartiles) | exact/this TTFT "
        "| ROUGE-L | equal | contained, of those the model can answer |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (name, way), group in _grouped(rows):
        exact = [row["ttft_s"] for row in rows if (row["set"], row["way"]) == (name, "exact")]
        ttft = [row["ttft_s"] for row in group]
        low, middle, high = (1000 * value for value in statistics.quantiles(ttft, n=4))
        reused = sum(row["cached"] + row["borrowed"] for row in group)
        able = [row["contained"] for row in group if row["can_answer"]]
        rouge = [row["rouge_l"] for row in group]
        error = statistics.stdev(rouge) / math.sqrt(len(rouge))
        lines.append(
            f"| {name} | {way} | {len(group)} "
            f"| {reused / sum(row['prompt_tokens'] for row in group):.2f} "
            f"| {middle:.0f} ({low:.0f} to {high:.0f}) "
            f"| {statistics.median(a / b for a, b in zip(exact, ttft, strict=True)):.1f} "
            f"| {statistics.fmean(rouge):.3f} ± {error:.3f} "
            f"| {statistics.fmean(row['equal'] for row in group):.2f} "
            f"| {statistics.fmean(able) if able else math.nan:.2f} ({len(able)}) |"
        )
    return "\n".join(lines) + "\n"


def _grouped(
    rows: Sequence[dict[str, Any]],
) -> Iterator[tuple[tuple[str, str], list[dict[str, Any]]]]:
    keys = dict.fromkeys((row["set"], row["way"]) for row in rows)
    for key in sorted(keys, key=lambda one: (one[0], one[1] != "exact", one[1])):
        yield key, [row for row in rows if (row["set"], row["way"]) == key]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", default=["squad"])
    parser.add_argument("--questions", type=int, default=200, help="of each set")
    parser.add_argument("--top-k", type=int, default=5, help="documents of a question")
    parser.add_argument(
        "--donors", nargs="+", choices=DONORS, default=["alone", "neighbours"], help="which kinds"
    )
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.0, 0.1, 0.15, 0.3])
    parser.add_argument("--model", help="a folder or hub id (default: the demo's model)")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
