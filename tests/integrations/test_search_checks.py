from types import SimpleNamespace

import pytest

from ragcache_engine import IndexOutOfStep, InvalidTopK, QueryShapeError
from ragcache_integrations.search_checks import (
    check_same_count,
    check_top_k,
    check_vector_size,
    is_faiss_index,
)

INDEX = SimpleNamespace(ntotal=2, d=3, search=None)


def test_a_faiss_index_is_known_by_its_face():
    assert is_faiss_index(INDEX)
    assert not is_faiss_index(object())
    assert not is_faiss_index(None)


def test_what_can_be_searched_passes_every_check():
    check_top_k(1)
    check_same_count(2, 2)
    check_vector_size(3, INDEX)


@pytest.mark.parametrize(
    ("check", "error", "advice"),
    [
        (lambda: check_top_k(0), InvalidTopK, "raise it to 1"),
        (lambda: check_top_k("3"), InvalidTopK, r"such as 4, got '3' \(str\)"),
        (lambda: check_top_k(None), InvalidTopK, "such as 4, got None"),
        (lambda: check_same_count(2, 3), IndexOutOfStep, "load both from one save"),
        (lambda: check_vector_size(4, INDEX), QueryShapeError, "4 dimensions, the index 3; embed"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_what_to_change(check, error, advice):
    with pytest.raises(error, match=advice):
        check()
