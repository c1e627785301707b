"""The index server as an ASGI application: who may search, with how much, and what is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from itertools import chain
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.errors import RAGCacheError
from ragcache_engine.index_server.messages import (
    DOCUMENTS,
    INDEX,
    NEIGHBOURS,
    SEARCH,
    NeighboursBody,
    SearchBody,
)
from ragcache_engine.index_server.served import FoundRows, ServedIndex
from ragcache_engine.serving.doors import read_body, read_key, refusal, require_json
from ragcache_engine.serving.keys import Keys
from ragcache_engine.serving.messages import LINES, error_to_json
from ragcache_engine.serving.room import Room
from ragcache_engine.serving.routes import log_unforeseen, parse_body, with_signs_of_life
from ragcache_engine.serving.settings import Limits

LIMITS = Limits(body_bytes=1 << 20, requests=64)
"""A question is short, and whoever waits behind 64 others is better told so."""

DOCUMENTS_AT_ONCE = 256
"""How many documents are written before other requests have their turn."""


class IndexApp:
    """Searches one index for whoever has a key. A tenant's key and an operator's open the same.

    GET /health needs no key. GET /index describes the index, POST /search finds documents, POST
    /neighbours those next to others, GET /documents lists all: see messages.py.
    """

    def __init__(
        self, served: ServedIndex, keys: Keys | None = None, limits: Limits = LIMITS
    ) -> None:
        self._served = served
        self._keys = keys or Keys()
        self._limits = limits
        self._room = Room(limits.requests)
        self._writing = DaemonThreads(1, "ragcache-lines")  # documents may be long

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/health":
            await Response()(scope, receive, send)
            return
        try:
            caller = self._keys.caller(read_key(scope))
            with self._room.place(caller.tenant):
                answer = await self._answer(scope, receive)
                await answer(scope, receive, send)
                return
        except RAGCacheError as error:
            refused = refusal(error)
        except Exception as error:
            log_unforeseen(error)
            refused = refusal(error)
        await refused(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        """Raises what is wrong with a request."""
        served = self._served
        match scope["method"], scope["path"]:
            case "GET", path if path == INDEX:
                return JSONResponse(served.describe().model_dump())
            case "GET", path if path == DOCUMENTS:
                return StreamingResponse(self._write_documents(), media_type=LINES)
            case "POST", path if path == SEARCH:
                said = parse_body(SearchBody, await self._read(scope, receive))
                vector = await served.read_question(said.vector, said.text)
                stages = served.search(vector, said.k, said.stages)
                return StreamingResponse(self._write_stages(stages), media_type=LINES)
            case "POST", path if path == NEIGHBOURS:
                asked = parse_body(NeighboursBody, await self._read(scope, receive))
                rows = await served.find_neighbours(asked.ids, asked.k)
                line = await self._writing.run(partial(self._write_neighbours, rows))
                return Response(line, media_type=LINES)
        return JSONResponse({"error": {"message": "there is no such path", "code": 404}}, 404)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        require_json(scope)
        return await read_body(scope, receive, self._limits.body_bytes) or b""

    async def _write_stages(
        self, stages: AsyncGenerator[FoundRows, None]
    ) -> AsyncGenerator[bytes, None]:
        told: set[int] = set()
        try:
            async with aclosing(with_signs_of_life(stages)) as coming:
                async for stage in coming:
                    if stage is None:
                        yield b"\n"
                    else:
                        yield await self._writing.run(partial(self._write_stage, stage, told))
        except Exception as error:
            log_unforeseen(error)
            yield _line(error_to_json(error))

    def _write_stage(self, stage: FoundRows, told: set[int]) -> bytes:
        """Write a stage as a line. told: the documents that earlier lines have; grows."""
        new = [row for row in dict.fromkeys(stage.rows) if row not in told]
        told.update(new)
        return _line(
            {
                "version": self._served.describe().version,
                "rows": stage.rows,
                "distances": stage.distances,
                "documents": {row: self._served.documents[row].to_json() for row in new},
                "fraction_done": stage.fraction_done,
                "final": stage.is_final,
            }
        )

    def _write_neighbours(self, lists: list[list[int]]) -> bytes:
        documents = self._served.documents
        return _line(
            {
                "version": self._served.describe().version,
                "neighbours": lists,
                "documents": {row: documents[row].to_json() for row in chain.from_iterable(lists)},
            }
        )

    async def _write_documents(self) -> AsyncGenerator[bytes, None]:
        for number, document in enumerate(self._served.documents.values(), 1):
            yield _line(document.to_json())
            if number % DOCUMENTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        yield _line({"version": self._served.describe().version, "final": True})


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"
