"""The doors in front of a server: who may come in, with how much, and as whose tenant.

An ASGI middleware. It answers the paths below /ragcache itself and lets the others through to vLLM's own
server: with the tenant of the key in place of whatever the client wrote there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeAlias

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragcache_engine.errors import (
    InvalidArgument,
    KeyRefused,
    RAGCacheError,
    RequestTooLarge,
    RequestTooSlow,
)
from ragcache_engine.serving.corpus_routes import CorpusRoutes
from ragcache_engine.serving.keys import ANYBODY, Caller, Keys
from ragcache_engine.serving.messages import CORPORA, LINES, PREFIX, error_to_json
from ragcache_engine.serving.openai_answers import OpenAIAnswer
from ragcache_engine.serving.openai_bodies import (
    TENANTS_FIELDS,
    TENANTS_HEADERS,
    require_request_name,
    rewrite_body,
)
from ragcache_engine.serving.room import Place, Room
from ragcache_engine.serving.routes import Routes, Served, status_of
from ragcache_engine.serving.settings import Limits

FREE_PATHS = {"/health", "/ping"}
"""Paths that tell nothing about anybody, so that a load balancer needs no key."""

CLIENT_PATHS = {*TENANTS_FIELDS, "/v1/models", "/version"}
"""vLLM's own paths that a tenant's key opens. The others steer the server, tell of other tenants, or
share tensors among tenants; they need an operator's key."""

BODY_S = 60.0
"""How long a body may take to come. Until then its request has room that another one could use."""

EXACT_HEADER = "x-ragcache-exact"
"""With 1 or true, a request asks for an answer that borrows nothing."""

BUSY_RETRY_S = 1
"""After how many seconds a client that was refused may try again."""

FindServed: TypeAlias = Callable[[Scope], Awaitable[Served]]


class Taken(NamedTuple):
    """A request that was let in. place: the room that one with a body has."""

    path: str
    caller: Caller
    body: bytes = b""
    place: Place | None = None


class Doors:
    """Lets requests in, or answers them itself.

    find_keys: returns the server's keys. find_served: returns what the routes below /ragcache serve.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        find_keys: Callable[[Scope], Keys],
        find_served: FindServed,
    ) -> None:
        self._app = app
        self._limits = limits
        self._find_keys = find_keys
        self._find_served = find_served
        self._routes = Routes()
        self._corpus_routes = CorpusRoutes()
        self._room = Room(limits.requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._find_keys(scope)  # to read a long file takes seconds, and nobody waits yet
        if scope["type"] not in ("http", "websocket") or _is_preflight(scope):
            return await self._app(scope, receive, send)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in FREE_PATHS:
            return await self._app(scope, receive, send)
        try:
            caller = self._require_caller(scope, path)
        except KeyRefused as error:
            return await self._refuse(error, scope, receive, send)
        if scope["type"] == "websocket":
            return await self._app(scope, receive, send)
        if scope["method"] in ("PUT", "DELETE") and is_corpus(path):
            return await self._take_corpus(path, caller, scope, receive, send)
        if scope["method"] != "POST":
            try:
                if is_corpus(path):  # the longest lists are asked for there
                    with self._room.place(caller.tenant):
                        return await self._pass(Taken(path, caller), scope, receive, send)
                return await self._pass(Taken(path, caller), scope, receive, send)
            except RAGCacheError as error:
                return await self._refuse(error, scope, receive, send)
        return await self._take_in(path, caller, scope, receive, send)

    def _require_caller(self, scope: Scope, path: str) -> Caller:
        """Return who calls. Raises KeyRefused for an unknown key, and for a path that the key opens not.

        Where keys stand for no tenants, vLLM itself guards its paths.
        """
        keys, is_ours = self._find_keys(scope), _is_ours(path)
        if not is_ours and not keys.has_tenants:
            return ANYBODY
        caller = keys.caller(read_key(scope))
        if not is_ours and path not in CLIENT_PATHS:
            caller.require_operator(f"use {path}")
        return caller

    async def _take_in(
        self, path: str, caller: Caller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Read the body of a request and pass both on, while there is room for it."""
        try:
            with self._room.place(caller.tenant) as place:
                body = await read_body(scope, receive, self._limits.body_bytes)
                if body and _is_ours(path):
                    require_json(scope)
                if body is not None:
                    taken = Taken(path, caller, body, place)
                    await self._pass(taken, scope, receive, send)
        except RAGCacheError as error:
            await self._refuse(error, scope, receive, send)

    def _require_owner(self, scope: Scope, caller: Caller) -> None:
        """Raise OperatorsOnly for one who is to change nothing that is everybody's."""
        if caller.tenant is None and self._find_keys(scope).has_operators:
            caller.require_operator("change documents that are everybody's")

    async def _take_corpus(
        self, path: str, caller: Caller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Register documents while they come, as a corpus may be long; or remove some."""
        try:
            self._require_owner(scope, caller)
            with self._room.place(caller.tenant):
                served, answer = await self._find_served(scope), None
                if scope["method"] == "PUT":
                    require_kind(scope, LINES, "application/json")
                    answer = await self._corpus_routes.push(path, caller, receive, served)
                else:
                    method = scope["method"]
                    answer = await self._corpus_routes.answer(method, path, caller, b"", served)
                if answer is not None:
                    await answer(scope, receive, send)
        except RAGCacheError as error:
            await self._refuse(error, scope, receive, send)

    async def _pass(self, taken: Taken, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request below /ragcache; hand any other to the server behind the doors."""
        path, caller, body, place = taken
        if _is_ours(path):
            served = await self._find_served(scope)
            if is_corpus(path):
                if scope["method"] == "POST":
                    self._require_owner(scope, caller)
                method = scope["method"]
                answer = await self._corpus_routes.answer(method, path, caller, body, served)
            else:
                answer = await self._routes.answer(scope["method"], path, caller, body, served)
            return await answer(scope, receive, send)
        told = scope
        if caller.tenant is not None:
            scope = _confine(scope)
        if place is None:
            return await self._app(scope, receive, send)
        if (name := Headers(scope=scope).get("x-request-id")) is not None:
            require_request_name(name, "X-Request-Id")
        if path not in TENANTS_FIELDS:
            return await self._app(scope, _replay(body, receive), send)
        is_exact = Headers(scope=told).get(EXACT_HEADER, "").lower() in ("1", "true")
        return await self._pass_openai(taken, is_exact, scope, receive, send)

    async def _pass_openai(
        self, taken: Taken, is_exact: bool, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Hand one of OpenAI's requests to the server behind the doors. is_exact: as in rewrite_body."""
        path, caller, body, place = taken
        assert place is not None, "it has a body"
        served = await self._find_served(scope)
        with ExitStack() as held:
            # What was removed while this prompt was under way may have been stored by it.
            held.callback(served.begin_to_forget_owed)
            rewritten = await rewrite_body(
                path, body, caller, place, served, held, is_exact=is_exact
            )
            scope = _with_length(scope, len(rewritten.body))
            answer = OpenAIAnswer(
                send,
                is_private=caller.tenant is not None,
                borrows=bool(served.reuse),
                may_borrow=rewritten.may_borrow,
            )
            forgets = served.beginnings.forgets
            with served.occupied():
                await self._app(scope, _replay(rewritten.body, receive), answer)
                is_current = forgets == served.beginnings.forgets
                if rewritten.recognised and answer.is_well and is_current:
                    served.beginnings.note(rewritten.recognised)
                    await served.note_prompt(rewritten.recognised)

    async def _refuse(
        self, error: RAGCacheError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        await refusal(error)(scope, receive, send)


async def read_body(scope: Scope, receive: Receive, most_bytes: int) -> bytes | None:
    """Return the body of a request, or None if the client left.

    Raises RequestTooLarge, without reading it all, and RequestTooSlow.
    """
    told = Headers(scope=scope).get("content-length", "0")
    body, size_bytes = bytearray(), int(told) if told.isdigit() else 0
    try:
        async with asyncio.timeout(BODY_S):
            while size_bytes <= most_bytes:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                size_bytes = len(body)
                if size_bytes <= most_bytes and not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise RequestTooSlow(
            f"after {BODY_S:.0f} s the request had not come whole: send it at once, or a "
            f"shorter one"
        ) from None
    raise RequestTooLarge(
        f"the request has more than {most_bytes:,} bytes, the most that this server takes (--max-body): "
        f"send less at once"
    )


def refusal(error: Exception) -> Response:
    """Return the answer to a request that is refused, in OpenAI's form with the name of our error."""
    status = status_of(error)
    said: dict[str, Any] = error_to_json(error)
    said["error"] |= {"type": said["error"]["kind"], "code": status}
    headers = {
        401: {"WWW-Authenticate": "Bearer"},
        408: {"Connection": "close"},
        429: {"Retry-After": str(BUSY_RETRY_S)},
        500: {
            "X-Should-Retry": "false"
        },  # it was sent again already; OpenAI's clients ask for this
    }
    return JSONResponse(said, status, headers=headers.get(status))


def _is_preflight(scope: Scope) -> bool:
    """Return whether a browser asks what it may ask; vLLM's CORS answers that, and no path sees it."""
    headers = Headers(scope=scope)
    return (
        scope.get("method") == "OPTIONS"
        and "origin" in headers
        and "access-control-request-method" in headers
    )


def _confine(scope: Scope) -> Scope:
    """Return a tenant's request with those headers that every tenant may send."""
    kept = [(name, value) for name, value in scope["headers"] if name.lower() in TENANTS_HEADERS]
    return {**scope, "headers": kept}


def require_json(scope: Scope) -> None:
    """Raise InvalidArgument unless a body is told to be JSON."""
    require_kind(scope, "application/json")


def require_kind(scope: Scope, *kinds: str) -> None:
    """Raise InvalidArgument unless a body is told to be of one of these kinds.

    A browser sends other bodies for any page of another site, without asking this server first.
    """
    told = Headers(scope=scope).get("content-type", "").partition(";")[0]
    if told.strip().lower() not in kinds:
        raise InvalidArgument(f"a body is JSON here: send Content-Type: {kinds[0]}")


def _is_ours(path: str) -> bool:
    return path.startswith(f"{PREFIX}/")


def is_corpus(path: str) -> bool:
    """Return whether a path is one of those where documents are registered."""
    return path == CORPORA or path.startswith(f"{CORPORA}/")


KEY_HEADERS = frozenset({"authorization", "x-api-key"})
"""The headers in which a key may come."""


def read_key(scope: Scope) -> str | None:
    """Return the key of a request's header, which is UTF-8; None without one.

    Anthropic's clients send it by another name than OpenAI's.
    """
    headers = Headers(scope=scope)
    scheme, _, key = _read_utf8(headers.get("authorization", "")).partition(" ")
    if scheme.lower() != "bearer":
        key = _read_utf8(headers.get("x-api-key", ""))
    return key.strip() or None


def _read_utf8(header: str) -> str:
    return header.encode("latin-1").decode(errors="surrogateescape")


def _with_length(scope: Scope, length: int) -> Scope:
    """Return the request with another length of its body."""
    kept = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    return {**scope, "headers": [*kept, (b"content-length", str(length).encode())]}


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body first, and then what comes: the client's leaving."""
    is_given = False

    async def replayed() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
