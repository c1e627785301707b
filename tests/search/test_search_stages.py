"""What comes before the last stage: how many stages, how far, and of what shape."""

from __future__ import annotations

from itertools import pairwise

import faiss
import numpy as np
import pytest

from ragcache_engine.search import stages
from ragcache_engine.search.hnsw import DESCENT, PREVIEW_SHARE, preview_lengths
from ragcache_engine.search.stage_timing import StageTiming, even_ends

STAGED = ["IVF48,Flat", "IVF48,PQ6x4", "Flat", "HNSW16,Flat", "IDMap,IVF48,Flat", "IDMap,Flat"]


def searched(built, factory: str, query, k: int = 4, count: int = 8, **options):
    index = built(factory)
    params = None
    if "IVF" in factory:
        params = faiss.SearchParametersIVF(nprobe=40)
    elif "HNSW" in factory:
        params = faiss.SearchParametersHNSW(efSearch=2_000)
    return list(stages(index, query, k, count, params=params, **options))


@pytest.mark.parametrize("factory", STAGED)
def test_every_stage_has_the_shape_of_the_last_and_goes_further(built, questions, factory):
    names = {-1, *range(4_000)} if "IDMap" not in factory else {-1, *range(7, 12_007, 3)}
    for query, shape in ((questions[0], (4,)), (questions[:5], (5, 4))):
        every = searched(built, factory, query)
        assert len(every) > 1
        assert [stage.final for stage in every] == [False] * (len(every) - 1) + [True]
        done = [stage.fraction_done for stage in every]
        assert done == sorted(set(done))
        assert done[0] > 0
        assert done[-1] == 1
        for stage in every:
            assert stage.ids.shape == stage.distances.shape == shape
            assert (stage.ids.dtype, stage.distances.dtype) == (np.int64, np.float32)
            assert set(stage.ids.ravel().tolist()) <= names


@pytest.mark.parametrize("factory", STAGED)
@pytest.mark.parametrize("count", [1, 2, 3, 8, 50, 10**9])
def test_there_are_at_most_count_stages(built, questions, factory, count):
    assert len(searched(built, factory, questions[1], count=count)) <= count


@pytest.mark.parametrize("factory", ["IVF48,Flat", "IVF48,SQ8", "Flat"])
def test_a_provisional_stage_is_the_real_search_of_the_lists_or_rows_so_far(
    built, questions, factory
):
    # Queries between the vectors: no two distances are equal but those of duplicates.
    index = built(factory)
    for query in questions[1:40:4]:
        for stage in searched(built, factory, query):
            if factory == "Flat":
                rows = round(stage.fraction_done * index.ntotal)
                so_far = faiss.SearchParameters(sel=faiss.IDSelectorRange(0, rows))
            else:
                so_far = faiss.SearchParametersIVF(nprobe=round(stage.fraction_done * 40))
            wanted, _ = index.search(query[None], 4, params=so_far)
            assert stage.distances.tolist() == wanted[0].tolist()


def test_what_a_stage_gave_stays_when_the_next_one_comes(built, questions):
    seen = []
    for stage in stages(
        built("IVF48,Flat"), questions[2], 10, params=faiss.SearchParametersIVF(nprobe=48)
    ):
        seen.append((stage, stage.ids.copy(), stage.distances.copy()))
    for stage, ids, distances in seen:
        assert stage.ids.tolist() == ids.tolist()
        assert stage.distances.tolist() == distances.tolist()


def test_a_search_abandoned_half_way_leaves_nothing_behind(built, questions):
    index = built("IVF48,Flat")
    params = faiss.SearchParametersIVF(nprobe=48)
    abandoned = stages(index, questions[0], 5, params=params)
    next(abandoned)
    abandoned.close()
    *_, last = stages(index, questions[0], 5, params=params)
    assert last.ids.tolist() == index.search(questions[:1], 5, params=params)[1][0].tolist()


@pytest.mark.parametrize("factory", STAGED)
def test_an_index_searched_within_one_slice_yields_the_final_stage_only(built, questions, factory):
    (only,) = searched(built, factory, questions[3], slice_s=30.0)
    assert only.final


def test_ends_are_even_and_multiples_of_a_block():
    assert even_ends(48, 8) == [6, 12, 18, 24, 30, 36, 42, 48]
    assert even_ends(3, 8) == [1, 2, 3]
    assert even_ends(1, 8) == [1]
    assert even_ends(5_000, 4, 1_024) == [1_024, 2_048, 4_096, 5_000]
    assert even_ends(900, 4, 1_024) == [900]


def walk(timing: StageTiming, total: int, seconds_each: float) -> tuple[list[int], list[int]]:
    """The cuts made and those shown, if each unit of the search takes so long."""
    made, shown, done = [], [], 0
    while done < total:
        end = timing.next_end()
        timing.note_searched(end, (end - done) * seconds_each)
        made.append(end)
        if timing.reset_if_due():
            shown.append(end)
        done = end
    return made, shown


def test_without_a_slice_every_cut_is_made_and_shown():
    ends = even_ends(80, 8)
    assert walk(StageTiming(ends, 0.0), 80, 0.0) == (ends, ends)


def test_parts_that_take_little_time_are_made_larger():
    # One unit takes 1 ms, so a planned part takes 10 and a slice of 25 holds three of them.
    made, shown = walk(StageTiming(even_ends(80, 8), 0.025), 80, 0.001)
    assert made == [10, 30, 60, 80]
    assert shown == [30, 60]


def test_a_search_within_one_slice_is_cut_once():
    assert walk(StageTiming(even_ends(80, 8), 1.0), 80, 0.001) == ([10, 80], [])


@pytest.mark.parametrize("ef_search", [1, 16, 64, 256, 300, 1_000, 5_000])
@pytest.mark.parametrize("k", [1, 5, 50])
def test_previews_grow_and_stay_within_their_share(ef_search, k):
    lengths = preview_lengths(ef_search, k, 8)
    assert len(lengths) <= 7
    assert all(longer == 2 * length for length, longer in pairwise(lengths))
    assert all(length >= k for length in lengths)
    assert sum(lengths) + DESCENT * len(lengths) <= PREVIEW_SHARE * ef_search


def test_a_long_queue_is_worth_several_previews_and_a_short_one_none():
    assert preview_lengths(64, 2, 8) == []
    assert len(preview_lengths(300, 2, 8)) == 1
    assert len(preview_lengths(2_000, 2, 8)) >= 3
    assert preview_lengths(2_000, 2, 2) == [117]
