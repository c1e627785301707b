"""Our routing as a request router of Ray Serve.

Ray calls that interface public, and alpha: it may change. So this file alone uses it, and
tests/fleet_serving/test_request_router.py notices when it does.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ragcache_engine.fleet.documents import DocumentsRouting
from ragcache_engine.fleet.path import RoutingPath
from ragcache_engine.fleet.routing import Routing, make_routing
from ragcache_engine.fleet_serving.request_paths import NOTHING
from ragcache_engine.fleet_serving.wire import FleetRequest


class FleetRouter(RequestRouter):
    """Asks a Routing where a request should go, and tells it where it went."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Begin. kwargs: routing and replica_characters, as in FleetSettings."""
        self._routing: Routing = make_routing(
            kwargs["routing"], capacity=kwargs.get("replica_characters")
        )
        self._in_flight: Counter[str] = Counter()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Route to these replicas from now on, and believe what they say they no longer hold."""
        super().update_replicas(replicas)
        names = [name_of(replica.replica_id) for replica in replicas]
        self._routing.set_replicas(names)
        for gone in set(self._in_flight) - set(names):
            del self._in_flight[gone]
        if isinstance(self._routing, DocumentsRouting):
            for replica in replicas:
                lost = (replica.routing_stats or {}).get("gone", ())
                self._routing.holdings.correct(name_of(replica.replica_id), lost, frozenset())

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget a replica at once, so that what it had is sent elsewhere."""
        super().on_replica_actor_died(replica_id)
        self._routing.set_replicas([name_of(one) for one in self.curr_replicas])
        self._in_flight.pop(name_of(replica_id), None)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replica that the routing chooses, and behind it the others, the idlest first."""
        if not candidate_replicas:
            return []
        by_name = {name_of(replica.replica_id): replica for replica in candidate_replicas}
        chosen = self._routing.choose(path_of(pending_request), self._in_flight)
        others = sorted(by_name.keys() - {chosen}, key=lambda name: (self._in_flight[name], name))
        return [[by_name[name]] for name in (chosen, *others) if name in by_name]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Note where a request went."""
        name = name_of(replica_id)
        self._in_flight[name] += 1
        self._routing.record(path_of(pending_request), name)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Note that a request has ended."""
        name = name_of(replica_id)
        if self._in_flight[name] > 0:
            self._in_flight[name] -= 1


def name_of(replica_id: ReplicaID) -> str:
    """Return a replica's name, which no replica after it will have."""
    return str(replica_id.unique_id)


def path_of(pending_request: PendingRequest | None) -> RoutingPath:
    """Return what routing knows of a request."""
    for one in pending_request.args if pending_request else ():
        if isinstance(one, FleetRequest):
            return one.path
    return NOTHING
