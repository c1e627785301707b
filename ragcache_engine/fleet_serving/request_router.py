"""Our routing as a request router of Ray Serve.

Ray calls that interface public, and alpha: it may change. So this file alone uses it, and
tests/fleet_serving/test_request_router.py notices when it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ragcache_engine.fleet.baselines import LeastTokens
from ragcache_engine.fleet.documents import DocumentsRouting
from ragcache_engine.fleet.path import RoutingPath
from ragcache_engine.fleet.routing import Routing, make_routing
from ragcache_engine.fleet_serving import silence
from ragcache_engine.fleet_serving.request_paths import NOTHING
from ragcache_engine.fleet_serving.wire import FleetRequest


class FleetRouter(RequestRouter):
    """Asks a Routing where a request should go, and tells it where it went."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Begin. kwargs: routing and replica_characters, as in FleetSettings."""
        self._name: str = kwargs["routing"]
        self._capacity: int | None = kwargs.get("replica_characters")
        self._names: tuple[str, ...] = ()
        self._routings: dict[str, Routing] = {}
        self._in_flight: Counter[str] = Counter()
        self._heard: dict[str, int | None] = {}

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Route to these replicas from now on, and believe what they say they no longer hold."""
        super().update_replicas(replicas)
        self._set_names([name_of(replica.replica_id) for replica in replicas])
        for replica in replicas:
            self._hear(name_of(replica.replica_id), replica.routing_stats or {})

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget a replica at once, so that what it had is sent elsewhere."""
        super().on_replica_actor_died(replica_id)
        self._set_names([name_of(one) for one in self.curr_replicas])

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replica that the routing chooses, and behind it the others, the idlest first.

        Silent ones come last.
        """
        if not candidate_replicas or not self._names:
            return []
        by_name = {name_of(replica.replica_id): replica for replica in candidate_replicas}
        routing = self._routing_of(pending_request)
        chosen = routing.choose(path_of(pending_request), self._in_flight)
        others = sorted(by_name.keys() - {chosen}, key=lambda name: (self._in_flight[name], name))
        # By way of its module: Ray copies this class, and what it names, for each handle.
        order = sorted((chosen, *others), key=silence.WATCH.is_silent)  # else as it is
        if request := request_of(pending_request):
            # Ray tells where a request went once the replica has said that it takes it.
            silence.WATCH.assign(request.number, order[0])
        return [[by_name[name]] for name in order if name in by_name]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Note where a request went."""
        name = name_of(replica_id)
        self._in_flight[name] += 1
        if request := request_of(pending_request):
            silence.WATCH.assign(request.number, name)
        self._routing_of(pending_request).record(path_of(pending_request), name)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Note that a request has ended."""
        name = name_of(replica_id)
        if self._in_flight[name] > 0:
            self._in_flight[name] -= 1

    def _hear(self, name: str, report: Mapping[str, Any]) -> None:
        """Forget what a replica has lost, once for each of its reports.

        Ray repeats a report until there is a new one. By then the replica may hold the document again.
        """
        number = report.get("report")
        if number == self._heard.get(name):
            return
        self._heard[name] = number
        for routing in self._routings.values():
            if isinstance(routing, DocumentsRouting | LeastTokens):
                routing.holdings.correct(name, report.get("gone", ()), frozenset())

    def _routing_of(self, pending_request: PendingRequest | None) -> Routing:
        """Return the routing that a request asks for, or the fleet's."""
        request = request_of(pending_request)
        name = (request and request.routing) or self._name
        if name not in self._routings:
            self._routings[name] = make_routing(name, self._names, capacity=self._capacity)
        return self._routings[name]

    def _set_names(self, names: list[str]) -> None:
        self._names = tuple(names)
        silence.WATCH.keep_only(self._names)
        for gone in set(self._in_flight) - set(names):
            del self._in_flight[gone]
        for gone in set(self._heard) - set(names):
            del self._heard[gone]
        for routing in self._routings.values():
            routing.set_replicas(names)


def name_of(replica_id: ReplicaID) -> str:
    """Return a replica's name, which no replica after it will have."""
    return str(replica_id.unique_id)


def path_of(pending_request: PendingRequest | None) -> RoutingPath:
    """Return what routing knows of a request."""
    request = request_of(pending_request)
    return request.path if request else NOTHING


def request_of(pending_request: PendingRequest | None) -> FleetRequest | None:
    """Return the request of ours that Ray has to route; None for any other."""
    for one in pending_request.args if pending_request else ():
        if isinstance(one, FleetRequest):
            return one
    return None
