"""What goes to every replica reaches every one that lives, or the caller hears that it did not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("ray.serve")

from ray.exceptions import ActorDiedError

from ragcache_engine.fleet.path import RoutingPath
from ragcache_engine.fleet_serving import application
from ragcache_engine.fleet_serving.application import BROADCAST_ATTEMPTS, RayReplicas
from ragcache_engine.fleet_serving.wire import AnswerHead, FleetRequest, NamedAnswer, ReplicaLost

FORGET = FleetRequest("POST", "/ragcache/forget", (), b"{}", RoutingPath((b"key",), (1,)))
DONE = (AnswerHead(200, ()), b"{}")


class Engines:
    """Stands for Serve's handle: each broadcast gets the next answers, the last ones for ever."""

    def __init__(self, *answers: Sequence[Any]) -> None:
        self._answers = list(answers)
        self.asked = 0

    def options(self, **_: Any) -> Engines:
        return self

    def broadcast(self, method: str, request: FleetRequest) -> Engines:
        assert method in ("answer_whole", "answer_named")
        self.asked += 1
        return self

    def results(self, *, return_exceptions: bool, timeout_s: float | None = None) -> Sequence[Any]:
        assert return_exceptions
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def send(engines: Engines) -> Sequence[Any]:
    return asyncio.run(RayReplicas(engines).send_to_all(FORGET))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "BROADCAST_PAUSE_S", 0.0)


def test_the_answers_of_all_come_back():
    engines = Engines([DONE, DONE])
    assert send(engines) == [DONE, DONE]
    assert engines.asked == 1


def test_a_dead_replica_has_nothing_left_to_forget():
    engines = Engines([DONE, ActorDiedError()])
    assert send(engines) == [DONE]
    assert engines.asked == 1


def test_a_replica_that_lives_and_does_not_answer_is_asked_again():
    engines = Engines([DONE, ReplicaLost("its server broke off")], [DONE, DONE])
    assert send(engines) == [DONE, DONE]
    assert engines.asked == 2


def test_one_that_never_answers_is_no_success():
    engines = Engines([DONE, ReplicaLost("its server broke off")])
    with pytest.raises(ReplicaLost, match="1 of 2 replicas did not answer: its server broke off"):
        send(engines)
    assert engines.asked == BROADCAST_ATTEMPTS


def test_no_replica_at_all_is_no_success():
    with pytest.raises(ReplicaLost, match="no replica answered"):
        send(Engines([]))


def test_those_that_answer_are_heard_and_the_others_left_out():
    named = NamedAnswer("a", *DONE)
    engines = Engines([TimeoutError(), named, ActorDiedError()])
    assert asyncio.run(RayReplicas(engines).ask_each(FORGET)) == [named]  # type: ignore[arg-type]
    assert engines.asked == 1
    with pytest.raises(ReplicaLost, match="none of 1 replicas answered"):
        asyncio.run(RayReplicas(Engines([TimeoutError()])).ask_each(FORGET))  # type: ignore[arg-type]
