"""A replica: keeps one server alive, passes requests on to it, and says what it holds."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from secrets import token_urlsafe
from typing import Any

import httpx2
from ray import serve

from ragcache_engine.fleet_serving.asked_documents import AskedDocuments
from ragcache_engine.fleet_serving.fleet_settings import FleetSettings
from ragcache_engine.fleet_serving.server_process import ServerProcess
from ragcache_engine.fleet_serving.silence import BEAT_S
from ragcache_engine.fleet_serving.wire import (
    RECEIVED,
    AnswerHead,
    FleetRequest,
    Headers,
    NamedAnswer,
    ReplicaAway,
    ReplicaLost,
)
from ragcache_engine.serving.keys import name_by_digest
from ragcache_engine.serving.routes import with_signs_of_life
from ragcache_engine.serving.settings import OPERATOR_KEY
from ragcache_engine.tiers.tree_snapshot import MOST_DOCUMENTS, TreeSnapshot

logger = logging.getLogger(__name__)

SERVER_ENDED = 70
"""The exit status of a replica whose server ended."""


class EngineReplica:
    """Runs as an actor of Ray Serve. See the module."""

    def __init__(self, settings: FleetSettings) -> None:
        self._asked = AskedDocuments()
        self._reports = 0
        self._is_stopping = False
        # What operators send, and what this replica itself asks, has a key that only its server knows.
        token = token_urlsafe()
        self._proof = ("authorization", f"Bearer {token}")
        environment = {**_environment(settings), OPERATOR_KEY: name_by_digest(token)}
        self._server = ServerProcess(settings.server_arguments, environment)
        self._server.wait_until_ready(settings.start_s)
        threading.Thread(target=self._die_with_server, daemon=True).start()
        self._client = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(
                uds=self._server.socket, limits=httpx2.Limits(max_connections=None)
            ),
            base_url="http://replica",
            timeout=httpx2.Timeout(None, connect=10.0),
        )

    async def answer(self, request: FleetRequest) -> AsyncGenerator[AnswerHead | bytes, None]:
        """Pass a request on to the server; yield its answer's head, then its body. Closing ends it."""
        self._asked.begin(request, time.monotonic())
        try:
            yield RECEIVED
            async with aclosing(with_signs_of_life(self._pass_on(request), BEAT_S)) as parts:
                async for part in parts:
                    yield RECEIVED if part is None else part
        except httpx2.ConnectError as error:
            raise ReplicaAway(f"its server does not listen: {error!r}") from error
        except httpx2.TransportError as error:
            raise ReplicaLost(f"its server broke off: {error!r}") from error
        finally:
            self._asked.end(request, time.monotonic())

    async def _pass_on(self, request: FleetRequest) -> AsyncGenerator[AnswerHead | bytes, None]:
        async with self._client.stream(
            request.method,
            request.target,
            headers=self._headers_of(request),
            content=request.body,
        ) as answer:
            if answer.status_code >= 500:
                await self._end_if_ill()
            yield _head_of(answer)
            async for part in answer.aiter_bytes():
                if b'"error"' in part:
                    await self._end_if_ill()
                yield part

    async def answer_whole(self, request: FleetRequest) -> tuple[AnswerHead, bytes]:
        """Pass a request on to the server, and return its whole answer."""
        try:
            answer = await self._client.request(
                request.method,
                request.target,
                headers=self._headers_of(request),
                content=request.body,
            )
        except httpx2.TransportError as error:
            raise ReplicaLost(f"its server broke off: {error!r}") from error
        return _head_of(answer), answer.content

    async def answer_named(self, request: FleetRequest) -> NamedAnswer:
        """Pass a request on to the server, and return its whole answer with the name of this replica."""
        head, body = await self.answer_whole(request)
        return NamedAnswer(serve.get_replica_context().replica_tag, head, body)

    async def check_health(self) -> None:
        """Raise if the server answers no more; Ray Serve then makes another replica."""
        answer = await self._client.get("/health", timeout=10.0)
        if answer.status_code != 200:
            raise ReplicaLost(f"its server is ill: HTTP {answer.status_code}")

    async def _end_if_ill(self) -> None:
        """End this process if its server's model has died.

        Such a server lives on for some seconds and refuses everything at once, so that it looks idle.
        """
        try:
            await self.check_health()
        except (httpx2.TransportError, ReplicaLost) as error:
            logger.error("this replica ends: %r", error)
            os._exit(SERVER_ENDED)

    async def record_routing_stats(self) -> dict[str, Any]:
        """Tell the router which documents of the latest prompts have left device and host memory."""
        try:
            tree = await self._look_at_tree()
        except (httpx2.HTTPError, KeyError, ValueError, TypeError) as error:
            logger.debug("the tree cannot be seen: %r", error)
            tree = None
        gone = self._asked.take_gone(tree, time.monotonic())
        self._reports += 1
        return {
            "report": self._reports,
            "gone": gone,
            "pid": os.getpid(),
            "server": self._server.pid,
        }

    async def _look_at_tree(self) -> TreeSnapshot | None:
        body = {"documents": MOST_DOCUMENTS, "with_bloom_filter": True}
        headers = [self._proof]
        answer = await self._client.post("/ragcache/tree", json=body, headers=headers, timeout=20)
        tree = answer.raise_for_status().json()["tree"]
        return tree and TreeSnapshot.from_dict(tree)

    def _headers_of(self, request: FleetRequest) -> list[tuple[bytes, bytes]]:
        return _raw((*request.headers, self._proof) if request.by_operator else request.headers)

    def _die_with_server(self) -> None:
        """End this process once its server ends: Ray Serve makes another replica at once."""
        status = self._server.wait()
        if not self._is_stopping:
            logger.error("the server of this replica ended with status %s", status)
            os._exit(SERVER_ENDED)

    def __del__(self) -> None:
        # Ray Serve calls this once the replica has no request left.
        self._is_stopping = True
        if hasattr(self, "_server"):
            self._server.stop()


def _raw(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def _head_of(answer: httpx2.Response) -> AnswerHead:
    # httpx2 would guess an encoding for all headers together.
    told = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers.raw)
    return AnswerHead(answer.status_code, tuple(told))


def _environment(settings: FleetSettings) -> dict[str, str]:
    """Return what to add to the environment of a server."""
    made = dict(settings.environment)
    context = serve.get_replica_context()
    if settings.splits_cores and "VLLM_CPU_OMP_THREADS_BIND" not in os.environ:
        rank = getattr(context.rank, "local_rank", 0)
        if cores := _own_cores(sorted(os.sched_getaffinity(0)), rank, settings.most_replicas):
            made["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
            made.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    return made


def _own_cores(cores: Sequence[int], rank: int, replicas: int) -> Sequence[int]:
    """Return the cores of one of several replicas on this machine; models that share cores starve."""
    return cores[rank % replicas :: replicas]
