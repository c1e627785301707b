"""The last stage is `index.search`, ids and distances, to the bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest

from ragcache_engine.search import stages

L2, IP = faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT

IVF: list[tuple[str, int, dict[str, Any]]] = [
    ("IVF48,Flat", L2, {}),
    ("IVF48,Flat", IP, {}),
    ("IVF48,Flat", L2, {"parallel_mode": 3}),
    ("IVF48_HNSW16,Flat", L2, {}),
    ("IVF48,SQ8", L2, {}),
    ("IVF48,SQ4", IP, {}),
    ("IVF48,SQfp16", L2, {}),
    ("IVF48,PQ6x4", L2, {}),
    ("IVF48,PQ6x4", L2, {"use_precomputed_table": -1}),
    ("IVF48,PQ6x4", L2, {"by_residual": False}),
    ("IVF48,PQ6x4", IP, {}),
    ("OPQ6_24,IVF48,PQ6x4", L2, {}),
    ("PCA12,IVF48,Flat", L2, {}),
    ("IDMap,IVF48,Flat", L2, {}),
    ("IDMap2,PCA12,IVF48,SQ8", L2, {}),
]
FLAT = [("Flat", L2), ("Flat", IP), ("IDMap,Flat", L2), ("PCA12,Flat", L2)]
HNSW = [
    ("HNSW16,Flat", L2),
    ("HNSW16,Flat", IP),
    ("HNSW16,SQ8", L2),
    ("HNSW16,PQ6x4", L2),
    ("IDMap,HNSW16,Flat", L2),
]
OTHER = ["IVF48,PQ6x4fs", "IVF48,PQ6+6", "IVF48,FlatDedup", "PQ6x4", "SQ8", "LSH"]


def same(stage: Any, index: Any, query: Any, k: int, params: Any = None) -> bool:
    """Whether the stage is what index.search writes for this query or batch, bit for bit."""
    distances, ids = index.search(np.atleast_2d(query), k, params=params)
    if query.ndim == 1:
        distances, ids = distances[0], ids[0]
    return bool(
        stage.final
        and stage.ids.dtype == ids.dtype
        and stage.distances.dtype == distances.dtype
        and stage.ids.shape == ids.shape
        and stage.distances.shape == distances.shape
        and stage.ids.tobytes() == ids.tobytes()
        and stage.distances.tobytes() == distances.tobytes()
    )


def unequal(index: Any, questions: Any, settings: list[tuple[Any, int]]) -> list[int]:
    """The questions whose last stage differs, each asked with the next of (params, k) in turn."""
    wrong = []
    for at, question in enumerate(questions):
        params, k = settings[at % len(settings)]
        *_, last = stages(index, question, k, params=params)
        if not same(last, index, question, k, params):
            wrong.append(at)
    return wrong


@pytest.mark.parametrize(("factory", "metric", "settings"), IVF)
@pytest.mark.slow
def test_ivf_in_slices_ends_as_the_real_search(built, questions, factory, metric, settings):
    index = built(factory, metric, **settings)
    searches = [
        (faiss.SearchParametersIVF(nprobe=nprobe), k)
        for nprobe, k in [(1, 3), (5, 1), (12, 2), (12, 40), (31, 10), (48, 4), (48, 400), (900, 5)]
    ]
    assert unequal(index, questions, searches) == []


@pytest.mark.parametrize(("factory", "metric"), FLAT)
def test_flat_in_row_ranges_ends_as_the_real_search(built, questions, factory, metric):
    assert unequal(built(factory, metric), questions, [(None, k) for k in (1, 2, 5, 30, 99)]) == []


@pytest.mark.parametrize(("factory", "metric"), HNSW)
@pytest.mark.slow
def test_hnsw_after_previews_ends_as_the_real_search(built, questions, factory, metric):
    searches = [
        (faiss.SearchParametersHNSW(efSearch=ef_search), k)
        for ef_search, k in [(16, 2), (300, 1), (300, 8), (700, 5), (700, 60)]
    ]
    assert unequal(built(factory, metric), questions, searches) == []


@pytest.mark.parametrize("factory", OTHER)
def test_any_other_index_has_the_real_search_as_its_one_stage(built, questions, factory):
    index = built(factory)
    for question in questions[:20]:
        (only,) = stages(index, question, 5)
        assert same(only, index, question, 5)


@pytest.mark.parametrize(
    ("factory", "k"),
    [
        (factory, k)
        for factory in ("IVF48,Flat", "IVF48,PQ6x4", "Flat", "HNSW16,Flat")
        for k in (1, 9)
    ],
)
def test_a_batch_ends_as_the_real_search_of_the_batch(built, questions, factory, k, two_threads):
    index = built(factory)
    params = None
    if factory.startswith("IVF"):
        params = faiss.SearchParametersIVF(nprobe=20)
    elif factory.startswith("HNSW"):
        params = faiss.SearchParametersHNSW(efSearch=400)
    for queries in (1, 2, 7, 64, 1_000):
        batch = questions[:queries]
        *_, last = stages(index, batch, k, params=params)
        assert same(last, index, batch, k, params)


def test_a_batch_large_enough_for_matrix_products_is_cut_where_their_blocks_end(questions):
    index = faiss.IndexFlatL2(questions.shape[1] * 16)
    random = np.random.default_rng(9)
    index.add(random.standard_normal((5_000, index.d), dtype=np.float32))
    batch = random.standard_normal((400, index.d), dtype=np.float32)
    *before, last = stages(index, batch, 5)
    assert before
    assert same(last, index, batch, 5)


def test_without_params_the_settings_of_the_index_hold_and_stay(built, questions):
    index = faiss.clone_index(built("IVF48,SQ8"))
    index.nprobe = 17
    *before, last = stages(index, questions[0], 6)
    assert len(before) == 7
    assert same(last, index, questions[0], 6)
    assert index.nprobe == 17


@pytest.mark.parametrize("selector", ["range", "sorted range", "batch", "none fits"])
@pytest.mark.parametrize(
    "factory", ["IVF48,Flat", "IVF48,PQ6x4", "PCA12,IVF48,SQ8", "IDMap,IVF48,Flat"]
)
def test_a_selector_in_the_params_is_obeyed(built, questions, factory, selector):
    chosen = {
        "range": lambda: faiss.IDSelectorRange(1_000, 3_000),
        "sorted range": lambda: faiss.IDSelectorRange(1_000, 3_000, True),
        "batch": lambda: faiss.IDSelectorBatch(np.arange(7, 3_000, 9)),
        "none fits": lambda: faiss.IDSelectorRange(900_000, 900_001),
    }[selector]()
    index = built(factory)
    params = faiss.SearchParametersIVF(nprobe=24, sel=chosen)
    assert unequal(index, questions[:60], [(params, 1), (params, 7), (params, 2_000)]) == []


@pytest.mark.parametrize("factory", ["HNSW16,Flat", "Flat", "IDMap,HNSW16,Flat", "IDMap,Flat"])
def test_a_selector_is_obeyed_by_graph_and_flat_search(built, questions, factory):
    kind = faiss.SearchParametersHNSW if "HNSW" in factory else faiss.SearchParameters
    params = kind(sel=faiss.IDSelectorRange(500, 1_500))
    if "HNSW" in factory:
        params.efSearch = 300
    for stage in stages(built(factory), questions[3], 6, params=params):
        assert all(500 <= name < 1_500 for name in stage.ids)
    assert same(stage, built(factory), questions[3], 6, params)


@pytest.mark.parametrize("mode", [1, 2])
def test_with_threads_that_share_a_query_there_is_one_stage(built, questions, mode):
    index = built("IVF48,Flat", parallel_mode=mode)
    index.nprobe = 30
    (only,) = stages(index, questions[1], 5)
    assert same(only, index, questions[1], 5)


def test_a_budget_of_codes_is_kept_in_one_stage(built, questions):
    params = faiss.SearchParametersIVF(nprobe=40, max_codes=500)
    for question in questions[:50]:
        (only,) = stages(built("IVF48,Flat"), question, 5, params=params)
        assert same(only, built("IVF48,Flat"), question, 5, params)


def test_parameters_of_product_quantizers_reach_every_slice(built, questions):
    index = faiss.IndexIVFPQ(faiss.IndexFlatL2(24), 24, 16, 8, 8)
    random = np.random.default_rng(4)
    vectors = random.standard_normal((3_000, 24), dtype=np.float32)
    index.train(vectors)
    index.add(vectors)
    index.polysemous_ht = 28
    for params in (
        None,
        faiss.SearchParametersIVF(nprobe=12),
        faiss.IVFPQSearchParameters(nprobe=12, polysemous_ht=index.polysemous_ht),
        faiss.IVFPQSearchParameters(nprobe=12, polysemous_ht=0),
    ):
        assert unequal(index, questions[:100], [(params, 5), (params, 50)]) == []


def test_parameters_of_a_pre_transform_lose_nothing(built, questions):
    index = built("PCA12,IVF48,Flat")
    params = faiss.SearchParametersPreTransform(index_params=faiss.SearchParametersIVF(nprobe=20))
    *_, last = stages(index, questions[2], 5, params=params)
    assert same(last, index, questions[2], 5, params)


@pytest.mark.slow
def test_a_flat_quantizer_whose_rows_faiss_deals_to_threads(questions, two_threads):
    random = np.random.default_rng(3)
    quantizer = faiss.IndexFlatL2(24)
    quantizer.add(random.standard_normal((12_000, 24), dtype=np.float32))
    index = faiss.IndexIVFFlat(quantizer, 24, 12_000)
    index.add(random.standard_normal((20_000, 24), dtype=np.float32))
    index.nprobe = 100
    assert unequal(index, questions[:50], [(None, 5)]) == []
    for batch in (questions[:2], questions[:3], questions[:40]):
        *_, last = stages(index, batch, 5)
        assert same(last, index, batch, 5)


@pytest.mark.parametrize("rows", [9_000, 30_000])
def test_a_flat_index_under_several_threads(questions, rows, two_threads):
    index = faiss.IndexFlatL2(24)
    index.add(np.random.default_rng(2).standard_normal((rows, 24), dtype=np.float32))
    assert unequal(index, questions[:50], [(None, 1), (None, 5), (None, 150)]) == []


@pytest.mark.slow
def test_searches_with_different_settings_at_once_do_not_meet(built, questions):
    index = built("OPQ6_24,IVF48,PQ6x4")
    settings = [(nprobe, k) for nprobe in (2, 9, 30, 48) for k in (1, 6)]

    def ask(at: int) -> list[int]:
        faiss.omp_set_num_threads(1)  # Of this thread alone.
        nprobe, k = settings[at]
        return unequal(index, questions[:150], [(faiss.SearchParametersIVF(nprobe=nprobe), k)])

    with ThreadPoolExecutor(len(settings)) as threads:
        assert list(threads.map(ask, range(len(settings)))) == [[]] * len(settings)
    assert faiss.extract_index_ivf(index).nprobe == 1


def test_searches_that_share_one_set_of_parameters_do_not_change_it(built, questions):
    index = built("IVF48,Flat")
    params = faiss.SearchParametersIVF(nprobe=30, sel=faiss.IDSelectorRange(0, 3_500))

    def ask(part: int) -> list[int]:
        return unequal(index, questions[part::4][:100], [(params, 5)])

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == [[]] * 4
    assert params.nprobe == 30
