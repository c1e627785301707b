"""Measure how much longer a search in stages takes than one search in one go.

Searches the same queries with `index.search` and in stages, one after the other and in alternating
order, on 200,000 made-up vectors of 384 dimensions (points around 2,000 centres, unit length) in IVF,
flat and HNSW indexes. The cost of a query is staged time / plain time - 1, by the clock and by the
processor time of the searching thread, which a busy machine disturbs less. Writes staged_search.md and
staged_search.json: medians and quartiles of the costs, with one Faiss thread and with its default, and
how many final stages equalled `index.search` bit for bit.

    python benchmarks/staged_search.py --out /tmp/staged
    python benchmarks/staged_search.py --out /tmp/staged --vectors 20000 --families ivf-flat hnsw
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from ragcache_engine.search import stages

DIMENSIONS = 384
CENTRES = 2_000
SPREAD = 1.0
LISTS = 1_024
K = 5
COUNT = 8
SEED = 1
GOAL = 0.08

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to search one index. effort: nprobe or efSearch; 0 if the index has neither."""

    family: str
    effort: int
    queries: int
    slice_s: float = 0.0

    @property
    def params(self) -> Any:
        if self.family.startswith("ivf"):
            return faiss.SearchParametersIVF(nprobe=self.effort)
        return faiss.SearchParametersHNSW(efSearch=self.effort) if self.family == "hnsw" else None


SETTINGS = (
    *(Setting("ivf-flat", nprobe, 200) for nprobe in (16, 128, 1024)),
    *(Setting("ivf-sq8", nprobe, 200) for nprobe in (128,)),
    *(Setting("ivf-pq48", nprobe, 200) for nprobe in (128, 1024)),
    *(Setting("ivf-flat", nprobe, 200, slice_s=0.002) for nprobe in (16, 128, 1024)),
    Setting("flat", 0, 100),
    *(Setting("hnsw", ef_search, 200) for ef_search in (64, 256, 1024)),
)
FAMILIES = tuple(dict.fromkeys(setting.family for setting in SETTINGS))


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one setting with one number of threads. Costs: quartiles of staged / plain - 1."""

    family: str
    effort: int
    slice_ms: float
    threads: int
    queries: int
    plain_ms: float
    stages: float
    clock_cost: tuple[float, float, float]
    processor_cost: tuple[float, float, float]
    bit_equal: int


def vectors(number: int, seed: int) -> Vectors:
    random = np.random.default_rng(SEED)
    centres = random.standard_normal((CENTRES, DIMENSIONS), dtype=np.float32)
    random = np.random.default_rng(seed)
    found = centres[random.integers(0, CENTRES, number)]
    found += SPREAD * random.standard_normal(found.shape, dtype=np.float32)
    faiss.normalize_L2(found)
    return found


def built(family: str, data: Vectors) -> Any:
    if family == "flat":
        index = faiss.IndexFlatL2(DIMENSIONS)
    elif family == "hnsw":
        index = faiss.IndexHNSWFlat(DIMENSIONS, 32)
    else:
        quantizer = faiss.IndexFlatL2(DIMENSIONS)
        eight_bit = faiss.ScalarQuantizer.QT_8bit
        index = {
            "ivf-flat": lambda: faiss.IndexIVFFlat(quantizer, DIMENSIONS, LISTS),
            "ivf-sq8": lambda: faiss.IndexIVFScalarQuantizer(
                quantizer, DIMENSIONS, LISTS, eight_bit
            ),
            "ivf-pq48": lambda: faiss.IndexIVFPQ(quantizer, DIMENSIONS, LISTS, 48, 8),
        }[family]()
        index.train(data[: 40 * LISTS])
    index.add(data)
    return index


def time_search(search: Callable[[], Any]) -> tuple[float, float, Any]:
    """Time a search. Returns seconds by the clock, processor seconds of this thread, and the result."""
    began, began_thread = time.perf_counter(), time.thread_time()
    found = search()
    return time.perf_counter() - began, time.thread_time() - began_thread, found


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, middle, high


def measure(index: Any, setting: Setting, queries: Vectors, threads: int) -> Row:
    faiss.omp_set_num_threads(threads)
    plain_s, clock, processor, counts, equal = [], [], [], [], 0
    asked = setting.params
    for at, query in enumerate(queries[: setting.queries]):

        def plain(query: Vectors = query) -> Any:
            return index.search(query[None], K, params=asked)

        def staged(query: Vectors = query) -> Any:
            return list(stages(index, query, K, COUNT, params=asked, slice_s=setting.slice_s))

        plain()  # First, so that neither of the two has to fetch this query's vectors from memory.
        if at == 0:
            staged()
        if at % 2:
            (one_s, one_thread_s, one), (all_s, all_thread_s, every) = (
                time_search(plain),
                time_search(staged),
            )
        else:
            (all_s, all_thread_s, every), (one_s, one_thread_s, one) = (
                time_search(staged),
                time_search(plain),
            )
        plain_s.append(one_s)
        clock.append(all_s / one_s - 1)
        processor.append(all_thread_s / one_thread_s - 1)
        counts.append(len(every))
        same_ids = np.array_equal(every[-1].ids, one[1][0])
        equal += same_ids and every[-1].distances.tobytes() == one[0].tobytes()
    return Row(
        setting.family,
        setting.effort,
        1e3 * setting.slice_s,
        threads,
        len(counts),
        float(np.median(plain_s)) * 1e3,
        float(np.mean(counts)),
        quartiles(clock),
        quartiles(processor),
        equal,
    )


def table(rows: Sequence[Row]) -> Iterator[str]:
    heads = ["index", "nprobe / efSearch", "slice, ms", "threads", "one search, ms", "stages"]
    yield "| " + " | ".join([*heads, "cost by the clock", "by processor time", "equal"]) + " |"
    yield "|" + "---|" * 9
    for row in rows:
        costs = [
            f"{middle:+.1%} ({low:+.1%} to {high:+.1%})"
            for low, middle, high in (row.clock_cost, row.processor_cost)
        ]
        yield (
            f"| {row.family} | {row.effort or ''} | {row.slice_ms or 'none'} | {row.threads} | "
            f"{row.plain_ms:.2f} | {row.stages:.1f} | {costs[0]} | {costs[1]} | "
            f"{row.bit_equal} of {row.queries} |"
        )


def load() -> str:
    return "load average {:.1f}, {:.1f}, {:.1f}".format(*os.getloadavg())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    asked = parser.parse_args(arguments)

    default_threads = faiss.omp_get_max_threads()
    before = load()
    data = vectors(asked.vectors, SEED + 1)
    queries = vectors(max(setting.queries for setting in SETTINGS), SEED + 2)
    rows = []
    for family in track(asked.families, "searching"):
        faiss.omp_set_num_threads(default_threads)
        index = built(family, data)
        rows += [
            measure(index, setting, queries, threads)
            for setting in SETTINGS
            if setting.family == family
            for threads in sorted({1, default_threads})
        ]
        del index
    ivf = [row for row in rows if row.family.startswith("ivf")]
    lines = [f"# Stages against one search: {asked.vectors:,} vectors of {DIMENSIONS}, k = {K}", ""]
    lines += [*table(rows), ""]
    if ivf:
        held = sum(row.processor_cost[1] <= GOAL for row in ivf)
        lines += [f"IVF within {GOAL:.0%} of processor time: {held} of {len(ivf)} settings.", ""]
    lines += [f"Machine: {before} at the start, {load()} at the end (this run included).", ""]
    print(*lines, sep="\n")
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "staged_search.md").write_text("\n".join(lines), encoding="utf-8")
    (asked.out / "staged_search.json").write_text(
        json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
