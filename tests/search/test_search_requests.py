"""What is refused before any work, and what is accepted as it is."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

from ragcache_engine.errors import EmptyIndex, InvalidTopK, QueryShapeError, UnsupportedStore
from ragcache_engine.search import astages, stages
from ragcache_engine.search.query import as_rows


@pytest.fixture
def index(built):
    return built("IVF48,Flat")


@pytest.mark.parametrize("search", [stages, astages])
@pytest.mark.parametrize("k", [0, -3])
def test_fewer_than_one_document_is_refused_by_the_call_itself(index, questions, search, k):
    with pytest.raises(InvalidTopK, match="raise it to 1"):
        search(index, questions[0], k)


@pytest.mark.parametrize("search", [stages, astages])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (np.zeros(23, dtype=np.float32), "23 dimensions, the index 24"),
        (np.zeros((2, 25), dtype=np.float32), "25 dimensions, the index 24"),
        (np.zeros((1, 2, 24), dtype=np.float32), "shape"),
        (np.float32(1), "shape"),
        (["a"] * 24, "not made of real numbers"),
        (np.zeros(24, dtype=complex), "not made of real numbers"),
        ([[0.0] * 24, [0.0] * 23], "no array of numbers"),
        (np.full(24, np.nan, dtype=np.float32), "NaN"),
        (np.full(24, np.inf), "infinity"),
        (None, "not made of real numbers"),
    ],
)
def test_a_query_of_another_shape_or_kind_is_refused(index, search, wrong, said):
    with pytest.raises(QueryShapeError, match=said):
        search(index, wrong, 3)


def test_an_empty_index_is_refused():
    with pytest.raises(EmptyIndex, match="add documents"):
        stages(faiss.IndexFlatL2(24), np.zeros(24), 3)


@pytest.mark.parametrize("wrong", [None, "index", faiss.IndexBinaryFlat(24)])
def test_what_is_no_index_of_float_vectors_is_refused(wrong):
    with pytest.raises(UnsupportedStore, match=r"faiss\.Index"):
        stages(wrong, np.zeros(24), 3)


@pytest.mark.parametrize(
    ("count", "slice_s"), [(0, None), (-1, None), (8, -0.1), (8, float("nan"))]
)
def test_counts_and_slices_that_make_no_sense_are_refused(index, questions, count, slice_s):
    with pytest.raises(ValueError, match=r"count|slice_s"):
        stages(index, questions[0], 3, count, slice_s=slice_s)


def test_parameters_of_another_family_are_faiss_own_error(index, questions):
    with pytest.raises(RuntimeError, match="incorrect type"):
        list(stages(index, questions[0], 3, params=faiss.SearchParametersHNSW()))


def test_probing_no_list_is_faiss_own_error(index, questions):
    with pytest.raises(RuntimeError, match="nprobe"):
        list(stages(index, questions[0], 3, params=faiss.SearchParametersIVF(nprobe=0)))


def test_contiguous_float32_is_passed_on_without_a_copy():
    for query in (np.ones(24, dtype=np.float32), np.ones((3, 24), dtype=np.float32)):
        rows, _ = as_rows(query, 24)
        assert np.shares_memory(rows, query)


@pytest.mark.parametrize("convert", [np.float64, np.float16, list, np.int8])
def test_other_numbers_are_converted(index, questions, convert):
    query = np.round(questions[0])
    given = convert(query) if convert is list else query.astype(convert)
    wanted, ids = index.search(query[None], 3)
    *_, last = stages(index, given, 3)
    assert last.ids.tolist() == ids[0].tolist()
    assert last.distances.tolist() == wanted[0].tolist()


def test_every_other_row_of_an_array_is_a_batch_too(index, questions):
    *_, last = stages(index, questions[:20:2], 3)
    assert last.ids.tolist() == index.search(questions[:20:2], 3)[1].tolist()


@pytest.mark.parametrize("factory", ["IVF48,Flat", "Flat", "HNSW16,Flat", "LSH"])
def test_a_batch_of_none_is_answered_with_none(built, questions, factory):
    (only,) = stages(built(factory), questions[:0], 3)
    assert only.final
    assert only.ids.shape == only.distances.shape == (0, 3)
