"""Servers for tests: a backend without a model behind real HTTP, in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ragcache_engine.chat import check_messages
from ragcache_engine.corpora.learned import LearnedDocuments
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.errors import RefusedMessages
from ragcache_engine.protocols import Backend, BackendRequest, Conversation
from ragcache_engine.serving.bounded_http import LARGEST_HEAD_BYTES, BoundedHTTP
from ragcache_engine.serving.doors import Doors
from ragcache_engine.serving.keys import Keys
from ragcache_engine.serving.routes import Served, WrittenPrompt
from ragcache_engine.serving.settings import Limits

OPERATOR = "the operator's own key"
SHOP, PRESS = "the key of the shop", "the key of the press"


@dataclass
class MemoryServer:
    """A server that listens.

    seen, headers: the bodies and the headers that came through the doors to vLLM's own paths.
    before_answer: what to call before these are answered, in a thread. status: of their answers.
    """

    url: str
    backend: Backend
    thread: Any
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    before_answer: Callable[[], Any] | None = None
    status: int = 200

    def stop(self) -> None:
        """End at once, with all connections, as a process does that is killed."""
        self.thread.end()


class _ServerThread(threading.Thread):
    def __init__(self, app: Any, port: int) -> None:
        super().__init__(daemon=True)
        self.server = uvicorn.Server(
            uvicorn.Config(
                app,
                port=port,
                log_level="critical",
                timeout_graceful_shutdown=0,
                lifespan="off",
                http=BoundedHTTP,
                h11_max_incomplete_event_size=LARGEST_HEAD_BYTES,
            )
        )
        self.has_started = threading.Event()

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        serving = asyncio.create_task(self.server.serve())
        while not self.server.started:
            await asyncio.sleep(0.001)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.has_started.set()
        await serving

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.join(20)


@contextmanager
def serve_app(app: Any, port: int = 0) -> Iterator[_ServerThread]:
    """Serve an ASGI application at `.url` until the block ends, or `.end` is called. port: 0 for any."""
    thread = _ServerThread(app, port)
    thread.start()
    assert thread.has_started.wait(20)
    try:
        yield thread
    finally:
        thread.end()


@contextmanager
def serve(
    backend: Backend,
    *,
    keys_file: Path | None = None,
    operator_key: str | None = OPERATOR,
    limits: Limits | None = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    reuse: Mapping[str, Any] | None = None,
    corpora: Corpora | None = None,
    learns: bool = False,
    note_prompt: Callable[[BackendRequest], Awaitable[None]] | None = None,
    port: int = 0,
) -> Iterator[MemoryServer]:
    """Serve a backend until the block ends. learns: texts that recur. port: 0 for any."""
    keys = Keys(keys_file, operator_key)
    corpora = corpora or Corpora()
    served: list[Served] = []
    seen: list[dict[str, Any]] = []
    headers: list[dict[str, str]] = []
    server = MemoryServer("", backend, None, seen, headers)
    lock = asyncio.Lock()

    async def find_served(scope: Any) -> Served:
        async with lock:
            if not served:  # on the server's loop, where it belongs
                told = await backend.start()
                served.append(
                    Served(
                        backend,
                        told,
                        ("any",),
                        tool_parser,
                        reuse=reuse or {},
                        reasoning_parser=reasoning_parser,
                        corpora=corpora,
                        learned=LearnedDocuments(corpora) if learns else None,
                        write_chat=write_chat,
                        kept_tiers=frozenset({"host"}),
                        **({"note_prompt": note_prompt} if note_prompt else {}),
                    )
                )
        return served[0]

    async def write_chat(path: str, said: Mapping[str, Any]) -> WrittenPrompt:
        """Write a conversation as vLLM's server would."""
        if any(message["role"] == "stranger" for message in said["messages"]):
            raise RefusedMessages("no such role")
        text = await asyncio.to_thread(
            backend.render, Conversation(check_messages(said["messages"]))
        )
        return WrittenPrompt(text, backend.tokenize(text, False).token_ids)

    async def stand_in(request: Request) -> JSONResponse:
        """Stand in for vLLM's own paths, which are not under test here."""
        headers.append(dict(request.headers))
        seen.append(await request.json() if request.method == "POST" else {})
        if server.before_answer is not None:
            await asyncio.to_thread(server.before_answer)
        return JSONResponse({"path": request.url.path}, server.status)

    inner = Starlette(
        routes=[Route("/{path:path}", stand_in, methods=["GET", "POST", "OPTIONS"])],
        middleware=[
            Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"])
        ],  # as vLLM's server has
    )
    doors = Doors(inner, limits or Limits(), lambda scope: keys, find_served)
    with serve_app(doors, port) as thread:
        server.url, server.thread = thread.url, thread
        yield server
