"""Donors are fetched for requests that can be admitted next, and for no others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ragcache_engine.tiers.borrowing.borrowers import MOST_READY, Borrower, Borrowers, NextStep
from ragcache_engine.tiers.borrowing.plan import BorrowPlan, Room, plan_borrowing

BLOCK_TOKENS = 16
SYSTEM = 32


class Device:
    """Blocks by key, of which some are in use; counts how often it is asked."""

    def __init__(self, blocks: int) -> None:
        self.free = blocks
        self.cached: set[bytes] = set()
        self.used: set[bytes] = set()
        self.asked = 0
        self.kept: list[str] = []
        self.borrowers: Borrowers[bytes] = Borrowers(self._find, self.used.__contains__)
        self.sizes: dict[str, int] = {}

    def _find(self, key: bytes) -> bytes | None:
        self.asked += 1
        return key if key in self.cached else None

    def borrow(self, name: str, *documents: str, tokens: int = 64) -> Borrower[bytes]:
        """Let a request wait that borrows all these documents but the first."""
        prompt, segments = [1] * SYSTEM, [(SYSTEM, None)]
        for document in documents:
            prompt += [hash(document) % 1000] * tokens
            segments.append((len(prompt), document))
        prompt += [2] * 9
        room = Room(BLOCK_TOKENS, 100_000, 100_000)
        plan = plan_borrowing(prompt, segments, room, contexts={}, ratio=0.1)
        assert isinstance(plan, BorrowPlan)
        keys = [
            [
                repr(donor.token_ids[: end * 16]).encode()
                for end in range(1, len(donor.token_ids) // 16 + 1)
            ]
            for donor in plan.donors
        ]
        borrower = Borrower[bytes](name, plan, keys, keys[0][: plan.exact_blocks])
        self.borrowers.add(borrower)
        self.sizes[name] = -(-len(prompt) // BLOCK_TOKENS)
        return borrower

    def wait(self, name: str, blocks: int) -> str:
        """Let a request wait that borrows nothing."""
        self.sizes[name] = blocks
        return name

    def plan_step(self, waiting: Sequence[str], running: int = 0) -> NextStep[bytes]:
        return self.borrowers.plan_step(
            waiting,
            blocks_of=self.sizes.__getitem__,
            free_blocks=self.free,
            running=running,
            most_recomputed=1_000,
            keep=self.kept.append,
        )

    def compute(self, step: NextStep[bytes]) -> None:
        """Compute all missing donors."""
        for donor in step.missing:
            self.cached.update(donor.borrower.keys[donor.place])


def test_donors_are_fetched_first_and_then_the_request_is_ready():
    device = Device(blocks=100)
    borrower = device.borrow("one", "a", "b", "c")
    step = device.plan_step(["one"])
    assert [donor.place for donor in step.missing] == [0, 1, 2]
    assert (step.ready, step.held_back) == ([], {"one"})
    device.compute(step)
    step = device.plan_step(["one"])
    assert (step.ready, step.missing, step.held_back) == ([borrower], [], set())
    assert [len(lent) for lent in borrower.lent] == [len(keys) for keys in borrower.keys]


def test_nothing_is_fetched_for_a_request_without_room_beside_those_that_run():
    device = Device(blocks=20)
    device.borrow("one", "a", "b", "c")
    step = device.plan_step(["one"], running=1)
    assert (step.missing, step.held_back, device.kept) == ([], {"one"}, [])
    assert device.plan_step(["one"], running=0).missing, "nobody else will make room"


def test_what_is_used_already_takes_no_room():
    device = Device(blocks=20)
    borrower = device.borrow("one", "a", "b", "c")
    device.cached |= set(borrower.needed_keys)
    assert not device.plan_step(["one"], running=1).ready
    device.used |= set(borrower.needed_keys)
    assert device.plan_step(["one"], running=1).ready == [borrower]


def test_an_answer_that_grows_meanwhile_does_not_take_the_room():
    device = Device(blocks=0)
    borrower = device.borrow("one", "a", "b")
    needed = device.sizes["one"] + len(borrower.needed_keys) - len(borrower.exact_keys)
    device.free = needed + 1
    assert not device.plan_step(["one"], running=2).missing
    step = device.plan_step(["one"], running=1)
    device.compute(step)
    device.free -= 1
    assert device.plan_step(["one"], running=1).ready == [borrower]


def test_requests_behind_leave_a_borrower_its_room():
    device = Device(blocks=60)
    device.borrow("one", "a", "b", "c")
    small, large = device.wait("small", 3), device.wait("large", 40)
    step = device.plan_step(["one", small, large], running=1)
    assert step.missing
    assert step.held_back == {"one", "large"}


def test_requests_in_front_come_first():
    device = Device(blocks=60)
    device.borrow("one", "a", "b", "c")
    step = device.plan_step([device.wait("large", 40), "one"], running=1)
    assert (step.missing, step.held_back) == ([], {"one"})


def test_a_donor_that_two_need_is_asked_for_once():
    device = Device(blocks=200)
    device.borrow("one", "a", "b")
    device.borrow("two", "c", "b")
    step = device.plan_step(["one", "two"])
    assert sorted(donor.borrower.name for donor in step.missing) == ["one", "one", "two"]


@pytest.mark.parametrize("waiting", [MOST_READY, 2_000])
def test_however_many_wait_a_step_looks_at_the_donors_of_few(waiting: int):
    device = Device(blocks=100_000)
    names = [device.borrow(f"r{number}", "a", "b").name for number in range(waiting)]
    keys = len(device.borrow("last", "a", "b").needed_keys)
    step = device.plan_step(names)
    assert device.asked == MOST_READY * keys, "each key once"
    assert step.held_back == set(names)
