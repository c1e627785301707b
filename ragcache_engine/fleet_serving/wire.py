"""What the ingress sends to a replica, and what comes back: the head of an answer, then its body."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ragcache_engine.fleet.path import RoutingPath

Headers = tuple[tuple[str, str], ...]
"""Names and values, each byte as the character of Latin-1 with its number, as Starlette reads them."""


@dataclass(frozen=True, slots=True)
class FleetRequest:
    """One HTTP request. target: path and query. prompt: its text, for routers that want one.

    documents: the ids of its documents, by the key of the beginning that ends with each.
    routing: another routing than the fleet's, for this request. by_operator: whether an operator's key
      came with it; the headers are without that key, and each replica has one of its own for it.
    number: by which its door knows it.
    """

    method: str
    target: str
    headers: Headers
    body: bytes
    path: RoutingPath
    prompt: str = ""
    documents: tuple[tuple[bytes, str], ...] = ()
    routing: str | None = None
    by_operator: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The beginning of an answer. Its body follows as bytes."""

    status: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class NamedAnswer:
    """A whole answer, and the name of the replica that gave it, which no other replica ever has."""

    replica: str
    head: AnswerHead
    body: bytes


RECEIVED = b""
"""What a replica says first: that it has the request. One that is lost before was not ended by it.

It says so again wherever nothing else was to be said for a while."""


class ReplicaLost(Exception):
    """The replica that had a request is gone, or its server is. The ingress tries another."""


class ReplicaAway(ReplicaLost):
    """The replica was lost before it had the request, so the request is not what ended it."""


class ReplicaFailed(ReplicaLost):
    """The replica answered with an error of its own, and may be alive."""


class FleetBusy(Exception):
    """No replica takes one more request. The ingress makes it a ServerBusy."""


class Replicas(Protocol):
    """The replicas, as the ingress uses them."""

    def send(self, request: FleetRequest) -> AsyncGenerator[AnswerHead | bytes, None]:
        """Send a request to one replica; closing the generator ends the request there.

        Raises ReplicaLost, ReplicaAway, FleetBusy.
        """

    async def send_to_all(self, request: FleetRequest) -> Sequence[tuple[AnswerHead, bytes]]:
        """Send a request to every replica, and return their whole answers. Raises ReplicaLost."""

    async def ask_each(self, request: FleetRequest) -> Sequence[NamedAnswer]:
        """Send a request to every replica once, and return the answers of those that gave one soon.

        Raises ReplicaLost if none did.
        """
