"""Compare which documents the eviction policies keep.

Replays real retrievals through a knowledge tree that counts in tokens: in their order, drawn again with
Zipf weights, and drawn with weights that change every 1,000 requests. It replays each stream with the
two and the five nearest documents, and with room for 5, 20 and 100% of all document tokens. Writes
eviction.md and eviction.json: the token hits and the saved prefill seconds (by the default cost
formula) of every policy, next to the upper bounds: the oracle's, and those of reuse at any position.

    python benchmarks/eviction.py --out /tmp/eviction
    python benchmarks/eviction.py --out /tmp/eviction --sets squad --policies lru pgdsf halflife

RAGCACHE_DATA names the folder of the question sets; tokens are estimated as words x 1.3.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from peers import PEERS
from rich.progress import track

from ragcache_engine.knowledge.eviction import DEFAULT_POLICY, POLICIES
from ragcache_engine.simulation.oracle import oracle, reuse_anywhere
from ragcache_engine.simulation.replay import default_cost, replay
from ragcache_engine.simulation.traces import Trace, draw_drifting, draw_zipf

DATA = Path(os.environ.get("RAGCACHE_DATA", Path(__file__).parents[2] / "shared" / "data"))
COMPARED = {**POLICIES, **PEERS}
SETS = ("squad", "multihoprag", "nq_open", "musique")
TOP_K = (2, 5)
STREAMS = ("natural", "zipf", "drift")
SHARES = (0.05, 0.2, 1.0)
REQUESTS = 6_000
SEED = 1
WORDS_TO_TOKENS = 1.3
CLOSE = 0.01


@dataclass(frozen=True, slots=True)
class Row:
    """The results in one setting, by policy. hits: the share of tokens. saved_s: seconds of prefill."""

    questions: str
    top_k: int
    stream: str
    capacity_share: float
    oracle_hits: float
    oracle_saved_s: float
    anywhere_hits: float
    anywhere_hits_unbounded: float
    hits: dict[str, float]
    saved_s: dict[str, float]

    @property
    def best_other(self) -> str:
        """The best policy other than the default."""
        others = {name: hits for name, hits in self.hits.items() if name != DEFAULT_POLICY}
        return max(others, key=others.__getitem__)

    @property
    def shortfall(self) -> float:
        """Hits of the best other policy less those of the default; negative if the default is ahead."""
        return self.hits[self.best_other] - self.hits[DEFAULT_POLICY]


def read(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def questions(name: str, data: Path) -> Trace:
    tokens = {
        row["doc_id"]: max(1, round(WORDS_TO_TOKENS * len(f"{row['title']} {row['text']}".split())))
        for row in read(data / name / "corpus.jsonl.gz")
    }
    found = read(data / name / "retrieval_topk.jsonl.gz")
    return Trace(tuple(tuple(row["doc_ids"]) for row in found), tokens)


def stream(trace: Trace, kind: str) -> Trace:
    if kind == "zipf":
        return draw_zipf(trace, REQUESTS, SEED)
    return draw_drifting(trace, REQUESTS, SEED) if kind == "drift" else trace


def measure(
    name: str, asked: Trace, top_k: int, kind: str, share: float, policies: Sequence[str]
) -> Row:
    trace = stream(asked.top(top_k), kind)
    capacity = int(share * sum(trace.tokens.values()))
    totals = [sum(trace.tokens[document] for document in request) for request in trace.requests]
    total = sum(totals)
    best = oracle(trace, capacity)
    replays = {policy: replay(trace, capacity, COMPARED[policy]) for policy in policies}
    return Row(
        name,
        top_k,
        kind,
        share,
        best.tokens / total,
        sum(
            default_cost(0, asked_for) - default_cost(cached, asked_for - cached)
            for asked_for, cached in zip(totals, best.cached, strict=True)
        ),
        reuse_anywhere(trace, capacity) / total,
        reuse_anywhere(trace) / total,
        {policy: result.token_hit_rate for policy, result in replays.items()},
        {policy: result.saved_s for policy, result in replays.items()},
    )


def table(rows: Sequence[Row], policies: Sequence[str], what: str) -> Iterator[str]:
    """Write a Markdown table with the best policy of each row in bold."""
    digits = 3 if what == "hits" else 0
    heads = ["set", "top", "stream", "room", *policies, "oracle"]
    heads += ["anywhere, same room", "anywhere, no bound"] if what == "hits" else []
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        values = row.hits if what == "hits" else row.saved_s
        limit = row.oracle_hits if what == "hits" else row.oracle_saved_s
        best = max(values.values())
        cells = [row.questions, str(row.top_k), row.stream, f"{row.capacity_share:.0%}"]
        cells += [
            f"**{values[policy]:.{digits}f}**"
            if values[policy] == best
            else f"{values[policy]:.{digits}f}"
            for policy in policies
        ]
        cells.append(f"{limit:.{digits}f}")
        if what == "hits":
            cells += [f"{row.anywhere_hits:.3f}", f"{row.anywhere_hits_unbounded:.3f}"]
        yield "| " + " | ".join(cells) + " |"


def compare_default(rows: Sequence[Row]) -> Iterator[str]:
    """Compare the default policy with the best of the others and with the oracle."""
    worst = max(rows, key=lambda row: row.shortfall)
    yield (
        f"`{DEFAULT_POLICY}` is within {CLOSE:.0%} of the best other policy or ahead in "
        f"{sum(row.shortfall <= CLOSE for row in rows)} of {len(rows)} settings; furthest behind, by "
        f"{worst.shortfall:+.3f} ({worst.best_other}), on {worst.questions}, top {worst.top_k}, "
        f"{worst.stream}, {worst.capacity_share:.0%}."
    )
    for kind in STREAMS:
        of_kind = [row for row in rows if row.stream == kind and row.oracle_hits]
        if of_kind:
            least = min(of_kind, key=lambda row: row.hits[DEFAULT_POLICY] / row.oracle_hits)
            yield (
                f"{kind}: at least {least.hits[DEFAULT_POLICY] / least.oracle_hits:.3f} of the "
                f"oracle's hits (least on {least.questions}, top {least.top_k}, "
                f"{least.capacity_share:.0%})."
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--policies", nargs="+", choices=COMPARED, default=list(COMPARED))
    asked = parser.parse_args(arguments)

    sets = {name: questions(name, asked.data) for name in asked.sets}
    settings = list(product(sets, TOP_K, STREAMS, SHARES))
    rows = [
        measure(name, sets[name], top_k, kind, share, asked.policies)
        for name, top_k, kind, share in track(settings, "replaying")
    ]
    lines = ["# Eviction policies", "", "## Token hits, share of all document tokens", ""]
    lines += [*table(rows, asked.policies, "hits"), "", "## Saved prefill seconds", ""]
    lines += [*table(rows, asked.policies, "saved_s"), ""]
    if DEFAULT_POLICY in asked.policies and len(asked.policies) > 1:
        said = list(compare_default(rows))
        lines += ["## The default", "", *(f"- {line}" for line in said), ""]
        print(*said, sep="\n")
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "eviction.md").write_text("\n".join(lines), encoding="utf-8")
    (asked.out / "eviction.json").write_text(
        json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
