"""Rewrites the bodies of OpenAI's own requests on their way in.

A client may name the documents of a completion by characters; the server knows the tokens. A client with
a tenant's key shares tensors within this tenant only, whatever it writes into its body.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Scope

from ragcache_engine.errors import InvalidArgument
from ragcache_engine.prompt import token_segments
from ragcache_engine.serving.keys import Caller
from ragcache_engine.serving.routes import Served, read_spans
from ragcache_engine.tiers.prompts import SegmentEnd
from ragcache_engine.tiers.wire import FIELD

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
REWRITTEN = {COMPLETIONS, CHAT}
"""The paths whose bodies are rewritten. Both take a `cache_salt`, which keeps tenants apart."""

TRANSFER, DOCUMENTS, SEGMENTS = "kv_transfer_params", "documents", "segments"

NOT_FOR_TENANTS = ("priority", "ec_transfer_params", "data_parallel_rank")
"""What one tenant could use to get ahead of the others, or to reach their tensors."""


async def rewrite_body(
    body: bytes,
    caller: Caller,
    find_served: Callable[[Scope], Awaitable[Served]],
    scope: Scope,
) -> bytes:
    """Return the body as the server is to read it.

    Raises InvalidArgument for a body that is no JSON object, and for documents that do not lie in the
    prompt.
    """
    said = _read_object(body)
    ours = _read_ours(said)
    is_changed = False
    if DOCUMENTS in ours:
        served = await find_served(scope)
        segments = await asyncio.to_thread(_map_to_tokens, said, ours[DOCUMENTS], served)
        ours = {**ours, SEGMENTS: segments}
        del ours[DOCUMENTS]
        said[TRANSFER] = {**said[TRANSFER], FIELD: ours}
        is_changed = True
    if caller.tenant is not None:
        _confine(said, ours, caller)
        is_changed = True
    return json.dumps(said).encode() if is_changed else body


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body is no JSON: {error}") from error
    if not isinstance(said, dict):
        raise InvalidArgument("the body is no JSON object")
    return said


def _read_ours(said: dict[str, Any]) -> dict[str, Any]:
    """Return our part of a body; empty if there is none."""
    transfer = said.get(TRANSFER)
    ours = transfer.get(FIELD) if isinstance(transfer, dict) else None
    return ours if isinstance(ours, dict) else {}


def _confine(said: dict[str, Any], ours: dict[str, Any], caller: Caller) -> None:
    """Put the caller's tenant into the body, and take out what only operators may say."""
    salt = said.get("cache_salt")
    said["cache_salt"] = caller.tenant_for(salt if isinstance(salt, str) and salt else None)
    for name in NOT_FOR_TENANTS:
        said.pop(name, None)
    if isinstance(arguments := said.get("vllm_xargs"), dict):
        said["vllm_xargs"] = {
            n: v for n, v in arguments.items() if not n.endswith("transfer_params")
        }
    said.pop(TRANSFER, None)
    if SEGMENTS in ours:
        said[TRANSFER] = {FIELD: {SEGMENTS: ours[SEGMENTS]}}


def _map_to_tokens(said: dict[str, Any], documents: Any, served: Served) -> list[SegmentEnd]:
    """Return the segments of a completion's prompt whose documents are named by characters."""
    prompt = said.get("prompt")
    if not isinstance(prompt, str):
        raise InvalidArgument(
            f"{TRANSFER}.{FIELD}.{DOCUMENTS} are characters of a prompt that is one text; for a prompt "
            f"of tokens, send {SEGMENTS}"
        )
    spans = read_spans(documents, prompt)
    tokens = served.backend.tokenize(prompt, said.get("add_special_tokens", True) is not False)
    return [(segment.end, segment.document_id) for segment in token_segments(tokens, spans)]
