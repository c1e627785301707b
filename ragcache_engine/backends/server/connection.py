"""Sends requests to a server over HTTP, and turns what goes wrong into the engine's own errors.

A request is sent again only if nothing of its answer has come. So nobody reads a part of an answer twice,
and a part of one answer never continues another.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from typing import Any

import httpx2

from ragcache_engine.errors import (
    BadRequest,
    EngineClosed,
    EngineDied,
    GenerationFailed,
    InvalidArgument,
    KeyRefused,
    ModelNotFound,
    OperatorsOnly,
    RAGCacheError,
    RequestTooLarge,
    ServerBusy,
    ServerLost,
    ServerUnreachable,
)
from ragcache_engine.serving.messages import LINES, error_from_json

RETRY_WAITS_S = (0.2, 1.0, 3.0)
"""Seconds before each further attempt of a request of whose answer nothing has come."""

LONGEST_WAIT_S = 10.0
"""The longest wait that a busy server may ask for."""

CONNECT_S = 10.0
CALL_S = 60.0
"""How long a short call may take: a tokenisation, for example."""

_BY_STATUS: Mapping[int, type[RAGCacheError]] = {
    401: KeyRefused,
    403: OperatorsOnly,
    404: ModelNotFound,
    413: RequestTooLarge,
    429: ServerBusy,
    503: ServerBusy,
}


class Connection:
    """The connections to one server.

    url: such as "http://host:8000". api_key: goes with every request; None: none does.
    silent_s: how long the stream of an answer may bring nothing at all; None, the default: as long as
      it likes.
    Any thread may `call`; the coroutines belong to one event loop, from `open` to `close`.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.silent_s: float | None = None
        key = (api_key or "").strip()  # from a file or a variable, it often ends in a line break
        if not key.isprintable():
            raise InvalidArgument("the API key holds characters that no HTTP header can carry")
        self._headers = {b"Authorization": f"Bearer {key}".encode()} if key else {}
        try:
            self._client = httpx2.Client(
                base_url=self.url,
                headers=self._headers,
                timeout=httpx2.Timeout(CALL_S, connect=CONNECT_S),
            )
        except httpx2.InvalidURL as error:
            raise InvalidArgument(f"{url!r} is no address of a server: {error}") from error
        base = self._client.base_url
        if base.scheme not in ("http", "https") or not base.host:
            raise InvalidArgument(f'a server is reached at "http://host:8000", not at {url!r}')
        self._loop_client: httpx2.AsyncClient | None = None

    async def open(self) -> None:
        """Get ready for coroutines."""
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx2.Timeout(CALL_S, connect=CONNECT_S, pool=None)
        self._loop_client = httpx2.AsyncClient(
            base_url=self.url, headers=self._headers, timeout=timeout, limits=limits
        )

    def end(self) -> None:
        """Close the connections of threads, for good."""
        self._client.close()

    async def close(self) -> None:
        """Close the connections of coroutines. `open` may be called again."""
        client, self._loop_client = self._loop_client, None
        if client:
            await client.aclose()

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = CALL_S) -> Any:
        """Send a request, again while nobody answers, and return its answer, read from JSON.

        body: a value, or bytes that are lines of JSON. timeout_s: how long its answer may take.
        Raises the error that the answer stands for, or ServerUnreachable.
        """
        waits = iter(RETRY_WAITS_S)
        sent: dict[str, Any] = {"timeout": httpx2.Timeout(timeout_s, connect=CONNECT_S)}
        if isinstance(body, bytes):
            sent |= {"content": body, "headers": {"Content-Type": LINES}}
        else:
            sent["json"] = body
        while True:
            try:
                answer = self._client.request(method, path, **sent)
                return self._read(answer)
            except (httpx2.TransportError, ServerBusy) as error:
                time.sleep(self._next_wait(waits, error))

    async def acall(
        self, method: str, path: str, body: Any = None, *, is_quick: bool = True
    ) -> Any:
        """Send a request: `call` for coroutines. is_quick: whether its answer must come within CALL_S."""
        waits = iter(RETRY_WAITS_S)
        while True:
            try:
                client = self._require_open()
                timeout = CALL_S if is_quick else httpx2.Timeout(None, connect=CONNECT_S)
                return self._read(await client.request(method, path, json=body, timeout=timeout))
            except (httpx2.TransportError, ServerBusy) as error:
                await asyncio.sleep(self._next_wait(waits, error))

    def lines(
        self, method: str, path: str, body: Any = None
    ) -> Generator[dict[str, Any], None, None]:
        """Send a request, and yield the JSON objects of the lines in its answer that are not empty.

        Closing the generator closes the connection, so that the server ends the request. Raises the
        error that the answer or one of its lines stands for; ServerUnreachable; ServerLost once a line
        has come.
        """
        waits = iter(RETRY_WAITS_S)
        has_begun = False
        # Not httpx2's json=, which cannot write half a surrogate pair.
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        while True:
            try:
                with self._client.stream(method, path, content=content, headers=headers) as answer:
                    if answer.status_code != 200:
                        answer.read()
                        self._read(answer)
                    for line in answer.iter_lines():
                        said = _read_object(line) if line else {}
                        if "error" in said:
                            raise read_error(answer.status_code, line, answer.headers)
                        has_begun = True
                        if said:
                            yield said
                    return
            except (httpx2.TransportError, ServerBusy) as error:
                if has_begun:
                    raise self._lost(error) from error
                time.sleep(self._next_wait(waits, error))

    async def stream(self, path: str, body: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Send a request, and yield the JSON objects of the events in its answer.

        The first object is empty: the server has taken the request.
        Closing the generator closes the connection, so that the server ends the request. Raises the
        error that the answer stands for; ServerUnreachable; ServerLost once an event has come.
        """
        waits = iter(RETRY_WAITS_S)
        timeout = httpx2.Timeout(self.silent_s, connect=CONNECT_S, write=CALL_S, pool=None)
        has_begun = False
        while True:
            try:
                client = self._require_open()
                async with client.stream("POST", path, json=body, timeout=timeout) as answer:
                    if answer.status_code != 200:
                        await answer.aread()
                        self._read(answer)
                    if not has_begun:
                        yield {}
                    async for event in httpx2.EventSource(answer):
                        has_begun = True
                        if event.data != "[DONE]":
                            yield _read_object(event.data)
                    return
            except (httpx2.TransportError, ServerBusy) as error:
                if has_begun:
                    raise self._lost(error) from error
                await asyncio.sleep(self._next_wait(waits, error))

    def _lost(self, error: Exception) -> ServerLost:
        return ServerLost(
            f"the connection to {self.url} broke in the middle of an answer ({error!r}): ask again, "
            f"once the server is up"
        )

    def _require_open(self) -> httpx2.AsyncClient:
        if self._loop_client is None:
            raise EngineClosed("the connection to the server was closed while this request ran")
        return self._loop_client

    def _next_wait(self, waits: Iterator[float], error: Exception) -> float:
        """Return how long to wait before the next attempt. Raises the error once there is none."""
        wait_s = next(waits, None)
        if isinstance(error, ServerBusy):
            if wait_s is None:
                raise error
            return min(max(wait_s, error.retry_after_s), LONGEST_WAIT_S)
        if wait_s is None or isinstance(error, httpx2.ReadTimeout | httpx2.UnsupportedProtocol):
            raise ServerUnreachable(
                f"nobody answers at {self.url} ({error!r}): is the server started, and the address right?"
            ) from error
        return wait_s

    def _read(self, answer: httpx2.Response) -> Any:
        """Return what an answer says. Raises the error that it stands for."""
        if answer.status_code != 200:
            raise read_error(answer.status_code, answer.text, answer.headers)
        try:
            return answer.json()
        except ValueError as error:
            raise ServerUnreachable(
                f"{self.url} speaks no JSON, so it is no vLLM server: is the address right?"
            ) from error


def read_error(status: int, text: str, headers: Mapping[str, str]) -> RAGCacheError:
    """Return the error that an answer with this status stands for."""
    try:
        said = json.loads(text)
    except ValueError:
        said = {"error": {"message": f"{text[:300]} (HTTP {status})"}}
    if not isinstance(said, dict):
        said = {}
    error = error_from_json(said)
    if error is None:
        error = _translate(status, said.get("error"))
    if isinstance(error, EngineDied | EngineClosed):
        # EngineDied would make this process start "its" backend again, which is the server's business.
        return ServerLost(f"the server's model ended: {error}")
    if isinstance(error, ServerBusy):
        told = headers.get("retry-after", "")
        error.retry_after_s = float(told) if told.isdigit() else 0.0
    return error


def _translate(status: int, said: Any) -> RAGCacheError:
    """Translate an error in OpenAI's form, or in any other."""
    message = said.get("message") if isinstance(said, Mapping) else said
    kind = _BY_STATUS.get(status, BadRequest if status < 500 else GenerationFailed)
    if kind is KeyRefused:
        message = f"the server refuses the key: {message}; connect with api_key=..."
    if kind is ServerBusy:
        message = f"the server takes no more requests now: {message}; ask again later"
    return kind(str(message or f"the server answered with HTTP {status}"))


def _read_object(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError as error:
        raise ServerLost(f"the server sent what is no JSON: {text[:100]!r}") from error
    if not isinstance(said, dict):
        raise ServerLost(f"the server sent {text[:100]!r} where an object was expected")
    return said
