"""How many answers a server writes at a time, and how many of them for one tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ragcache_engine.errors import RequestTooLarge, ServerBusy

LEFT_FREE = 4
"""A tenant has at most so many times as many answers as there is room left for others."""


class Room:
    """Counts the answers that wait or are written. most: how many there may be; None: any number.

    A tenant that is alone takes four fifths. Two that want all end up with four ninths each, so that the
    next one finds room as well. Whoever has no answer yet may take the last place.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._taken = 0
        self._of_tenants: Counter[str | None] = Counter()

    @contextmanager
    def place(self, tenant: str | None) -> Iterator[Place]:
        """Take room for one answer, until the block ends. tenant: whose share it is; None: nobody's.

        Raises ServerBusy.
        """
        place = Place(self, tenant)
        place.widen(1)
        try:
            yield place
        finally:
            self._add(tenant, -place.answers)

    def take(self, tenant: str | None, answers: int, held: int) -> None:
        """Take room for so many answers in place of those held. Raises RequestTooLarge, ServerBusy."""
        own, more = self._of_tenants[tenant], answers - held
        if not self._fit(tenant, answers, answers):
            raise RequestTooLarge(
                f"the request asks for {answers:,} answers (its prompts, each n times), and the server's "
                f"limit for all clients is {self._most:,} (--max-requests): send fewer prompts at once"
            )
        if not self._fit(tenant, own + more, self._taken + more):
            raise ServerBusy(
                f"the server has {self._taken:,} answers to write already, {own:,} of them for this "
                f"tenant, and its limit is {self._most:,} (--max-requests): try again later"
            )
        self._add(tenant, more)

    def _fit(self, tenant: str | None, own: int, together: int) -> bool:
        """Return whether there may be so many answers of a tenant, and so many together."""
        if self._most is None:
            return True
        left = self._most - together
        return left >= 0 and (tenant is None or own <= max(1, LEFT_FREE * left))

    def _add(self, tenant: str | None, answers: int) -> None:
        self._taken += answers
        self._of_tenants[tenant] += answers
        if not self._of_tenants[tenant]:
            del self._of_tenants[tenant]


@dataclass(slots=True)
class Place:
    """The room that one request has. answers: for how many."""

    _room: Room
    _tenant: str | None
    answers: int = 0

    def widen(self, answers: int) -> None:
        """Take room for so many answers altogether. Raises RequestTooLarge, ServerBusy."""
        self._room.take(self._tenant, answers, self.answers)
        self.answers = answers
