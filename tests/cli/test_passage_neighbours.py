"""Which passage of an index is the neighbour of another."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("faiss")

from ragcache_cli.index import Manifest, PassageIndex, build_ivf_index  # noqa: E402
from ragcache_cli.passage_neighbours import as_document, corpus_of  # noqa: E402
from ragcache_cli.passages import Passage  # noqa: E402
from ragcache_engine import Document  # noqa: E402


def index_of(*passages: tuple[str, str, float]) -> PassageIndex:
    """Make an index of passages: id, text, and the angle of its vector."""
    angles = np.array([angle for _, _, angle in passages], dtype=np.float32)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    made = tuple(Passage(name, "s", "t", text) for name, text, _ in passages)
    return PassageIndex(made, build_ivf_index(vectors), Manifest("e", ()))


def test_neighbours_are_the_nearest_other_passages():
    index = index_of(("a", "x", 0.0), ("b", "y", 0.3), ("c", "z", 1.5))
    a, b, c = map(as_document, index.passages)
    assert corpus_of(index).find([a, b, c]) == [[b, c], [a, c], [b, a]]


def test_a_passage_with_the_same_text_is_no_neighbour():
    index = index_of(("a", "x", 0.0), ("twin", "x", 0.0), ("c", "z", 1.5))
    a, _, c = map(as_document, index.passages)
    assert corpus_of(index).find([a]) == [[c]]


def test_what_the_index_does_not_know_has_none():
    assert corpus_of(index_of(("a", "x", 0.0))).find([Document("new", "n")]) == [[]]
    only = index_of(("a", "x", 0.0))
    assert corpus_of(only).find([as_document(only.passages[0])]) == [[]]
