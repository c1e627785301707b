"""How much room a server has, and how its tenants share it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ragcache_engine import RequestTooLarge, ServerBusy
from ragcache_engine.serving.room import Room


def fill(room: Room, tenant: str | None, into: ExitStack) -> int:
    """Take places for a tenant until there are no more; return how many."""
    taken = 0
    while fill_one(room, tenant, into):
        taken += 1
    return taken


@pytest.mark.parametrize("most", range(1, 40))
def test_no_tenant_takes_the_last_place_while_it_has_others(most: int):
    room = Room(most)
    with ExitStack() as all_places:
        assert fill(room, "shop", all_places) == max(1, most * 4 // 5)
        assert fill(room, "press", all_places) >= min(1, most - 1)


def test_two_tenants_that_want_all_come_to_have_as_much_as_each_other():
    room = Room(90)
    with ExitStack() as others:
        stacks: dict[str, list[ExitStack]] = {"shop": [], "press": []}
        for _ in range(500):
            for tenant, held in stacks.items():
                place = others.enter_context(ExitStack())
                while fill_one(room, tenant, place):
                    held.append(place)
                    place = others.enter_context(ExitStack())
            max(stacks.values(), key=len).pop(0).close()  # an answer ends
        assert {len(held) for held in stacks.values()} <= {39, 40, 41}


def fill_one(room: Room, tenant: str, into: ExitStack) -> bool:
    try:
        into.enter_context(room.place(tenant))
    except ServerBusy:
        return False
    return True


def test_whoever_has_no_tenant_takes_all_there_is():
    room = Room(8)
    with ExitStack() as places:
        assert fill(room, None, places) == 8
    with ExitStack() as places:
        assert fill(room, None, places) == 8


def test_a_request_that_does_not_fit_keeps_what_it_has_until_it_ends():
    room = Room(8)
    with room.place("shop") as place:
        place.widen(5)
        with room.place("press") as other, pytest.raises(ServerBusy, match="6 answers"):
            other.widen(4)
        with pytest.raises(RequestTooLarge, match="--max-requests"):
            place.widen(9)
        assert place.answers == 5
    with ExitStack() as places:
        assert fill(room, None, places) == 8


def test_without_a_limit_everything_fits():
    with Room(None).place("shop") as place:
        place.widen(10**9)
