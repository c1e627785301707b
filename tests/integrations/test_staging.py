"""Searches in stages over proxies for an index, without a framework."""

import faiss
import numpy as np
import pytest

import ragcache_engine.search
from ragcache_integrations import staging
from ragcache_integrations.stage_stream import stream_search
from ragcache_integrations.staging import (
    FixedResultIndex,
    preview_each_stage,
    search_in_stages,
)

QUERY = np.random.default_rng(2).standard_normal((1, 8), dtype=np.float32)


@pytest.fixture(autouse=True)
def every_stage(monkeypatch):
    monkeypatch.setattr(staging, "SLICE_S", 0.0)


@pytest.fixture
def index():
    vectors = np.random.default_rng(1).standard_normal((400, 8), dtype=np.float32)
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(8), 8, 16)
    index.train(vectors)
    index.add(vectors)
    index.nprobe = 16
    return index


def ids_in(index):
    return index.search(QUERY, 3)[1][0].tolist()


def test_a_staged_search_returns_what_the_index_returns(index):
    seen = []
    distances, ids = search_in_stages(index, QUERY, 3, seen.append)
    wanted = index.search(QUERY, 3)
    assert np.array_equal(distances, wanted[0])
    assert np.array_equal(ids, wanted[1])
    assert len(seen) == 7  # of eight stages, the last one is the answer
    ids[0, 0] = 5  # the arrays belong to the caller, as those of any search do
    fractions = [stage.fraction_done for stage in seen]
    assert fractions == sorted(fractions)


def test_stages_that_have_not_found_enough_are_not_told(index):
    seen = []
    found = search_in_stages(index, QUERY, 380, seen.append)
    assert np.array_equal(found[1], index.search(QUERY, 380)[1])
    assert len(seen) < 7
    assert all((stage.ids >= 0).all() for stage in seen)


def test_what_stages_refuse_is_asked_of_the_index_itself(index):
    query, seen = np.full((1, 8), np.nan, dtype=np.float32), []
    found = search_in_stages(index, query, 3, seen.append)
    assert np.array_equal(found[1], index.search(query, 3)[1])
    assert not seen


def test_stages_that_break_off_cost_no_answer(index, monkeypatch):
    def breaks(*args, stages_of=ragcache_engine.search.stages, **kwargs):
        yield next(stages_of(*args, **kwargs))
        raise IndexError("as over an ID map that is out of step")

    monkeypatch.setattr(ragcache_engine.search, "stages", breaks)
    seen = []
    found = search_in_stages(index, QUERY, 3, seen.append)
    assert np.array_equal(found[1], index.search(QUERY, 3)[1])
    assert len(seen) == 1


def test_an_index_of_another_make_is_searched_as_it_is():
    class Other:
        ntotal, d = 5, 8

        def search(self, query, k):
            return [[0.0] * k], [[7] * k]

    assert preview_each_stage(Other(), lambda index: index.search(QUERY, 2), print) == (
        [[0.0] * 2],
        [[7] * 2],
    )


def test_the_search_is_run_on_each_stage_and_told(index):
    told = []
    answer = preview_each_stage(index, ids_in, lambda ids, done: told.append((ids, done)))
    assert answer == ids_in(index)
    assert len(told) == 7
    assert told[-1][0] == answer
    assert all(len(ids) == 3 for ids, _ in told)


def test_a_stage_of_which_nothing_can_be_made_costs_no_answer(index):
    def fails(stand_in):
        if isinstance(stand_in, FixedResultIndex):
            raise KeyError("a document that is not there")
        return ids_in(stand_in)

    told = []
    assert preview_each_stage(index, fails, lambda *stage: told.append(stage)) == ids_in(index)
    assert not told


def test_a_listener_that_fails_costs_no_answer(index):
    def fails(ids, fraction_done):
        raise ValueError("no")

    assert preview_each_stage(index, ids_in, fails) == ids_in(index)


def test_a_stage_answers_only_the_search_it_is_of(index):
    def widens(stand_in):
        """As a store that fetches more documents if a filter leaves too few."""
        stand_in.search(QUERY, 3)
        return stand_in.search(QUERY, 30)[1][0].tolist()

    told = []
    assert preview_each_stage(index, widens, lambda *stage: told.append(stage)) == widens(index)
    assert not told


def test_everything_but_the_search_is_the_indexs_own(index):
    def looks(stand_in):
        assert (stand_in.ntotal, stand_in.d, stand_in.nprobe) == (400, 8, 16)
        return stand_in.search(QUERY, 1)[1].tolist()

    assert (
        preview_each_stage(index, looks, lambda *stage: None) == index.search(QUERY, 1)[1].tolist()
    )


def test_a_search_as_a_generator_gives_its_stages_and_the_answer(index):
    stages = list(stream_search(lambda put: preview_each_stage(index, ids_in, put)))
    assert [final for _, _, final in stages] == [False] * 7 + [True]
    assert stages[-1] == (ids_in(index), 1.0, True)
