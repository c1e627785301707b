"""Routing by documents: the same beginnings go to the same replica, as long as nobody does too much."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine.fleet import ROUTINGS, make_routing, path_of_parts, path_of_text
from ragcache_engine.fleet.balance import BOUND, FREE_IN_FLIGHT, FREE_LATE, Balance
from ragcache_engine.fleet.baselines import LeastTokens
from ragcache_engine.fleet.documents import DocumentsRouting
from ragcache_engine.fleet.holdings import Holdings
from ragcache_engine.fleet.path import RoutingPath
from ragcache_engine.fleet.popularity import Popularity
from ragcache_engine.fleet.rendezvous import rank

IDLE: dict[str, int] = {}


def replicas(count: int) -> list[str]:
    return [f"replica-{number}" for number in range(count)]


def prompt(*documents: str, tenant: str | None = None, system: str = "system") -> RoutingPath:
    return path_of_parts(tenant, (system, 10), [(name, 100) for name in documents])


names = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3, unique=True)
requests = st.lists(names, min_size=1, max_size=120)


@given(names, names)
def test_paths_share_keys_exactly_as_far_as_they_share_their_beginning(one, other):
    first, second = prompt(*one), prompt(*other)
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    for at in range(min(len(first.keys), len(second.keys))):
        assert (first.keys[at] == second.keys[at]) == (at <= shared)


def test_tenants_and_system_texts_share_nothing():
    keys = [
        prompt("a").keys[1],
        prompt("a", tenant="shop").keys[1],
        prompt("a", system="other").keys[1],
    ]
    assert len(set(keys)) == 3


@given(st.text(max_size=200), st.text(max_size=40), st.integers(1, 20))
def test_a_text_and_its_continuation_share_all_whole_pieces(text, more, piece):
    short = path_of_text(None, text, piece)
    assert path_of_text(None, text + more, piece).keys[: len(short.keys)] == short.keys


@given(st.binary(min_size=1, max_size=12), st.integers(2, 30), st.data())
def test_when_a_replica_goes_only_its_keys_move(key, count, data):
    everybody = replicas(count)
    gone = data.draw(st.sampled_from(everybody))
    before, after = (
        rank(key, everybody, count),
        rank(key, [r for r in everybody if r != gone], count),
    )
    assert [replica for replica in before if replica != gone] == after


@given(requests, st.integers(1, 6), st.sampled_from(ROUTINGS))
def test_every_routing_chooses_a_replica_that_there_is(asked, count, name):
    routing = make_routing(name, replicas(count), seed=3)
    for documents in asked:
        path = prompt(*documents)
        chosen = routing.choose(path, IDLE)
        assert chosen in replicas(count)
        routing.record(path, chosen)


@given(requests, st.integers(2, 6))
def test_choosing_changes_nothing(asked, count):
    routing = DocumentsRouting(replicas(count))
    for documents in asked:
        path = prompt(*documents)
        chosen = routing.choose(path, IDLE)
        assert routing.choose(path, IDLE) == chosen
        routing.record(path, chosen)


def test_a_document_comes_back_to_the_replica_that_has_it():
    routing = DocumentsRouting(replicas(8))
    homes = {}
    for turn in range(4):
        for number in range(40):
            path = prompt(f"document {number}", f"second {turn}")
            chosen = routing.choose(path, IDLE)
            routing.record(path, chosen)
            homes.setdefault(number, set()).add(chosen)
    # Some made way for balance; by chance, a document would see 3.3 of the 8 replicas.
    assert sum(map(len, homes.values())) <= 1.5 * 40


def test_least_tokens_goes_where_the_prompt_is_until_the_queue_there_is_longer():
    routing = LeastTokens(replicas(3))
    path = prompt("a", "b")
    home = routing.choose(path, IDLE)
    for _ in range(200):
        routing.record(prompt("others"), replicas(3)[0])  # each computes most of itself
        routing.holdings.correct(replicas(3)[0], prompt("others").keys, frozenset())
    routing.record(path, home)
    assert routing.choose(path, IDLE) == home
    assert routing.choose(path, {home: 1}) == home
    assert routing.choose(path, {home: 9}) != home


def test_least_tokens_spreads_what_everybody_asks_for():
    routing, in_flight = LeastTokens(replicas(4)), dict.fromkeys(replicas(4), 0)
    for _ in range(100):
        chosen = routing.choose(prompt("hot"), in_flight)
        routing.record(prompt("hot"), chosen)
        in_flight[chosen] += 1
    assert min(in_flight.values()) > 0


@settings(max_examples=examples(40))
@given(requests, st.integers(2, 8), st.data())
def test_no_replica_gets_more_than_a_quarter_above_the_mean_for_the_sake_of_a_hit(
    asked, count, data
):
    routing = DocumentsRouting(replicas(count))
    for documents in asked:
        path = prompt(*documents)
        in_flight = {one: data.draw(st.integers(0, 30)) for one in replicas(count)}
        chosen = routing.choose(path, in_flight)
        idlest = min(in_flight.values())
        mean = sum(in_flight.values()) / count
        if in_flight[chosen] > idlest:
            most = max(FREE_IN_FLIGHT, BOUND * (mean + 1 / count))
            assert in_flight[chosen] + 1 <= most * (1 + 1e-9), "but for how floats are rounded"
            late = [routing.balance.late(one) for one in replicas(count)]
            assert routing.balance.late(chosen) < max(FREE_LATE, BOUND * sum(late) / count)
        routing.record(path, chosen)


def test_a_hot_document_is_on_several_replicas_and_a_cold_one_is_on_one():
    routing = DocumentsRouting(replicas(16))
    seen: dict[str, Counter[str]] = {"hot": Counter(), "cold": Counter()}
    for number in range(4000):
        leading = "hot" if number % 2 else f"other {number % 400}"
        path = prompt(leading, f"second {number % 7}")
        chosen = routing.choose(path, IDLE)
        routing.record(path, chosen)
        if leading in ("hot", "other 0"):
            seen["hot" if leading == "hot" else "cold"][chosen] += 1
    assert len(seen["hot"]) > 1
    assert max(seen["hot"].values()) < 0.8 * seen["hot"].total()
    assert max(seen["cold"].values()) >= 0.7 * seen["cold"].total()


def test_among_the_replicas_of_a_hot_document_its_second_document_decides():
    routing = DocumentsRouting(replicas(16))
    for number in range(4000):
        path = prompt("hot", f"second {number % 50}")
        routing.record(path, routing.choose(path, IDLE))
    last = [routing.candidates(prompt("hot", f"second {n}"), IDLE)[0] for n in range(50)]
    assert len(set(last)) >= 3


def test_what_a_replica_says_it_no_longer_holds_is_not_looked_for_there():
    routing = DocumentsRouting(replicas(4))
    path = prompt("a", "b")
    home = routing.choose(path, IDLE)
    other = next(one for one in replicas(4) if one != home)
    routing.record(path, other)
    assert routing.choose(path, IDLE) == other  # it has what the home has not
    routing.holdings.correct(other, path.keys, set())
    assert routing.choose(path, IDLE) == home


def test_a_replica_that_is_gone_is_forgotten():
    routing = DocumentsRouting(replicas(2))
    path = prompt("a")
    routing.record(path, "replica-1")
    routing.set_replicas(["replica-0"])
    assert routing.choose(path, IDLE) == "replica-0"
    assert not routing.holdings.holders(path.keys[1])
    with pytest.raises(ValueError, match="no replica"):
        DocumentsRouting().choose(path, IDLE)


@given(requests, st.integers(150, 600))
def test_holdings_never_exceed_a_replicas_capacity_and_keep_the_latest_prompt(asked, capacity):
    holdings = Holdings()
    holdings.add_replica("one", capacity)
    for documents in asked:
        path = prompt(*documents)
        holdings.add("one", path)
        held = holdings.keys("one")
        assert len(held) * 100 <= capacity + 100
        if path.size <= capacity:
            assert set(path.keys) <= set(held)
            assert holdings.held_sizes(path)["one"] == path.size


@given(requests)
def test_holders_are_those_whose_keys_are_kept(asked):
    holdings = Holdings()
    for one in replicas(3):
        holdings.add_replica(one, 400)
    for number, documents in enumerate(asked):
        holdings.add(f"replica-{number % 3}", prompt(*documents))
    for one in replicas(3):
        assert all(one in holdings.holders(key) for key in holdings.keys(one))
    holdings.remove_replica("replica-0")
    for documents in asked:
        assert all("replica-0" not in holdings.holders(key) for key in prompt(*documents).keys)


def test_popularity_forgets_what_is_old():
    popularity = Popularity(10)
    for _ in range(20):
        popularity.count([b"old"])
    assert popularity.share(b"old") == 1
    for _ in range(25):
        popularity.count([b"new"])
    assert popularity.share(b"old") == 0


def test_late_work_fades_and_a_new_replica_is_not_flooded():
    balance = Balance()
    balance.set_replicas(["one", "two"])
    for _ in range(1000):
        balance.record("one", 1.0)
    assert balance.admit(["one", "two"], IDLE) == "two"
    for _ in range(1000):
        balance.record("two", 1.0)
    assert balance.admit(["one", "two"], IDLE) == "one"
    balance.set_replicas(["one", "two", "three"])
    assert balance.late("three") == pytest.approx((balance.late("one") + balance.late("two")) / 2)


def test_longest_prefix_goes_back_however_busy_the_replica_is():
    routing = make_routing("prefix", replicas(3))
    path = prompt("a", "b")
    routing.record(path, "replica-2")
    assert routing.choose(path, {"replica-2": 1000}) == "replica-2"
    assert routing.choose(prompt("c", "d"), IDLE) != "replica-2"  # it has most characters


def test_an_unknown_routing_is_refused():
    with pytest.raises(ValueError, match="documents, random"):
        make_routing("nearest")


@pytest.mark.parametrize("name", ROUTINGS)
def test_a_replica_that_has_gone_since_it_was_chosen_is_recorded_nowhere(name: str):
    routing = make_routing(name, replicas(3), seed=1)
    routing.set_replicas(replicas(2))
    routing.record(prompt("a"), "replica-2")
    assert routing.choose(prompt("a"), IDLE) in replicas(2)


def test_no_request_takes_work_from_a_replica():
    balance = Balance()
    balance.set_replicas(replicas(2))
    balance.record("replica-0", -1e7)
    balance.record("replica-1", 1e7)
    assert 0 <= balance.late("replica-0") <= 1
    assert 0 <= balance.late("replica-1") <= 1
