"""Bounded load: how much a replica may have to do for the sake of a hit.

Two loads are bounded, each by BOUND times its mean. The requests in flight: a replica that falls behind
gets no more. And the late work that this router has sent: in quiet times, when hardly anything is in
flight, no replica gets more than its share either. To find tensors is less work than to compute them.
Source: Mirrokni, Thorup and Zadimoghaddam, Consistent Hashing with Bounded Loads, 2017.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

BOUND = 1.25
"""How far above the mean a replica's load may go for the sake of a hit."""

FREE_IN_FLIGHT = 4
"""So many requests at a time are no load yet: an engine computes them in the same steps."""

FREE_LATE = 8.0
"""So much late work is no load yet, in prompts of which nothing was found."""

FOUND_COST = 0.25
"""What a prompt costs of which everything is found, as a share of its cost without a cache: its question
and its answer."""

MEMORY = 64
"""How many requests a replica has to get until one counts about a third of a new one."""

_LARGEST = 1e200


def work_of(missing_share: float) -> float:
    """Return the work of a prompt of which this share is computed; 1 without a cache."""
    return FOUND_COST + (1 - FOUND_COST) * missing_share


class Balance:
    """Adds up the work that each replica was sent lately, and says who may get more."""

    def __init__(self) -> None:
        self._late: dict[str, float] = {}
        self._total = 0.0
        self._weight = 1.0  # of the next request; it grows, so that older ones count less

    def set_replicas(self, replicas: Iterable[str]) -> None:
        """Keep the counts of these replicas. A new one begins at the mean."""
        wanted = list(replicas)
        known = [self._late[one] for one in wanted if one in self._late]
        start = sum(known) / len(known) if known else 0.0
        self._late = {one: self._late.get(one, start) for one in wanted}
        self._total = sum(self._late.values())

    def record(self, replica: str, missing_share: float) -> None:
        """Count a request that goes to this replica. missing_share: how much of it is not found there."""
        if replica not in self._late:
            return
        work = self._weight * work_of(min(1.0, max(0.0, missing_share)))
        self._late[replica] += work
        self._total += work
        self._weight *= 1 + 1 / (MEMORY * len(self._late))
        if self._weight > _LARGEST:
            self._late = {one: late / self._weight for one, late in self._late.items()}
            self._total /= self._weight
            self._weight = 1.0

    def late(self, replica: str) -> float:
        """Return how much work a replica was sent lately; older work counts less."""
        return self._late.get(replica, 0.0) / self._weight

    def late_limit(self) -> float:
        """Return how much late work a replica may reach for the sake of a hit."""
        mean = self._total / self._weight / max(1, len(self._late))
        return max(FREE_LATE, BOUND * mean)

    def flight_limit(self, in_flight: Mapping[str, int]) -> float:
        """Return how many requests a replica may have at a time for the sake of a hit."""
        mean = (sum(in_flight.values()) + 1) / max(1, len(self._late))
        return max(FREE_IN_FLIGHT, BOUND * mean)

    def admit(self, candidates: Iterable[str], in_flight: Mapping[str, int]) -> str | None:
        """Return the first candidate below both limits; None if there is none."""
        late_limit, flight_limit = self.late_limit(), self.flight_limit(in_flight)
        for replica in candidates:
            has_room = in_flight.get(replica, 0) + 1 <= flight_limit
            if has_room and self.late(replica) < late_limit:
                return replica
        return None

    def least_loaded(self, replicas: Iterable[str], in_flight: Mapping[str, int]) -> str:
        """Return the replica with least in flight, and of several the one with least late work."""
        return min(replicas, key=lambda one: (in_flight.get(one, 0), self._late.get(one, 0.0), one))
