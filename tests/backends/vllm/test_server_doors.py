"""backends/vllm/server_doors.py: what the doors set of vLLM's server before it listens."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

pytest.importorskip("vllm")

from ragcache_engine.backends.vllm.server_doors import END_S, ServerDoors
from ragcache_engine.serving.bounded_http import BoundedHTTP


async def ignore(*_: Any) -> None:
    return None


def test_a_server_that_is_told_to_end_does_not_wait_for_answers_that_have_no_end():
    config = uvicorn.Config(ignore)
    state = SimpleNamespace(
        server=SimpleNamespace(config=config), args=SimpleNamespace(api_key=None)
    )
    scope = {"type": "lifespan", "app": SimpleNamespace(state=state)}
    asyncio.run(ServerDoors(ignore)(scope, ignore, ignore))  # type: ignore[arg-type]
    assert config.timeout_graceful_shutdown == END_S
    assert config.http_protocol_class is BoundedHTTP
