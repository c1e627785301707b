"""Rewrites the answers to OpenAI's own requests on their way out.

They say what was reused, and whether anything was taken from another context, which makes an answer an
approximation. The tiers' counters, which tell of all tenants, reach no tenant.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from ragcache_engine.tiers.provenance import ReuseReport
from ragcache_engine.tiers.wire import FIELD

TRANSFER, COUNTERS = "kv_transfer_params", "counters"

REUSE_HEADER = "x-ragcache-reuse"
"""In every answer: "exact", or "anywhere" if the server may borrow for it. It goes before the answer, so
that a stream has it too."""


class OpenAIAnswer:
    """A `send` that hands on an answer in JSON once it is whole, and any other as it comes.

    is_private: whether the answer goes to one tenant. borrows: whether the server borrows at all.
    may_borrow: whether it may have borrowed for this answer.
    """

    def __init__(self, send: Send, *, is_private: bool, borrows: bool, may_borrow: bool) -> None:
        self._send = send
        self._is_private = is_private
        self._borrows = borrows
        self._may_borrow = may_borrow
        self.is_well = False  # whether it is an answer, and no error
        self._start: Message | None = None
        self._parts: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_well = message["status"] == 200
            headers = MutableHeaders(raw=[*message["headers"]])
            headers[REUSE_HEADER] = "anywhere" if self._may_borrow else "exact"
            message = {**message, "headers": headers.raw}
            kind = headers.get("content-type", "")
            if (self._is_private or self._borrows) and kind.startswith("application/json"):
                self._start = message
                return
        if self._start is None:
            await self._send(message)
            return
        self._parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            body = rewrite_answer(b"".join(self._parts), is_private=self._is_private)
            MutableHeaders(raw=self._start["headers"])["content-length"] = str(len(body))
            await self._send(self._start)
            await self._send({"type": "http.response.body", "body": body})


def rewrite_answer(body: bytes, *, is_private: bool) -> bytes:
    """Return an answer of vLLM's server with what it says of reuse, and, if private, without counters.

    "ragcache": {"approximate": ..., "borrowed_tokens": ..., "recomputed_tokens": ...}.
    """
    try:
        said = json.loads(body)
        ours = said[TRANSFER][FIELD]
        if is_private:
            ours.pop(COUNTERS, None)
    except (ValueError, TypeError, KeyError, AttributeError):
        return body
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        said[FIELD] = _tell_reuse(ours.get("reuse"))
    return json.dumps(said).encode()


def _tell_reuse(reuse: Any) -> dict[str, Any]:
    report = ReuseReport.from_dict(reuse) if reuse else ReuseReport(())
    borrowed = sum(one.borrowed + one.joined for one in report.documents)
    return {
        "approximate": borrowed > 0,
        "borrowed_tokens": borrowed,
        "recomputed_tokens": report.recomputed_tokens,
    }
