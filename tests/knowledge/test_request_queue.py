"""Waiting requests go by what is cached of them, and none is forgotten."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ragcache_engine.knowledge import ReorderQueue, request_queue
from ragcache_engine.knowledge.request_queue import cached_ratio


def queue_of(ratios: dict[str, float | None], window: int = 32) -> ReorderQueue[str]:
    queue: ReorderQueue[str] = ReorderQueue(ratios.get, window)
    for name in ratios:
        queue.push(name)
    return queue


def popped(queue: ReorderQueue[str]) -> str:
    return " ".join(queue.pop() for _ in range(len(queue)))


def tokens_computed(
    order: Sequence[str], requests: dict[str, tuple[int, int]], capacity: int
) -> int:
    """What an order costs in the paper's Figure 12: (cached, to compute) by request.

    Where a request does not fit beside what the others have cached, theirs is thrown out whole.
    """
    cached = {name: old for name, (old, _) in requests.items()}
    total = 0
    for name in order:
        old, new = requests[name]
        total += new + old - cached[name]
        cached[name] = old + new
        if sum(cached.values()) > capacity:
            cached = {other: held if other == name else 0 for other, held in cached.items()}
    return total


def served(requests: dict[str, tuple[int, int]]) -> list[str]:
    queue = queue_of({name: cached_ratio(*lengths) for name, lengths in requests.items()})
    return popped(queue).split()


@pytest.mark.parametrize("arrived", [("Q1", "Q2"), ("Q2", "Q1")])
def test_of_two_that_compute_as_much_the_one_with_more_cached_goes_first(arrived):
    figure_12a = {"Q1": (2, 2), "Q2": (1, 2)}
    order = served({name: figure_12a[name] for name in arrived})
    assert order == ["Q1", "Q2"]
    assert tokens_computed(order, figure_12a, capacity=4) == 2 + 1 + 2
    assert tokens_computed(["Q2", "Q1"], figure_12a, capacity=4) == 2 + 2 + 2


@pytest.mark.parametrize("arrived", [("Q1", "Q2"), ("Q2", "Q1")])
def test_of_two_with_as_much_cached_the_one_with_less_to_compute_goes_first(arrived):
    figure_12b = {"Q1": (2, 2), "Q2": (2, 1)}
    order = served({name: figure_12b[name] for name in arrived})
    assert order == ["Q2", "Q1"]
    assert tokens_computed(order, figure_12b, capacity=5) == 2 + 1
    assert tokens_computed(["Q1", "Q2"], figure_12b, capacity=5) == 2 + 2 + 1


def turns(window: int, requests: int) -> tuple[list[int], float]:
    """Requests for D1 and D2 in turn, room for one document: their order, and the hit rate."""
    cached = ""

    def document(request: int) -> str:
        return "D1" if request % 2 else "D2"

    queue: ReorderQueue[int] = ReorderQueue(lambda one: float(document(one) == cached), window)
    for request in range(1, requests + 1):
        queue.push(request)
    order, hits = [], 0
    while queue:
        order.append(queue.pop())
        hits += document(order[-1]) == cached
        cached = document(order[-1])
    return order, hits / requests


def test_requests_for_two_documents_in_turn_hit_two_times_out_of_three():
    assert turns(window=3, requests=6) == ([1, 3, 5, 2, 4, 6], 4 / 6)
    assert turns(window=1, requests=6) == ([1, 2, 3, 4, 5, 6], 0)


def test_a_long_backlog_hits_at_least_as_often():
    assert turns(window=3, requests=600)[1] > 2 / 3
    assert turns(window=32, requests=600)[1] > 0.95


def test_what_is_cached_is_asked_when_a_request_is_taken():
    ratios: dict[str, float | None] = {"a": 1.0, "b": 0.0, "c": 0.0}
    queue = queue_of(ratios)
    assert queue.pop() == "a"
    ratios["c"] = 2.0
    assert popped(queue) == "c b"


def test_ties_and_unlabelled_requests_go_by_arrival():
    assert popped(queue_of({"a": None, "b": 0.0, "c": None, "d": 0.0})) == "a b c d"
    assert popped(queue_of({"a": None, "b": 2.0, "c": 2.0, "d": None})) == "b c a d"


def test_those_behind_the_window_compete_as_well():
    assert popped(queue_of({"a": 0.0, "b": 1.0, "c": 9.0}, window=2)) == "c b a"


def test_the_longer_the_queue_the_more_may_overtake():
    """With the window alone, the first would be overtaken twice, then the next, and so on: by arrival."""
    slow, fast = [f"slow-{at}" for at in range(100)], [f"fast-{at}" for at in range(100)]
    queue = queue_of({**dict.fromkeys(slow, 0.0), **dict.fromkeys(fast, 9.0)}, window=20)
    for _ in range(200 // 20):
        queue.peek()  # until it has glanced at all
    order = popped(queue).split()
    places = [order.index(name) for name in slow]
    assert places[0] == 20, "it came when nobody waited"
    assert places[99] == 99 + 74, "it came when 99 waited"
    assert all(place <= at + max(20, int(0.75 * at)) for at, place in enumerate(places))


def test_one_behind_the_window_is_asked_again_before_it_is_chosen():
    seen = {"a": 1.0, "b": 0.5, "c": 5.0}
    now = {**seen, "c": 0.0}  # its documents have just gone
    queue: ReorderQueue[str] = ReorderQueue(now.get, window=2, glance=seen.get)
    for name in seen:
        queue.push(name)
    assert popped(queue) == "a b c"


def test_however_many_old_ratios_are_wrong_the_best_that_is_known_is_chosen():
    ratios = {str(at): 5.0 if at >= 32 else float(at == 3) for at in range(200)}
    queue = queue_of(ratios)
    for _ in range(8):
        queue.peek()  # all have been glanced at
    ratios.update({str(at): 0.0 for at in range(32, 200)})  # their document is evicted
    assert queue.peek() == "3"


def test_one_that_is_put_back_may_be_overtaken_as_often_as_when_it_came():
    early, later = [[f"{name} {at}" for at in range(40)] for name in ("early", "later")]
    ratios = dict.fromkeys([*early, "put back", *later], 0.0)
    queue = queue_of(ratios, window=2)
    for name in early:
        queue.remove(name)
    assert queue.pop() == "put back"
    queue.prepend("put back")  # it came when 40 waited, so that more than a window may overtake it
    ratios.update(dict.fromkeys(later[10:20], 1.0))
    for _ in range(40):
        queue.peek()
    assert [queue.pop() for _ in range(10)] == later[10:20]


def test_those_behind_the_window_are_glanced_at_in_turn():
    glanced: list[int] = []
    queue: ReorderQueue[int] = ReorderQueue(
        lambda number: 0.0, window=4, glance=lambda number: glanced.append(number) or 0.0
    )
    for number in range(40):
        queue.push(number)
    for _ in range(9):
        queue.peek()
    assert sorted(glanced) == list(range(4, 40))


def test_however_many_wait_only_so_many_compete(monkeypatch):
    monkeypatch.setattr(request_queue, "MOST_COMPETING", 3)
    assert popped(queue_of({"a": 0.0, "b": 1.0, "c": 2.0, "d": 9.0}, window=2)) == "c d a b"


def test_with_a_window_of_one_the_first_comes_first():
    assert popped(queue_of({"a": 0.0, "b": 1.0, "c": 9.0}, window=1)) == "a b c"


def test_a_fully_cached_request_is_worth_more_than_any_other():
    assert cached_ratio(16, 0) == math.inf > cached_ratio(10**9, 1)


def test_what_was_looked_at_is_what_is_taken_though_the_cache_changed_meanwhile():
    ratios: dict[str, float | None] = {"a": 1.0, "b": 0.0}
    queue = queue_of(ratios)
    assert queue.peek() == "a"
    ratios["b"] = 2.0
    assert queue.pop() == "a"


def test_looking_again_chooses_again():
    ratios: dict[str, float | None] = {"a": 1.0, "b": 0.0}
    queue = queue_of(ratios)
    queue.peek()
    ratios["b"] = 2.0
    assert (queue.peek(), queue.pop()) == ("b", "b")


def test_a_preempted_request_waits_at_the_front():
    queue = queue_of({"a": 0.0, "b": 0.0})
    first = queue.pop()
    queue.prepend(first)
    assert list(queue) == ["a", "b"]
    assert queue.pop() == "a"


def test_a_request_that_is_put_back_keeps_count_of_those_that_overtook_it():
    ratios: dict[str, float | None] = {"old": 0.0}
    queue, overtaken = queue_of(ratios, window=4), 0
    for number in range(20):
        ratios[f"new {number}"] = 9.0
        queue.push(f"new {number}")
        taken = queue.pop()
        if taken == "old":
            queue.prepend(taken)
        else:
            overtaken += 1
    assert overtaken == 4


def test_a_request_that_comes_again_as_a_new_one_may_be_overtaken_anew():
    queue = queue_of({"a": 0.0, "b": 9.0, "c": 9.0}, window=2)
    assert popped(queue) == "b c a"
    for name in ("a", "b", "c"):
        queue.push(name)
    assert popped(queue) == "b c a"


def test_of_those_taken_out_only_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr(request_queue, "MOST_REMEMBERED", 3)
    names = [f"request {number}" for number in range(10)]
    queue = queue_of({**dict.fromkeys(names, 0.0), "fast": 9.0})
    assert popped(queue).startswith("fast ")
    assert len(queue._overtaken_before) == 3


def test_a_cancelled_request_leaves_from_anywhere():
    queue = queue_of({"a": 0.0, "b": 5.0, "c": 0.0})
    queue.remove("b")
    assert list(queue) == ["a", "c"]
    with pytest.raises(ValueError, match="'b' does not wait"):
        queue.remove("b")


def test_an_empty_queue_says_so():
    queue = queue_of({})
    assert not queue
    for take in (queue.pop, queue.peek):
        with pytest.raises(IndexError, match="no request waits"):
            take()


def test_a_window_of_nobody_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        ReorderQueue(lambda _: None, window=0)


@given(st.integers(1, 5), st.lists(st.integers(0, 3), max_size=40), st.data())
def test_however_many_wait_taking_asks_for_few_ratios(window, ratios, data):
    asked, glanced = [], []
    queue: ReorderQueue[int] = ReorderQueue(
        lambda at: asked.append(at) or ratios[at],
        window,
        glance=lambda at: glanced.append(at) or data.draw(st.integers(0, 3)),
    )
    for at in range(len(ratios)):
        queue.push(at)
    while queue:
        asked.clear()
        glanced.clear()
        queue.pop()
        assert len(asked) <= 2 * window
        assert len(glanced) <= window


class Fairness(RuleBasedStateMachine):
    """Whatever happens to a queue, nobody is overtaken more often than it allows."""

    def __init__(self) -> None:
        super().__init__()
        self.window, self.number = 3, 0
        self.ratios: dict[int, float | None] = {}
        self.queue: ReorderQueue[int] = ReorderQueue(self.ratios.__getitem__, self.window)
        self.waiting: list[int] = []
        self.taken: list[int] = []
        self.overtaken: dict[int, int] = {}
        self.most: dict[int, int] = {}

    @rule(ratio=st.none() | st.integers(0, 3), front=st.booleans())
    def arrives(self, ratio, front):
        self.number += 1
        self.ratios[self.number], self.overtaken[self.number] = ratio, 0
        self.most[self.number] = self.window
        if not front:
            self.most[self.number] = max(self.window, int(0.75 * len(self.waiting)))
        if front:
            self.queue.prepend(self.number)
            self.waiting.insert(0, self.number)
        else:
            self.queue.push(self.number)
            self.waiting.append(self.number)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), ratio=st.none() | st.integers(0, 3))
    def its_documents_come_or_go(self, data, ratio):
        self.ratios[data.draw(st.sampled_from(self.waiting))] = ratio

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def is_cancelled(self, data):
        gone = data.draw(st.sampled_from(self.waiting))
        self.queue.remove(gone)
        self.waiting.remove(gone)

    @precondition(lambda self: self.waiting)
    @rule(looks=st.booleans())
    def is_taken(self, looks):
        seen = self.queue.peek() if looks else None
        taken = self.queue.pop()
        assert seen in (None, taken)
        at = self.waiting.index(taken)
        for other in self.waiting[:at]:
            self.overtaken[other] += 1
        self.taken.append(self.waiting.pop(at))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def is_put_back(self, data):
        back = data.draw(st.sampled_from(self.taken))
        self.taken.remove(back)
        self.queue.prepend(back)
        self.waiting.insert(0, back)

    @precondition(lambda self: self.waiting)
    @rule()
    def is_looked_at(self):
        assert self.queue.peek() in self.waiting

    @invariant()
    def arrivals_are_in_order(self):
        assert list(self.queue) == self.waiting
        assert len(self.queue) == len(self.waiting)

    @invariant()
    def nobody_is_overtaken_too_often(self):
        assert all(times <= self.most[number] for number, times in self.overtaken.items())


TestFairness = Fairness.TestCase
TestFairness.pytestmark = [pytest.mark.slow]  # type: ignore[attr-defined]


def test_one_that_must_wait_for_memory_lets_those_pass_that_need_not():
    ratios = {"large": 5.0, "small": 1.0, "better": 2.0}
    room = {"small", "better"}
    queue: ReorderQueue[str] = ReorderQueue(ratios.get, fits=room.__contains__)
    for name in ratios:
        queue.push(name)
    assert queue.pop() == "better"
    room.add("large")
    assert popped(queue) == "large small"


def test_where_nothing_fits_the_best_waits_at_the_front():
    ratios = {"small": 1.0, "large": 5.0}
    queue: ReorderQueue[str] = ReorderQueue(ratios.get, fits=lambda name: False)
    for name in ratios:
        queue.push(name)
    assert popped(queue) == "large small"


@given(st.integers(1, 6), st.integers(1, 40))
def test_waiting_for_memory_nobody_is_overtaken_more_often_than_the_window_allows(window, others):
    queue: ReorderQueue[int] = ReorderQueue(lambda name: 1.0, window, lambda name: name > 0)
    queue.push(0)  # never fits
    served = 0
    for name in range(1, others + window + 1):
        queue.push(name)
        if queue.pop() == 0:
            break
        served += 1
    assert served == (window if window > 1 else 0)


@given(
    asides=st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=4),
    fronts=st.lists(st.integers(10, 20), max_size=4, unique=True),
)
def test_what_was_set_aside_waits_where_it_waited_before(asides, fronts):
    waiting: ReorderQueue[int] = ReorderQueue(float, window=4)
    for number in range(10):
        waiting.push(number)
    expected = list(range(10))
    for aside in asides:
        waiting.set_aside(aside.__contains__)
        assert list(waiting) == [number for number in expected if number not in aside]
        if fronts:
            waiting.prepend(front := fronts.pop())
            expected.insert(0, front)
        waiting.bring_back()
        assert list(waiting) == expected
