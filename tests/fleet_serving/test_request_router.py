"""Ray's interface for routers is alpha: these tests notice when what we use of it moves."""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve")

from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest, RequestRouter

from ragcache_engine.fleet import path_of_parts
from ragcache_engine.fleet_serving.application import ROUTER
from ragcache_engine.fleet_serving.request_router import FleetRouter
from ragcache_engine.fleet_serving.silence import WATCH
from ragcache_engine.fleet_serving.wire import FleetRequest


def parameters(name: str) -> list[str]:
    return list(inspect.signature(getattr(RequestRouter, name)).parameters)


def test_the_methods_that_ours_replaces_are_there_with_the_same_parameters():
    for name in (
        "initialize_state",
        "update_replicas",
        "choose_replicas",
        "on_replica_actor_died",
        "on_request_routed",
        "on_request_completed",
    ):
        ours = list(inspect.signature(getattr(FleetRouter, name)).parameters)
        assert ours == parameters(name), name


def test_ray_finds_the_class_by_its_name():
    module, _, name = ROUTER.partition(":")
    assert (module, name) == (FleetRouter.__module__, FleetRouter.__name__)
    assert (
        RequestRouterConfig(request_router_class=ROUTER).get_request_router_class() is FleetRouter
    )


def replica(name: str, **stats: Any) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), routing_stats=stats)


def pending(*documents: str) -> PendingRequest:
    path = path_of_parts(None, ("system", 5), [(name, 50) for name in documents])
    request = FleetRequest("POST", "/", (), b"", path)
    return PendingRequest(args=[request], kwargs={}, metadata=None)  # type: ignore[arg-type]


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> FleetRouter:
    monkeypatch.setattr(RequestRouter, "update_replicas", lambda self, replicas: None)
    made = FleetRouter.__new__(FleetRouter)
    made.initialize_state(routing="documents")
    made.update_replicas([replica("one"), replica("two")])
    return made


async def chosen(router: FleetRouter, *documents: str) -> list[str]:
    ranks = await router.choose_replicas([replica("one"), replica("two")], pending(*documents))
    return [rank[0].replica_id.unique_id for rank in ranks]


async def test_every_replica_has_a_rank_and_the_chosen_one_comes_first(router: FleetRouter):
    ranks = await chosen(router, "a", "b")
    assert sorted(ranks) == ["one", "two"]
    assert await router.choose_replicas([], pending("a")) == []
    router.on_request_routed(pending("a", "b"), replica(ranks[1]).replica_id, None)
    assert (await chosen(router, "a", "b"))[0] == ranks[1]  # which holds it now


async def test_a_silent_replica_comes_last_until_it_is_heard(router: FleetRouter):
    home, other = await chosen(router, "a", "b")
    asked = pending("a", "b")
    request = replace(asked.args[0], number=WATCH.begin())
    asked = PendingRequest(args=[request], kwargs={}, metadata=None)  # type: ignore[arg-type]
    router.on_request_routed(asked, replica(home).replica_id, None)
    assert WATCH.note_silent(request.number) == home
    assert await chosen(router, "a", "b") == [other, home]
    WATCH.hear(request.number)
    assert await chosen(router, "a", "b") == [home, other]


async def test_what_a_replica_says_is_gone_is_believed(router: FleetRouter):
    home, other = await chosen(router, "a", "b")
    asked = pending("a", "b")
    router.on_request_routed(asked, replica(other).replica_id, None)
    router.on_request_completed(replica(other).replica_id, "x")
    gone = list(asked.args[0].path.keys)
    router.update_replicas([replica(home), replica(other, report=1, gone=gone)])
    assert (await chosen(router, "a", "b"))[0] == home


async def test_a_report_that_ray_repeats_is_believed_once(router: FleetRouter):
    home, other = await chosen(router, "a", "b")
    asked = pending("a", "b")
    told = replica(other, report=1, gone=list(asked.args[0].path.keys))
    router.update_replicas([replica(home), told])
    router.on_request_routed(asked, replica(other).replica_id, None)
    router.on_request_completed(replica(other).replica_id, "x")
    router.update_replicas([replica(home), told])
    assert (await chosen(router, "a", "b"))[0] == other  # which holds it again


async def test_a_request_that_is_none_of_ours_goes_somewhere(router: FleetRouter):
    other = PendingRequest(args=["other"], kwargs={}, metadata=None)  # type: ignore[arg-type]
    assert await router.choose_replicas([replica("one")], other)
    assert await router.choose_replicas([replica("one")], None)
