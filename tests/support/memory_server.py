"""A program: a server of a backend without a model, on a socket, as a replica of a fleet starts one.

    python memory_server.py --uds PATH [--step-s S]

Its answers repeat the prompt; S seconds lie between two words. It has the doors and the paths below
/ragcache of a real server, and OpenAI's completions as far as the fleet's tests need.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.serving.doors import Doors
from ragcache_engine.serving.keys import Keys
from ragcache_engine.serving.routes import Served
from ragcache_engine.serving.settings import KEYS_FILE, OPERATOR_KEY, read_limits

running = 0


def words_of(prompt: str) -> list[str]:
    """What is answered: a sentence of its own for each prompt, long enough to be interrupted."""
    return [f"{prompt[:12]}-{number} " for number in range(40)]


async def complete(request: Request) -> Any:
    said = await request.json()
    if MODEL.is_dead:
        return JSONResponse(DEAD, 500)
    if not said.get("stream"):
        await asyncio.sleep(STEP_S * 5)
        text = "".join(words_of(said["prompt"]))
        return JSONResponse(
            {"choices": [{"index": 0, "text": text}], "salt": said.get("cache_salt")}
        )

    async def events() -> AsyncIterator[str]:
        global running
        running += 1
        try:
            for word in words_of(said["prompt"]):
                if MODEL.is_dead:
                    yield f"data: {json.dumps(DEAD)}\n\n"
                    return
                event = {"id": f"c-{os.getpid()}", "choices": [{"index": 0, "text": word}]}
                yield f"data: {json.dumps(event)}\n\n"
                await asyncio.sleep(STEP_S)
            event = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
            yield f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"
        finally:
            running -= 1

    return StreamingResponse(events(), media_type="text/event-stream")


async def tell(request: Request) -> JSONResponse:
    """Tell which process this is, and how many streams it has."""
    return JSONResponse({"pid": os.getpid(), "running": running})


async def write_metrics(request: Request) -> Response:
    """Say the number of streams as vLLM does."""
    text = f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running {running}\n"
    return Response(text, media_type="text/plain")


async def say_healthy(request: Request) -> JSONResponse:
    return JSONResponse({}, 503 if MODEL.is_dead else 200)


class Model:
    """Dies at SIGUSR1. As with vLLM, the server lives on for a while, and fails at everything."""

    def __init__(self) -> None:
        self.is_dead = False
        signal.signal(signal.SIGUSR1, self._die)

    def _die(self, *_: object) -> None:
        self.is_dead = True


MODEL = Model()
DEAD = {"error": {"code": 500, "message": "EngineDeadError", "type": "InternalServerError"}}


def make_app() -> Doors:
    routes = [
        Route("/health", say_healthy),
        Route("/version", tell),
        Route("/metrics", write_metrics),
        Route("/v1/completions", complete, methods=["POST"]),
    ]
    backend = MemoryBackend()
    served: list[Served] = []
    file = os.environ.get(KEYS_FILE)
    keys = Keys(Path(file) if file else None, os.environ.get(OPERATOR_KEY))

    async def find_served(scope: Any) -> Served:
        if not served:
            served.append(Served(backend, await backend.start(), ("any",)))
        return served[0]

    return Doors(Starlette(routes=routes), read_limits(os.environ), lambda scope: keys, find_served)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds", required=True)
    parser.add_argument("--step-s", type=float, default=0.02)
    parsed = parser.parse_args()
    STEP_S = parsed.step_s
    uvicorn.run(make_app(), uds=parsed.uds, log_level="warning", lifespan="off")
