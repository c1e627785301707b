"""The application of Ray Serve: an ingress, and replicas behind it.

Ray Serve has an application for language models of its own (`ray.serve.llm`). It has no place for our
doors and for the paths below /ragcache, and cannot be had without packages that nothing else here needs.
So each replica runs the very server of `ragcache serve`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ray import serve
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Scope

from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.fleet_serving.engine_replica import EngineReplica
from ragcache_engine.fleet_serving.fleet_settings import FleetSettings
from ragcache_engine.fleet_serving.ingress import FleetDoors
from ragcache_engine.fleet_serving.silence import SILENT_S, WATCH
from ragcache_engine.fleet_serving.wire import (
    AnswerHead,
    FleetBusy,
    FleetRequest,
    NamedAnswer,
    ReplicaAway,
    ReplicaLost,
)
from ragcache_engine.serving.corpus_routes import read_corpora
from ragcache_engine.serving.keys import Keys
from ragcache_engine.serving.routes import UPKEEP_S
from ragcache_engine.serving.settings import OPERATOR_KEY, Limits

ROUTER = "ragcache_engine.fleet_serving.request_router:FleetRouter"

REPORT_S = 5.0
"""How often a replica tells what it no longer holds."""

DRAIN_S = 120.0
"""How long a replica that is to go may compute what it has."""

HEALTH_S = 5.0

ON_HEAD = "node:__internal_head__"
"""A resource that Ray gives to a cluster's head alone."""


def build(said: Mapping[str, Any]) -> serve.Application:
    """Build the application from the `args` of Serve's config file. Raises ConfigError."""
    return build_application(FleetSettings.from_json(said))


def build_application(
    settings: FleetSettings, operator_key: str | None = None
) -> serve.Application:
    """Build the application of a fleet. operator_key: an operator's key by its digest, for the door."""
    make: Any = serve.deployment
    engines = make(EngineReplica).options(**engine_options(settings))
    ingress = make(Ingress).options(**ingress_options(settings))
    application: serve.Application = ingress.bind(settings, engines.bind(settings), operator_key)
    return application


def engine_options(settings: FleetSettings) -> dict[str, Any]:
    """Return how Ray Serve is to run the replicas."""
    options: dict[str, Any] = {
        "name": "Engines",
        "max_ongoing_requests": settings.ongoing,
        "max_queued_requests": settings.most_requests,
        "ray_actor_options": {
            "num_cpus": settings.replica_cpus,
            "num_gpus": settings.replica_gpus,
        },
        "health_check_period_s": HEALTH_S,
        "graceful_shutdown_timeout_s": DRAIN_S,
        "request_router_config": {
            "request_router_class": ROUTER,
            "request_router_kwargs": {
                "routing": settings.routing,
                "replica_characters": settings.replica_characters,
            },
            "request_routing_stats_period_s": REPORT_S,
        },
    }
    if settings.max_replicas and settings.max_replicas > settings.replicas:
        options["autoscaling_config"] = {
            "min_replicas": settings.replicas,
            "max_replicas": settings.max_replicas,
            "target_ongoing_requests": max(1, settings.ongoing // 4),
        }
    else:
        options["num_replicas"] = settings.replicas
    return options


def ingress_options(settings: FleetSettings) -> dict[str, Any]:
    """Return how Ray Serve is to run the ingress. Its doors alone say how much is too much."""
    return {
        "name": "Ingress",
        "num_replicas": settings.doors,
        "max_ongoing_requests": 100_000,
        # Beside the address that clients know, so that no worker's end breaks off answers of others.
        "ray_actor_options": {"num_cpus": 0, "resources": {ON_HEAD: 0.001}},
        "graceful_shutdown_timeout_s": DRAIN_S,
    }


BROADCAST_ATTEMPTS, BROADCAST_PAUSE_S = 5, 2.0
"""A replica whose server has died ends itself within seconds; until then it lives and cannot answer."""

TOLD_S = UPKEEP_S + 10.0
"""How long a replica may take to do what all of them are told: as long as its server lets it."""

TOLD_AT_ONCE = 8
"""How many requests to all replicas are waited for at a time, of each kind."""

SOON_S = 5.0
"""How long the others wait for a replica that is asked for its metrics."""


class RayReplicas:
    """The replicas, by way of Ray Serve."""

    def __init__(self, engines: DeploymentHandle[Any]) -> None:
        self._streams = engines.options(stream=True)
        self._engines = engines
        self._tellers = DaemonThreads(TOLD_AT_ONCE, "ragcache-telling")
        self._askers = DaemonThreads(TOLD_AT_ONCE, "ragcache-asking")

    async def send(self, request: FleetRequest) -> AsyncGenerator[AnswerHead | bytes, None]:
        """See Replicas. One that shows no sign of life for SILENT_S is lost, too, and avoided then."""
        number = WATCH.begin()
        answer: Any = self._streams.answer.remote(replace(request, number=number))
        is_whole = False
        try:
            yield await self._first_part(answer, number)
            while True:
                try:
                    async with asyncio.timeout(SILENT_S):
                        part = await anext(answer)
                except TimeoutError:
                    raise ReplicaAway(_describe_silent(number)) from None
                WATCH.hear(number)
                yield part
        except StopAsyncIteration:
            is_whole = True
        except (BackPressureError, DeploymentUnavailableError) as error:
            raise FleetBusy(str(error)) from error
        except RayTaskError as error:
            for kind in (ReplicaAway, ReplicaLost):
                if isinstance(error.cause, kind) or isinstance(error, kind):
                    raise kind(str(error.cause)) from error
            raise
        except RayActorError as error:
            raise ReplicaLost(str(error)) from error
        finally:
            if not is_whole:
                answer.cancel()
            WATCH.end(number)

    async def _first_part(self, answer: Any, number: int) -> AnswerHead | bytes:
        """Wait for what a replica says first; as long as it takes until one has room for the request."""
        coming = asyncio.ensure_future(anext(answer))
        try:
            while not coming.done():
                await asyncio.wait({coming}, timeout=SILENT_S / 4)
                if not coming.done() and WATCH.is_overdue(number):
                    raise ReplicaAway(_describe_silent(number))
            WATCH.hear(number)
            first: AnswerHead | bytes = coming.result()
            return first
        finally:
            coming.cancel()

    async def send_to_all(self, request: FleetRequest) -> Sequence[tuple[AnswerHead, bytes]]:
        """See Replicas. A replica that dies meanwhile has nothing left to forget in its memory.

        One that lives and does not answer is asked again, and all others with it: what goes to all may
        come twice. If it never answers, the caller hears of it, because it still has what it should
        forget.
        """
        for attempt in range(BROADCAST_ATTEMPTS):
            if attempt:
                await asyncio.sleep(BROADCAST_PAUSE_S)
            told, silent = [], []
            try:
                answers = self._engines.broadcast("answer_whole", request)
                told = await self._tellers.run(
                    partial(answers.results, timeout_s=TOLD_S, return_exceptions=True)
                )
            except TimeoutError:
                raise ReplicaLost(f"some replicas did not answer within {TOLD_S:.0f} s") from None
            except DeploymentUnavailableError:
                continue
            whole = [one for one in told if not isinstance(one, BaseException)]
            silent = [one for one in told if isinstance(one, Exception) and not _is_dead(one)]
            if whole and not silent:
                return whole
        raise ReplicaLost(
            f"{len(silent)} of {len(told)} replicas did not answer: {silent[0]}; ask again"
            if silent
            else "no replica answered"
        )

    async def ask_each(self, request: FleetRequest) -> Sequence[NamedAnswer]:
        """See Replicas. A replica that is slow or dying is left out."""
        try:
            answers = self._engines.broadcast("answer_named", request)
            told = await self._askers.run(
                partial(answers.results, timeout_s=SOON_S, return_exceptions=True)
            )
        except (TimeoutError, DeploymentUnavailableError) as error:
            raise ReplicaLost("Ray Serve passed nothing on to the replicas") from error
        whole = [one for one in told if isinstance(one, NamedAnswer)]
        if not whole:
            raise ReplicaLost(f"none of {len(told)} replicas answered within {SOON_S:.0f} s")
        return whole


def _describe_silent(number: int) -> str:
    """Note that the replica that has a request is silent, and say so.

    The request is no reason for that: the replica's server may take as long as it likes.
    """
    name = WATCH.note_silent(number)
    return f"the replica {name or 'that had the request'} has shown no sign of life for {SILENT_S:.0f} s"


def _is_dead(error: Exception) -> bool:
    return isinstance(error, ActorDiedError)


@serve.ingress()
class Ingress:
    """The door of the fleet, as Ray Serve runs it."""

    def __init__(
        self, settings: FleetSettings, engines: DeploymentHandle[Any], operator_key: str | None
    ) -> None:
        self._doors = make_doors(settings, RayReplicas(engines), operator_key)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._doors


def make_doors(
    settings: FleetSettings, replicas: RayReplicas, operator_key: str | None = None
) -> FleetDoors:
    """Make the doors of a fleet. operator_key: None for the one of this machine's environment.

    Raises ConfigError for keys that cannot be used.
    """
    file = Path(settings.keys_file) if settings.keys_file else None
    keys = Keys(file, operator_key or os.environ.get(OPERATOR_KEY))
    limits = Limits(requests=settings.most_requests_of_a_door)
    if settings.max_body_bytes is not None:
        limits = replace(limits, body_bytes=settings.max_body_bytes)
    if settings.max_corpora_bytes is not None:
        limits = replace(limits, corpora_bytes=settings.max_corpora_bytes)

    def find_keys(scope: Scope) -> Keys:
        return keys

    corpora = Corpora(limits.corpora_bytes)
    if settings.corpora_folder:
        read_corpora(Path(settings.corpora_folder), corpora)
    return FleetDoors(replicas, limits, find_keys, corpora)
