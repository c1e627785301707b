"""What a prompt may still claim, and how much of it is kept."""

from __future__ import annotations

from ragcache_engine import Document, SamplingOptions, TokenizedPrompt
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.speculation import TrackedSearch
from ragcache_engine.speculation.generation import Speculation
from ragcache_engine.speculation.search_registry import MOST_SEARCHES, SOON_S, SearchRegistry
from ragcache_engine.tenants import forget_id

REQUEST = BackendRequest("r", TokenizedPrompt("Why?", [1, 2]), (), SamplingOptions())
CATS = Document("cats", "Cats sleep.")


def search(number: int) -> TrackedSearch:
    return TrackedSearch(number, "Why?", None, None, None, None, 0.0)


def running() -> Speculation:
    return Speculation([CATS], 0.0, request=REQUEST, is_whole=True, is_under_way=True)


def test_the_oldest_search_is_forgotten_first():
    registry = SearchRegistry(most_unclaimed=1)
    for number in range(MOST_SEARCHES + 1):
        registry.add_search(search(number))
    assert registry.remove_search(0) is None
    assert registry.remove_search(1) is not None


def test_an_ended_search_is_forgotten_with_its_documents_its_candidates_or_its_tenant():
    registry = SearchRegistry(most_unclaimed=1)
    for number in range(5):
        registry.add_search(search(number))
    found, offered, tenants, runs, other = (registry._searches[number] for number in range(5))
    found.documents = runs.documents = [CATS]
    offered.candidates, tenants.tenant = [CATS], "shop::anna"
    for one in (found, offered, tenants, other):
        one.ended_s = 1.0
    registry.forget(["cats", forget_id("shop")])
    assert [registry.remove_search(number) for number in range(5)] == [None] * 3 + [runs, other]


def test_it_is_full_until_a_prompt_claims_what_waits():
    registry, own = SearchRegistry(most_unclaimed=1), search(1)
    registry.add_search(own)
    registry.add(speculation := running(), own)
    assert registry.is_full
    assert registry.find_tokens("Why?", add_special_tokens=True) is REQUEST.prompt
    assert registry.claim(REQUEST, None) == (own, speculation)
    assert not registry.is_full
    assert own.speculation is None


def test_a_prompt_keeps_its_own_search_when_another_ones_speculation_answers_it():
    registry, own, other = SearchRegistry(most_unclaimed=1), search(1), search(2)
    for one in (own, other):
        registry.add_search(one)
    registry.add(speculation := running(), other)
    assert registry.claim(REQUEST, 1) == (own, speculation)
    assert registry.remove_search(2) is other


def test_work_waits_for_its_prompt_only_so_long_after_its_search():
    registry, own = SearchRegistry(most_unclaimed=1), search(1)
    registry.add(speculation := running(), own)
    assert registry.find_overdue(99.0, unclaimed_s=10.0) == []
    own.ended_s = 5.0
    assert registry.find_overdue(14.9, unclaimed_s=10.0) == []
    assert registry.find_overdue(15.0, unclaimed_s=10.0) == [(speculation, own)]


def test_other_searches_have_a_prompt_soon_unless_it_is_closed_late_or_speculated_on():
    registry = SearchRegistry(most_unclaimed=1)
    asking, runs, closed, late, guessed = map(search, range(5))
    for one in (asking, runs, closed, late, guessed):
        registry.add_search(one)
    closed.is_closed, late.ended_s = True, 1.0
    registry.add(running(), guessed)
    assert registry.count_expected_prompts(asking, 1.0 + SOON_S, lambda chain: 1.0 + SOON_S) == 1


def test_a_prompt_is_expected_only_towards_the_end_of_a_search_that_takes_long():
    registry, asking, crawling = SearchRegistry(most_unclaimed=9), search(1), search(2)
    registry.add_search(crawling)
    crawling.started_s = 10.0
    expected = {
        now_s: registry.count_expected_prompts(asking, now_s, lambda chain: 7.0)
        for now_s in (10.1, 16.4, 16.6, 17.4, 17.6, 30.0)
    }
    assert expected == {10.1: 0, 16.4: 0, 16.6: 1, 17.4: 1, 17.6: 0, 30.0: 0}, "it may hang"
    assert registry.count_expected_prompts(asking, 15.5, lambda chain: 7.0, prefill_s=2.0) == 1


def test_documents_name_what_waits_on_them():
    registry, own = SearchRegistry(most_unclaimed=1), search(1)
    registry.add(speculation := running(), own)
    assert registry.find_about(["dogs"]) == []
    assert registry.find_about(["cats"]) == registry.find_about(None) == [(speculation, own)]
