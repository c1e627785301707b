"""The door of a fleet: keys and limits as on a single server, and answers that outlive a replica.

It lets requests in as a server of `ragcache serve` does, and sends them to a replica, whose own doors
then put the tenant of the key into them. A replica that dies loses no answer: the request is sent again,
and of an answer that had begun only the rest is passed on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from math import inf
from random import SystemRandom
from string import printable
from typing import Any
from urllib.parse import quote

from prometheus_client import CONTENT_TYPE_LATEST as PLAIN_TEXT
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.errors import (
    AnswersDiffer,
    GenerationFailed,
    InvalidArgument,
    KeyRefused,
    RAGCacheError,
    ServerBusy,
)
from ragcache_engine.fleet.routing import ROUTINGS
from ragcache_engine.fleet_serving.fleet_metrics import METRICS_PATH, join_metrics
from ragcache_engine.fleet_serving.request_paths import NOTHING, Routable, read_routable
from ragcache_engine.fleet_serving.resuming import EventReader, SentAnswer
from ragcache_engine.fleet_serving.wire import (
    RECEIVED,
    AnswerHead,
    FleetBusy,
    FleetRequest,
    ReplicaAway,
    ReplicaFailed,
    ReplicaLost,
    Replicas,
)
from ragcache_engine.serving.doors import (
    FREE_PATHS,
    KEY_HEADERS,
    Doors,
    Taken,
    is_corpus,
    read_key,
    refusal,
)
from ragcache_engine.serving.keys import Caller, Keys
from ragcache_engine.serving.messages import ALIVE_S, CORPORA, PREFIX, error_to_json
from ragcache_engine.serving.openai_bodies import CHAT, COMPLETIONS, count_answers
from ragcache_engine.serving.routes import Served
from ragcache_engine.serving.settings import Limits

logger = logging.getLogger(__name__)

ATTEMPTS = 12
"""How often a request is sent while the replicas that are to have it are lost before they do."""

FAILED_ATTEMPTS, ENDED_ATTEMPTS = 3, 2
"""How often a request is sent if replicas fail at it (HTTP 500), and how often if they end with it. The
request may be the reason, and each replica that ends loads its model anew."""

WAIT_S, LONGEST_WAIT_S = 0.3, 3.0
"""Seconds before a request is sent again, longer each time."""

GENERATE = f"{PREFIX}/generate"
CONTINUED = {COMPLETIONS, CHAT, GENERATE}
"""The paths whose streams another replica can continue: their events say what they add to the answer."""

HEALTH = FleetRequest("GET", "/health", (), b"", NOTHING)
HEALTH_S = 1.0
"""How long an answer to it holds."""

TO_ALL = {f"{PREFIX}/forget", f"{PREFIX}/clear"}
"""What every replica has to do."""

HOP_HEADERS = {"host", "content-length", "connection", "transfer-encoding", "keep-alive", "upgrade"}
"""Headers of one connection, which the next one has its own of."""

ROUTING_HEADER = "x-ragcache-routing"
"""With it an operator has one request routed otherwise, to compare routings on one fleet."""

FOUND_AT_ONCE = 2
"""In how many prompts registered documents are looked for at a time."""

JOINED_AT_ONCE = 1
"""How many pages of metrics are joined at a time."""

LARGEST_SEED = 2**31 - 1


class FleetDoors(Doors):
    """Lets requests in, and has the fleet answer them."""

    def __init__(
        self,
        replicas: Replicas,
        limits: Limits,
        find_keys: Callable[[Scope], Keys],
        corpora: Corpora | None = None,
    ) -> None:
        super().__init__(self._answer_free_path, limits, find_keys, _serve_nothing)
        self._replicas = replicas
        self._corpora = corpora or Corpora()
        self._finders = DaemonThreads(FOUND_AT_ONCE, "ragcache-finding")
        self._seeds = SystemRandom()
        self._joiners = DaemonThreads(JOINED_AT_ONCE, "ragcache-metrics")
        self._looking = asyncio.Lock()
        self._looked_s = -inf
        self._is_well = False

    async def _pass(self, taken: Taken, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a replica answer, until the reader leaves."""
        answering = asyncio.ensure_future(self._answer(taken, scope, send))
        leaving = asyncio.ensure_future(_wait_until_left(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        return None

    async def _answer(self, taken: Taken, scope: Scope, send: Send) -> None:
        path, caller, body, place = taken
        said = _read_object(body)
        if place is not None:
            place.widen(count_answers(said))
        if is_corpus(path) and (scope["method"] != "GET" or _asks_what_is_kept(path)):
            await refusal(_fixed_corpora())(scope, _never, send)
            return None
        request = await self._describe(path, caller, body, said, scope)
        try:
            if path in TO_ALL:
                caller.require_operator(f"use {path}")
                return await self._tell_all(request, scope, send)
            if path.rstrip("/") == METRICS_PATH and scope["method"] == "GET":
                return await self._show_metrics(request, scope, send)
            await self._relay(request, scope, send, can_continue=path in CONTINUED)
        except FleetBusy as error:
            busy = ServerBusy(f"all replicas have as many requests as they take: {error}")
            await refusal(busy)(scope, _never, send)
        except ReplicaLost as error:
            lost = GenerationFailed(f"not every replica was told: {error}; ask again")
            await refusal(lost)(scope, _never, send)
        return None

    async def _take_corpus(
        self, path: str, caller: Caller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        await self._refuse(_fixed_corpora(), scope, receive, send)

    async def _read_routable(self, said: dict[str, Any], caller: Caller) -> Routable:
        if not said:
            return Routable()
        if not self._corpora.has_some_for(caller.tenant):
            return read_routable(said, caller.tenant)
        find = partial(self._corpora.find, caller.tenant)
        return await self._finders.run(partial(read_routable, said, caller.tenant, find))

    async def _describe(
        self, path: str, caller: Caller, body: bytes, said: dict[str, Any], scope: Scope
    ) -> FleetRequest:
        if _seed_if_drawn(path, said, self._seeds):
            body = json.dumps(said).encode()
        routable = await self._read_routable(said, caller)
        target, query = quote(path), quote(scope.get("query_string", b""), safe=printable)
        routing = Headers(scope=scope).get(ROUTING_HEADER)
        by_operator = self._has_operators_key(scope)
        left_out = {*HOP_HEADERS, *KEY_HEADERS} if by_operator else HOP_HEADERS
        return FleetRequest(
            scope["method"],
            f"{target}?{query}" if query else target,
            tuple(
                (name, value)
                for name, value in Headers(scope=scope).items()
                if name not in left_out
            ),
            body,
            routable.path,
            routable.prompt,
            routable.documents,
            routing if caller.is_operator and routing in ROUTINGS else None,
            by_operator,
        )

    def _has_operators_key(self, scope: Scope) -> bool:
        """Return whether an operator's key came with a request, on whatever path."""
        try:
            return self._find_keys(scope).caller(read_key(scope)).is_operator
        except KeyRefused:
            return False

    async def _tell_all(self, request: FleetRequest, scope: Scope, send: Send) -> None:
        """Pass a request to every replica; the answer is the first one, or the first refusal."""
        answers = await self._replicas.send_to_all(request)
        refused = [answer for answer in answers if answer[0].status != 200]
        head, body = (refused or list(answers) or [(AnswerHead(200, ()), b"{}")])[0]
        content = json.loads(body)
        if not refused and "cleared" in content:
            content["cleared"] = all(json.loads(each).get("cleared") for _, each in answers)
        await JSONResponse(content, head.status)(scope, _never, send)

    async def _show_metrics(self, request: FleetRequest, scope: Scope, send: Send) -> None:
        """Answer with the metrics of all replicas, or with the first refusal."""
        key = tuple(header for header in request.headers if header[0] == "authorization")
        # A server may have a newer format for those who accept it; one page is made of the plain one.
        asked = replace(request, headers=(*key, ("accept", "text/plain")))
        answers = await self._replicas.ask_each(asked)
        pages = {one.replica: one.body.decode() for one in answers if one.head.status == 200}
        if pages:
            page = await self._joiners.run(partial(join_metrics, pages))
            answer = Response(page, media_type=PLAIN_TEXT)
        else:
            refused = answers[0]
            answer = Response(refused.body, refused.head.status, media_type="application/json")
        await answer(scope, _never, send)

    async def _relay(
        self, request: FleetRequest, scope: Scope, send: Send, *, can_continue: bool
    ) -> None:
        is_ours = request.target.partition("?")[0] == GENERATE
        relay = _Relay(send, can_continue=can_continue, is_ours=is_ours)
        showing = asyncio.ensure_future(relay.show_signs_of_life())
        try:
            await self._relay_to(relay, request, scope)
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    async def _relay_to(self, relay: _Relay, request: FleetRequest, scope: Scope) -> None:
        for attempt in range(ATTEMPTS):
            try:
                if attempt:
                    relay.begin_again()
                    await asyncio.sleep(min(WAIT_S * attempt, LONGEST_WAIT_S))
                async with aclosing(self._replicas.send(request)) as parts:
                    async for part in parts:
                        await relay.take(part)
                return await relay.end()
            except ReplicaLost as error:
                logger.warning("attempt %d lost its replica: %s", attempt + 1, error)
                if relay.gives_up_after(error):
                    lost = (
                        f"{relay.failed} replicas failed or ended while they had this request, and it is "
                        f"sent to no further one: their logs say why; ask for something shorter"
                    )
                    return await relay.fail(GenerationFailed(lost), scope)
            except FleetBusy:
                if not attempt and not relay.has_begun:
                    raise
            except GenerationFailed as error:
                return await relay.fail(error, scope)
        lost = f"the request was sent {ATTEMPTS} times, and no replica could take it: ask again"
        return await relay.fail(GenerationFailed(lost), scope)

    async def _answer_free_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what a load balancer asks, and a server that starts or ends; refuse all else."""
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        status = 404
        if scope["type"] == "http" and scope["path"] in FREE_PATHS:
            status = 200 if await self._has_a_replica() else 503
        await JSONResponse({}, status)(scope, receive, send)

    async def _has_a_replica(self) -> bool:
        """Return whether a replica is well, as of HEALTH_S ago at most, however many ask."""
        async with self._looking:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._looked_s > HEALTH_S:
                try:
                    answers = await self._replicas.ask_each(HEALTH)
                    self._is_well = any(one.head.status == 200 for one in answers)
                except ReplicaLost:
                    self._is_well = False
                self._looked_s = asyncio.get_running_loop().time()
        return self._is_well


class _Relay:
    """Hands one answer to the reader: events of a stream as they come, all else once it is whole.

    is_ours: whether our own client reads it, which takes events without text for signs of life.
    failed: how many replicas have failed at it so far, or ended with it.
    has_begun: whether the reader has anything of it.
    """

    def __init__(self, send: Send, *, can_continue: bool, is_ours: bool = False) -> None:
        self._sending = send
        self._can_continue = can_continue
        self._is_ours = is_ours
        self._turn = asyncio.Lock()
        self._sent_s = asyncio.get_running_loop().time()
        self._is_over = False
        self._sent = SentAnswer()
        self._events = EventReader()
        self._head: AnswerHead | None = None
        self._parts: list[bytes] = []
        self._is_stream = self._streams = False
        self.has_begun = False
        self.failed = self._ended = 0
        self._is_received = False  # by the replica of this attempt

    async def show_signs_of_life(self) -> None:
        """Tell a stream's reader that it is still waited for, wherever nothing has come for ALIVE_S.

        As where a replica was lost, and another one has to start. Runs until it is cancelled.
        """
        sign = b": still waiting\n\n" + (b'data: {"text": ""}\n\n' if self._is_ours else b"")
        while True:
            now_s = asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, self._sent_s + ALIVE_S - now_s))
            if asyncio.get_running_loop().time() < self._sent_s + ALIVE_S:
                continue
            async with self._turn:
                if self._is_ours and not self.has_begun:
                    await self._start(AnswerHead(200, (("content-type", "text/event-stream"),)))
                if self._streams and not self._is_over:
                    await self._send(
                        {"type": "http.response.body", "body": sign, "more_body": True}
                    )
            self._sent_s = asyncio.get_running_loop().time()

    async def _send(self, message: Message) -> None:
        self._sent_s = asyncio.get_running_loop().time()
        await self._sending(message)

    def gives_up_after(self, error: ReplicaLost) -> bool:
        """Count a failed attempt; return whether the request is to be sent to no further replica."""
        if not isinstance(error, ReplicaAway):
            self.failed += 1
            self._ended += self._is_received and not isinstance(error, ReplicaFailed)
        self._is_received = False
        return self.failed == FAILED_ATTEMPTS or self._ended == ENDED_ATTEMPTS

    def begin_again(self) -> None:
        """Begin a further attempt. Raises AnswersDiffer if the reader has what it cannot continue."""
        if self.has_begun and not self._can_continue:
            raise AnswersDiffer(
                "the replica was lost in the middle of this answer, and streams of this path cannot be "
                "continued: ask again"
            )
        self._sent.begin_again()
        self._events = EventReader()
        self._head, self._parts = None, []

    async def take(self, part: AnswerHead | bytes) -> None:
        """Take the next part of an attempt. Raises ReplicaLost if it tells of a server that died."""
        self._is_received = True
        if part == RECEIVED:
            return
        if isinstance(part, AnswerHead):
            if part.status >= 500 and self.failed + 1 < FAILED_ATTEMPTS:
                raise ReplicaFailed(f"the server answered with HTTP {part.status}")
            self._head = part
            self._is_stream = (
                dict(part.headers).get("content-type", "").startswith("text/event-stream")
            )
        elif self._is_stream:
            for event in self._events.feed(part):
                await self._take_event(event)
        else:
            self._parts.append(part)

    async def end(self) -> None:
        """Finish the answer."""
        if self._head is None:
            raise ReplicaLost("the replica ended its answer before it began")
        body = b"".join(self._parts)
        async with self._turn:
            await self._end(self._head, body)

    async def _end(self, head: AnswerHead, body: bytes) -> None:
        self._is_over = True
        if not self.has_begun:
            await self._start(head)
        elif not self._is_stream:
            # An earlier attempt began a stream, and the last one was refused: the reader is told there.
            said = _read_object(body) or {"error": body.decode(errors="replace")}
            body = f"data: {json.dumps(said, separators=(',', ':'))}\n\n".encode()
        await self._send({"type": "http.response.body", "body": body})

    async def fail(self, error: RAGCacheError, scope: Scope) -> None:
        """End the answer with an error, in the way that is still open."""
        async with self._turn:
            await self._fail(error, scope)

    async def _fail(self, error: RAGCacheError, scope: Scope) -> None:
        self._is_over = True
        if not self.has_begun:
            await refusal(error)(scope, _never, self._send)
            return
        said = json.dumps(error_to_json(error), separators=(",", ":"))
        body = f"data: {said}\n\n".encode()
        await self._send({"type": "http.response.body", "body": body})

    async def _take_event(self, event: bytes) -> None:
        name, _, data = event.partition(b":")
        text = data.strip()
        if name != b"data" or text == b"[DONE]":
            return await self._write(event)
        said = _read_object(text)
        if _tells_of_death(said):
            raise ReplicaLost(f"the server's model ended: {said['error']}")
        left = self._sent.take(said)
        if left is not None:
            written = json.dumps(left, separators=(",", ":"), ensure_ascii=False).encode()
            await self._write(b"data: " + written)
        return None

    async def _write(self, event: bytes) -> None:
        body = event + b"\n\n"
        async with self._turn:
            if not self.has_begun:
                assert self._head is not None
                await self._start(self._head)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _start(self, head: AnswerHead) -> None:
        self.has_begun = True
        kind = dict(head.headers).get("content-type", "")
        self._streams = kind.startswith("text/event-stream")
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in head.headers
            if name.lower() not in HOP_HEADERS
        ]
        await self._send({"type": "http.response.start", "status": head.status, "headers": headers})


def _tells_of_death(said: dict[str, Any]) -> bool:
    """Return whether an event is the error of a server whose model has ended."""
    error = said.get("error")
    if not isinstance(error, dict):
        return False
    code = error.get("code")
    return error.get("kind") in ("EngineDied", "EngineClosed") or (
        isinstance(code, int) and code >= 500
    )


def _seed_if_drawn(path: str, said: dict[str, Any], seeds: SystemRandom) -> bool:
    """Give a stream that is drawn at random a seed, so that it can be generated again."""
    if path == f"{PREFIX}/generate":
        options = said.get("options")
        if isinstance(options, dict) and options.get("temperature") and options.get("seed") is None:
            options["seed"] = seeds.randrange(LARGEST_SEED)
            return True
        return False
    if said.get("stream") is True and said.get("temperature") != 0 and said.get("seed") is None:
        said["seed"] = seeds.randrange(LARGEST_SEED)
        return True
    return False


def _read_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object; an empty one for anything else, which the replica refuses."""
    try:
        said = from_json(body)  # it goes no deeper than 200 levels
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _asks_what_is_kept(path: str) -> bool:
    return path.endswith("/kept") and path.removeprefix(CORPORA).count("/") == 2


def _fixed_corpora() -> InvalidArgument:
    return InvalidArgument(
        "a fleet knows the documents of its start, so that every replica has the same: start it with "
        "--corpus, and again when they change"
    )


async def _serve_nothing(scope: Scope) -> Served:
    raise GenerationFailed("the ingress serves no model itself")


async def _wait_until_left(receive: Receive) -> None:
    """Wait until the reader leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _never() -> Any:
    """Receive nothing: the request has been read."""
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return {"type": "http.disconnect"}
