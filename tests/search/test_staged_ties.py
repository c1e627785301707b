"""Small worlds full of equal distances, where the order in which Faiss meets them decides."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import faiss
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine.search import stages
from ragcache_engine.search.nearest import Nearest

L2, IP = faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT
KINDS = ("ivf-flat", "ivf-sq", "ivf-pq", "flat", "id-map", "hnsw")


def index_over(kind: str, vectors: Any, lists: int, metric: int) -> Any:
    d = vectors.shape[1]
    flat = faiss.IndexFlat(d, metric)
    if kind == "flat":
        index = flat
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(d, 4, metric)
    else:
        # Centres without training, so that any number of vectors will do.
        flat.add(np.random.default_rng(lists).integers(-2, 3, (lists, d)).astype(np.float32))
        if kind == "ivf-sq":
            index = faiss.IndexIVFScalarQuantizer(
                flat, d, lists, faiss.ScalarQuantizer.QT_4bit, metric
            )
        elif kind == "ivf-pq":
            index = faiss.IndexIVFPQ(flat, d, lists, 2, 2, metric)
        else:
            index = faiss.IndexIVFFlat(flat, d, lists, metric)
        if kind == "id-map":
            index = faiss.IndexIDMap(index)
    index.verbose = False
    index.train(np.tile(vectors, (8, 1)))
    if kind == "id-map":
        index.add_with_ids(vectors, np.arange(len(vectors))[::-1] * 5)
    else:
        index.add(vectors)
    return index


@given(
    kind=st.sampled_from(KINDS),
    metric=st.sampled_from([L2, IP]),
    number=st.integers(1, 90),
    lists=st.integers(1, 12),
    different=st.integers(1, 30),
    k=st.integers(1, 120),
    count=st.integers(1, 12),
    queries=st.integers(1, 4),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=examples(100))
def test_the_last_stage_is_faiss_down_to_the_ties(
    kind, metric, number, lists, different, k, count, queries, seed
):
    random = np.random.default_rng(seed)
    points = random.integers(-1, 2, (different, 4)).astype(np.float32)
    index = index_over(kind, points[random.integers(0, different, number)], lists, metric)
    if "ivf" in kind or kind == "id-map":
        faiss.extract_index_ivf(index).nprobe = int(random.integers(1, lists + 2))
    elif kind == "hnsw":
        index.hnsw.efSearch = int(random.integers(1, 800))
    batch = random.integers(-1, 2, (queries, 4)).astype(np.float32)
    distances, ids = index.search(batch, k)
    every = list(stages(index, batch, k, count))
    assert len(every) <= count
    assert [stage.final for stage in every] == [False] * (len(every) - 1) + [True]
    assert every[-1].ids.tobytes() == ids.tobytes()
    assert every[-1].distances.tobytes() == distances.tobytes()
    names = {-1, *(np.arange(number) * (5 if kind == "id-map" else 1)).tolist()}
    done = [stage.fraction_done for stage in every]
    assert done == sorted(set(done))
    assert done[-1] == 1.0
    for stage in every:
        assert stage.ids.shape == stage.distances.shape == (queries, k)
        assert set(stage.ids.ravel().tolist()) <= names


def heap_of_faiss(found: list[tuple[float, int]], k: int, sign: int) -> list[tuple[float, int]]:
    """What Faiss's heap keeps of distances that arrive in this order, written down plainly."""
    kept: list[tuple[float, int]] = []
    for distance, name in found:
        place = (sign * distance, sign * name)
        if len(kept) < k:
            kept = sorted([*kept, place])
        elif place[0] < kept[-1][0]:
            kept = sorted([*kept, place])[:k]
    empty = float(np.finfo(np.float32).max)
    return kept + [(empty, -sign)] * (k - len(kept))


def as_faiss_writes(kept: list[tuple[float, int]], sign: int) -> tuple[Any, Any]:
    distances = np.array([[sign * place for place, _ in kept]], dtype=np.float32)
    return distances, np.array([[sign * name for _, name in kept]], dtype=np.int64)


@given(
    parts=st.lists(st.lists(st.integers(0, 4), max_size=12), min_size=1, max_size=7),
    k=st.integers(1, 8),
    sign=st.sampled_from([1, -1]),
    seed=st.integers(0, 1_000),
)
@settings(max_examples=examples(120))
def test_merged_parts_are_one_heap(parts, k, sign, seed):
    arriving = [float(value) for part in parts for value in part]
    names = np.random.default_rng(seed).permutation(len(arriving)).tolist()
    ends = np.cumsum([len(part) for part in parts]).tolist()
    found = list(zip(arriving, names, strict=True))

    def searched(start: int, end: int) -> tuple[Any, Any]:
        return as_faiss_writes(heap_of_faiss(found[start:end], k, sign), sign)

    nearest = Nearest(*searched(0, ends[0]), ends[0], larger_is_nearer=sign < 0)
    for start, end in pairwise(ends):
        nearest.merge(*searched(start, end), end)
    if again := nearest.end_of_ties():
        nearest.settle_ties(*searched(0, again))
    ids, distances = nearest.arrays()
    wanted_distances, wanted_ids = searched(0, len(found))
    assert ids.tolist() == wanted_ids.tolist()
    assert distances.tolist() == wanted_distances.tolist()


def test_only_a_tie_that_parts_cannot_decide_is_searched_again():
    def nearest(first: list[float], second: list[float]) -> Nearest:
        merged = Nearest(
            np.array([first], dtype=np.float32),
            np.array([[1, 2]]),
            10,
            larger_is_nearer=False,
        )
        merged.merge(np.array([second], dtype=np.float32), np.array([[3, 4]]), 20)
        return merged

    assert nearest([1, 2], [2, 2]).end_of_ties() == 0  # Full with the equal one: none enters.
    assert nearest([1, 2], [1, 1.5]).end_of_ties() == 0  # Equals, but room for both.
    assert nearest([1, 2], [0, 1]).end_of_ties() == 20  # One of two equals leaves: which?
