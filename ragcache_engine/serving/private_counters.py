"""Takes the counters of all tenants out of answers that go to one of them."""

from __future__ import annotations

import json

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from ragcache_engine.tiers.wire import FIELD

TRANSFER, COUNTERS = "kv_transfer_params", "counters"


class WithoutCounters:
    """A `send` that hands on an answer in JSON once it is whole, and any other as it comes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._parts: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_json(message):
            self._start = message
            return
        if self._start is None:
            await self._send(message)
            return
        self._parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            body = remove_counters(b"".join(self._parts))
            MutableHeaders(raw=self._start["headers"])["content-length"] = str(len(body))
            await self._send(self._start)
            await self._send({"type": "http.response.body", "body": body})


def remove_counters(body: bytes) -> bytes:
    """Return an answer of vLLM's server without the tiers' counters."""
    try:
        said = json.loads(body)
        ours = said[TRANSFER][FIELD]
        del ours[COUNTERS]
    except (ValueError, TypeError, KeyError):
        return body
    return json.dumps(said).encode()


def _is_json(start: Message) -> bool:
    headers = MutableHeaders(raw=list(start["headers"]))
    return headers.get("content-type", "").startswith("application/json")
