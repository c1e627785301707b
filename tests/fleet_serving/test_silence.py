"""A replica whose host no longer answers is lost to its requests before their readers give up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

pytest.importorskip("ray.serve")

from ragcache_engine.fleet.path import RoutingPath
from ragcache_engine.fleet_serving import application, silence
from ragcache_engine.fleet_serving.application import RayReplicas
from ragcache_engine.fleet_serving.silence import AVOIDED_S, SILENT_S, WATCH, ReplicaWatch
from ragcache_engine.fleet_serving.wire import (
    RECEIVED,
    AnswerHead,
    FleetRequest,
    ReplicaAway,
)

ASK = FleetRequest("POST", "/v1/completions", (), b"{}", RoutingPath((b"key",), (1,)))
HEAD = AnswerHead(200, ())


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class TestReplicaWatch:
    def test_a_request_that_was_sent_long_ago_is_overdue(self) -> None:
        clock = Clock()
        watch = ReplicaWatch(clock)
        number = watch.begin()
        clock.now += 10 * SILENT_S
        assert not watch.is_overdue(number), "it may still wait for a replica"
        watch.assign(number, "one")
        clock.now += SILENT_S / 2
        assert not watch.is_overdue(number)
        clock.now += SILENT_S
        assert watch.is_overdue(number)
        watch.end(number)
        assert not watch.is_overdue(number)

    def test_a_silent_replica_is_avoided_for_a_while_or_until_it_is_heard(self) -> None:
        clock = Clock()
        watch = ReplicaWatch(clock)
        first, second = watch.begin(), watch.begin()
        for number in (first, second):
            watch.assign(number, "one")
        clock.now += SILENT_S
        assert watch.note_silent(first) == "one"
        assert watch.is_silent("one")
        assert not watch.is_silent("two")
        watch.hear(second)
        assert not watch.is_silent("one")
        assert watch.note_silent(first) == "", "another request has just heard of it"
        clock.now += SILENT_S
        assert watch.note_silent(second) == "one"
        clock.now += AVOIDED_S
        assert not watch.is_silent("one")

    def test_nothing_is_remembered_of_what_has_ended(self) -> None:
        watch = ReplicaWatch(Clock())
        number = watch.begin()
        watch.assign(number, "one")
        watch.hear(number)
        watch.end(number)
        watch.assign(number, "one")  # the router was late
        watch.keep_only(())
        assert {*watch._assigned, *watch._heard, *watch._silent} == set()

    def test_a_request_that_no_replica_has_makes_none_silent(self) -> None:
        watch = ReplicaWatch(Clock())
        assert watch.note_silent(watch.begin()) == ""


class Answer:
    """Stands for Ray's generator: yields these parts, then nothing more or its end."""

    def __init__(self, parts: list[Any], ends: bool, routed_to: str | None) -> None:
        self._parts, self._ends, self._routed_to = parts, ends, routed_to
        self.is_cancelled = False

    def remote(self, request: FleetRequest) -> Answer:
        if self._routed_to:
            WATCH.assign(request.number, self._routed_to)
        self._coming = self._read()
        return self

    async def _read(self) -> AsyncGenerator[Any, None]:
        for part in self._parts:
            await asyncio.sleep(0.02)
            yield part
        if not self._ends:
            await asyncio.sleep(60)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._coming

    async def __anext__(self) -> Any:
        return await anext(self._coming)

    def cancel(self) -> None:
        self.is_cancelled = True


class Engines:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def options(self, **_: Any) -> Engines:
        return self


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (application, silence):
        monkeypatch.setattr(module, "SILENT_S", 0.1)


async def read(answer: Answer, taken: list[Any]) -> None:
    async for part in RayReplicas(Engines(answer)).send(ASK):  # type: ignore[arg-type]
        taken.append(part)


@pytest.mark.usefixtures("soon")
class TestSending:
    async def test_an_answer_with_signs_of_life_takes_as_long_as_it_takes(self) -> None:
        parts = [RECEIVED, *[RECEIVED] * 9, HEAD, b"x"]
        taken: list[Any] = []
        await read(answer := Answer(parts, True, "well"), taken)
        assert taken == parts
        assert not answer.is_cancelled
        assert not WATCH.is_silent("well")

    async def test_a_replica_that_falls_silent_in_an_answer_is_lost(self) -> None:
        taken: list[Any] = []
        answer = Answer([RECEIVED, HEAD], False, "mute")
        with pytest.raises(ReplicaAway, match="mute has shown no sign of life"):
            await read(answer, taken)
        assert taken == [RECEIVED, HEAD]
        assert answer.is_cancelled
        assert WATCH.is_silent("mute")

    async def test_one_that_never_takes_its_request_is_away(self) -> None:
        with pytest.raises(ReplicaAway, match="cut off has shown no sign of life"):
            await read(Answer([], False, "cut off"), [])
        assert WATCH.is_silent("cut off")

    async def test_a_request_waits_for_room_as_long_as_it_has_to(self) -> None:
        reading = asyncio.ensure_future(read(Answer([], False, None), []))
        await asyncio.sleep(0.5)
        assert not reading.done()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
