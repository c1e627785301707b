"""Compare which documents the eviction policies keep.

Replays real retrievals through a knowledge tree that counts in tokens: in their order, drawn again with
Zipf weights, and drawn with weights that change every 1,000 requests. It replays each stream with the
two and the five nearest documents, and with room for 5, 20 and 100% of all document tokens. Prints the
share of tokens that each policy hits, next to the upper bounds: the oracle's, and that of reuse at any
position.

    python benchmarks/eviction.py                 # means over all sets
    python benchmarks/eviction.py --each --sets squad --policies lru pgdsf halflife

RAGCACHE_DATA names the folder of the question sets; tokens are estimated as words x 1.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from peers import PEERS
from programs import command_line
from question_files import CORPUS, DATA, RETRIEVED, SETS, read_lines
from rich.progress import track
from tables import table

from ragcache_engine.knowledge.eviction import DEFAULT_POLICY, POLICIES
from ragcache_engine.simulation.oracle import oracle, reuse_anywhere
from ragcache_engine.simulation.replay import replay
from ragcache_engine.simulation.traces import Trace, draw_drifting, draw_zipf

COMPARED = {**POLICIES, **PEERS}
TOP_K = (2, 5)
STREAMS = ("natural", "zipf", "drift")
SHARES = (0.05, 0.2, 1.0)
REQUESTS = 6_000
SEED = 1
WORDS_TO_TOKENS = 1.3
CLOSE = 0.01


@dataclass(frozen=True, slots=True)
class Row:
    """The shares of tokens that were hit in one setting. hits: by policy."""

    questions: str
    top_k: int
    stream: str
    capacity_share: float
    oracle_hits: float
    anywhere_hits: float
    hits: dict[str, float]

    @property
    def best_other(self) -> str:
        """The best policy other than the default."""
        others = {name: hits for name, hits in self.hits.items() if name != DEFAULT_POLICY}
        return max(others, key=others.__getitem__)

    @property
    def shortfall(self) -> float:
        """Hits of the best other policy less those of the default; negative if the default is ahead."""
        return self.hits[self.best_other] - self.hits[DEFAULT_POLICY]


def questions(name: str) -> Trace:
    tokens = {
        row["doc_id"]: max(1, round(WORDS_TO_TOKENS * len(f"{row['title']} {row['text']}".split())))
        for row in read_lines(DATA / name / CORPUS)
    }
    found = read_lines(DATA / name / RETRIEVED)
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
    total = sum(trace.tokens[document] for request in trace.requests for document in request)
    return Row(
        name,
        top_k,
        kind,
        share,
        oracle(trace, capacity).tokens / total,
        reuse_anywhere(trace, capacity) / total,
        {policy: replay(trace, capacity, COMPARED[policy]).token_hit_rate for policy in policies},
    )


def means(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield a row for each stream and room: the means over sets and numbers of documents."""
    groups: dict[tuple[str, float], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.stream, row.capacity_share].append(row)
    for (kind, share), some in groups.items():
        yield Row(
            "all",
            0,
            kind,
            share,
            fmean(row.oracle_hits for row in some),
            fmean(row.anywhere_hits for row in some),
            {policy: fmean(row.hits[policy] for row in some) for policy in some[0].hits},
        )


def cells_of(rows: Sequence[Row], policies: Sequence[str]) -> Iterator[list[str]]:
    """Yield a row of cells for each row, with the best policy in bold."""
    for row in rows:
        shown = {policy: f"{row.hits[policy]:.3f}" for policy in policies}
        best = max(shown.values())
        cells = [row.questions, str(row.top_k or "both"), row.stream, f"{row.capacity_share:.0%}"]
        cells += [f"**{hits}**" if hits == best else hits for hits in shown.values()]
        cells += [f"{row.oracle_hits:.3f}", f"{row.anywhere_hits:.3f}"]
        yield cells


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
    parser = command_line(__doc__)
    parser.add_argument(
        "--each", action="store_true", help="every setting, not means over the sets"
    )
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--policies", nargs="+", choices=COMPARED, default=list(COMPARED))
    asked = parser.parse_args(arguments)

    sets = {name: questions(name) for name in asked.sets}
    settings = list(product(sets, TOP_K, STREAMS, SHARES))
    rows = [
        measure(name, sets[name], top_k, kind, share, asked.policies)
        for name, top_k, kind, share in track(settings, "replaying")
    ]
    heads = ["set", "top", "stream", "room", *asked.policies, "oracle", "at any position"]
    shown = rows if asked.each else list(means(rows))
    print(*table(heads, cells_of(shown, asked.policies)), sep="\n")
    if DEFAULT_POLICY in asked.policies and len(asked.policies) > 1:
        print(*compare_default(rows), sep="\n")


if __name__ == "__main__":
    main()
