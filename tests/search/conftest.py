"""A little world of vectors, with duplicates in it, and every kind of index over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

faiss = pytest.importorskip("faiss")
np = pytest.importorskip("numpy")

DIMENSIONS = 24
VECTORS = 4_000


@pytest.fixture(scope="session")
def world() -> Any:
    """Vectors around 60 points; every tenth is there five times or so."""
    random = np.random.default_rng(5)
    centres = random.standard_normal((60, DIMENSIONS), dtype=np.float32)
    found = centres[random.integers(0, 60, VECTORS)]
    found += 0.5 * random.standard_normal(found.shape, dtype=np.float32)
    found[::10] = found[random.integers(0, 80, VECTORS // 10)]
    return found


@pytest.fixture(scope="session")
def questions(world: Any) -> Any:
    """1,000 queries; every fourth is one of the vectors, so it meets its duplicates."""
    random = np.random.default_rng(6)
    found = world[random.integers(0, VECTORS, 1_000)].copy()
    noise = 0.4 * random.standard_normal(found.shape, dtype=np.float32)
    noise[::4] = 0
    return found + noise


@pytest.fixture(scope="session")
def built(world: Any) -> Callable[..., Any]:
    """The world in the index a factory string names; ID maps name the vectors 7, 10, 13 and so on.

    Keywords are set on the inverted-file index inside before it is trained.
    """

    @cache
    def build(factory: str, metric: int = faiss.METRIC_L2, **settings: Any) -> Any:
        index = faiss.index_factory(DIMENSIONS, factory, metric)
        for name, value in settings.items():
            setattr(faiss.downcast_index(faiss.extract_index_ivf(index)), name, value)
        if factory.startswith("OPQ"):
            faiss.downcast_VectorTransform(index.chain.at(0)).niter = 3
        index.train(world[::2])
        if factory.startswith("IDMap"):
            shuffled = np.random.default_rng(8).permutation(VECTORS).astype(np.int64)
            index.add_with_ids(world, 7 + 3 * shuffled)
        else:
            index.add(world)
        return index

    return build


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Faiss with one thread unless a test asks for two: on a busy machine threads wait for each other."""
    faiss.omp_set_num_threads(1)


@pytest.fixture
def two_threads(one_thread: None) -> Iterator[None]:
    faiss.omp_set_num_threads(2)
    yield
    faiss.omp_set_num_threads(1)
