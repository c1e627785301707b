"""Finds out what kind of server stands at an address, and makes the backend for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ragcache_engine.backends.server.connection import Connection
from ragcache_engine.backends.server.ragcache_server import RAGCacheServerBackend
from ragcache_engine.backends.server.vllm_server import VLLMServerBackend
from ragcache_engine.errors import ConfigError, ModelNotFound, ServerUnreachable
from ragcache_engine.protocols import Backend
from ragcache_engine.serving.messages import ALIVE_S, PREFIX, PROTOCOL, ServerDescription
from ragcache_engine.values import ModelLimits


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that answers.

    settings: what it decides for its clients, by the names of EngineConfig: its model, the parsers of
      tool calls and of reasoning, and how it reuses documents at any position.
    """

    backend: Backend
    settings: Mapping[str, Any]


def find_server(url: str, api_key: str | None, model: str | None = None) -> FoundServer:
    """Ask the server at this address what it is.

    model: the model that it must serve; None: whatever it serves.
    Raises ServerUnreachable, KeyRefused, ModelNotFound; InvalidArgument for an impossible address;
    ConfigError if the versions of client and server do not fit.
    """
    connection = Connection(url, api_key)
    try:
        said = connection.call("GET", f"{PREFIX}/server")
    except ModelNotFound:  # HTTP 404: there is no such path
        return _find_vllm(connection, model)
    if said.get("protocol") != PROTOCOL:
        raise ConfigError(
            f"the server at {url} speaks protocol {said.get('protocol')}, and this client {PROTOCOL}: "
            f"install one version of RAGCache on both"
        )
    told = ServerDescription.from_json(said)
    connection.silent_s = 4 * ALIVE_S
    name = _require_served(model, told.models, url)
    settings = {
        "model": name,
        "tool_parser": told.tool_parser,
        "reasoning_parser": told.reasoning_parser,
        **told.reuse,
    }
    return FoundServer(RAGCacheServerBackend(connection, told), settings)


def _find_vllm(connection: Connection, model: str | None) -> FoundServer:
    """Return the backend for a plain vLLM server."""
    try:
        told = connection.call("GET", "/v1/models")["data"]
        contexts = {one["id"]: one["max_model_len"] for one in told}
        # An adapter has none of its own: it reads what the model reads that it adapts.
        known = {name: tokens for name, tokens in contexts.items() if tokens is not None}
        parents = {one["id"]: one.get("parent") for one in told}
        largest = max(known.values())
        contexts = {name: known.get(name) or known.get(parents[name], largest) for name in contexts}
    except (ModelNotFound, KeyError, TypeError, ValueError) as error:
        raise ServerUnreachable(
            f"{connection.url} is no vLLM server, which tells its models and how much they can read"
        ) from error
    name = _require_served(model, tuple(contexts), connection.url)
    limits = ModelLimits(contexts[name], block_tokens=1, device_blocks=0)
    settings = {"model": name, "tool_parser": None, "reasoning_parser": None}
    return FoundServer(VLLMServerBackend(connection, name, limits), settings)


def _require_served(model: str | None, served: tuple[str, ...], url: str) -> str:
    if model is None and served:
        return served[0]
    if model is None or model not in served:
        raise ModelNotFound(f"the server at {url} serves {', '.join(served)}, not {model!r}")
    return model
