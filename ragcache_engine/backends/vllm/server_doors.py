"""RAGCache's doors in vLLM's own server, which loads them with its flag `--middleware`.

A flag has no room for settings, so these come in environment variables, as vLLM's own do.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY
from starlette.types import ASGIApp, Receive, Scope, Send
from vllm.renderers.chat_utils import load_chat_template
from vllm.v1.engine.async_llm import AsyncLLM

from ragcache_engine.anywhere.idle_backend import with_idle_work
from ragcache_engine.backends.vllm.backend import VLLMBackend, has_tiers
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.backends.vllm.installed import require_vllm
from ragcache_engine.backends.vllm.request_bodies import PromptWriter, require_readable
from ragcache_engine.backends.vllm.tiers.settings import TierSettings
from ragcache_engine.corpora.embedders import make_embedder
from ragcache_engine.corpora.embedding import Embedding
from ragcache_engine.corpora.learned import LearnedDocuments
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.observing.metrics import SampleCollector, sample_corpora, sample_idle_work
from ragcache_engine.serving.bounded_http import BoundedHTTP
from ragcache_engine.serving.corpus_routes import read_corpora
from ragcache_engine.serving.doors import Doors
from ragcache_engine.serving.keys import Keys
from ragcache_engine.serving.near_documents import NearDocuments
from ragcache_engine.serving.routes import TOKENIZED_AT_ONCE, Served
from ragcache_engine.serving.settings import (
    CORPORA_FOLDER,
    EMBEDDINGS,
    EMBEDDINGS_KEY,
    EMBEDDINGS_MODEL,
    KEYS_FILE,
    LEARN,
    OPERATOR_KEY,
    read_limits,
)

END_S = 5
"""How long a server that was told to end waits for its clients. vLLM has ended its engine by then, and an
answer that was being written has no end any more."""


class ServerDoors(Doors):
    """The doors, with the settings of the environment, in front of the engine that vLLM has started."""

    def __init__(self, app: ASGIApp) -> None:
        limits = read_limits(os.environ)
        super().__init__(app, limits, self._read_keys, self._serve)
        self._corpora = Corpora(limits.corpora_bytes)
        self._kept_share = limits.kept_share
        self._learned = LearnedDocuments(self._corpora) if os.environ.get(LEARN) == "1" else None
        self._served: Served | None = None
        self._keys: Keys | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            # The server listens after this. vLLM has no flags for these settings of uvicorn.
            config = scope["app"].state.server.config
            config.http_protocol_class = BoundedHTTP
            config.timeout_graceful_shutdown = END_S
            # What vLLM's /metrics shows of this process.
            REGISTRY.register(SampleCollector(lambda: sample_corpora(*self._corpora.totals())))
            if told := os.environ.get(EMBEDDINGS):
                model, key = os.environ.get(EMBEDDINGS_MODEL), os.environ.get(EMBEDDINGS_KEY)
                Embedding(self._corpora, partial(make_embedder, told, model, key)).start()
            if folder := os.environ.get(CORPORA_FOLDER):
                read_corpora(Path(folder), self._corpora)
        await super().__call__(scope, receive, send)

    def _read_keys(self, scope: Scope) -> Keys:
        """Return the keys: those of the file, or the ones that vLLM itself asks for."""
        if self._keys is None:
            file = os.environ.get(KEYS_FILE)
            vllm_keys = scope["app"].state.args.api_key or [os.environ.get("VLLM_API_KEY")]
            self._keys = Keys(
                Path(file) if file else None,
                os.environ.get(OPERATOR_KEY),
                () if file else tuple(filter(None, vllm_keys)),
            )
        return self._keys

    async def _serve(self, scope: Scope) -> Served:
        """Return what is served: vLLM has no engine yet when it makes its middleware."""
        if self._served is None:
            served = serve_engine(scope["app"].state, self._corpora, self._learned)
            self._served = replace(served, kept_share=self._kept_share)
        return self._served


def serve_engine(state: Any, corpora: Corpora, learned: LearnedDocuments | None) -> Served:
    """Make a backend on the engine of vLLM's server.

    state: what the server's app keeps. corpora: where its clients register documents. learned: as in
      Served.
    vLLM documents none of `state.engine_client`, `.args` and `.online_renderer`, which its routes use;
    tests/backends/server/test_on_vllm.py notices when they move.
    """
    require_vllm()
    llm: AsyncLLM = state.engine_client
    args = state.args
    parser = args.tool_call_parser if args.enable_auto_tool_choice else None
    backend = VLLMBackend(args.model, None, _budget_of(llm), {}, tool_parser=parser)
    limits = backend.use_running(llm)
    models = tuple(args.served_model_name or [args.model])
    template = load_chat_template(args.chat_template)
    reasoning = llm.vllm_config.structured_outputs_config.reasoning_parser or None
    tokenizers = DaemonThreads(TOKENIZED_AT_ONCE, "ragcache-server-tokenizing")
    settings = _tier_settings(llm)
    served = Served(
        backend,
        limits,
        models,
        parser,
        template,
        require_readable=require_readable,
        reasoning_parser=reasoning,
        corpora=corpora,
        learned=learned,
        write_chat=PromptWriter(state, tokenizers).write,
        tokenizers=tokenizers,
        forgets_documents=settings is not None,
        kept_tiers=_kept_tiers(settings),
    )
    if settings is None or settings.recompute_ratio is None:
        return served
    idle = with_idle_work(
        backend,
        prepares_later=settings.donors_later,
        recheck_share=settings.recheck_share,
        least=settings.least_rouge_l,
    )
    # What vLLM's /metrics shows of this process.
    REGISTRY.register(SampleCollector(lambda: sample_idle_work(idle.stats())))
    served = replace(
        served,
        backend=idle.backend,
        reuse=_describe_reuse(settings),
        occupied=idle.occupied,
        is_switched_off=idle.is_switched_off,
    )
    if idle.preparing is not None:
        near = NearDocuments(corpora, idle.preparing, served.contexts, tokenizers)
        served = replace(served, note_prompt=near.note)
    idle.open()
    return served


def _kept_tiers(settings: TierSettings | None) -> frozenset[str]:
    if settings is None:
        return frozenset()
    sizes = {"host": settings.host_bytes, "disk": settings.disk_bytes}
    return frozenset(tier for tier, size_bytes in sizes.items() if size_bytes)


def _describe_reuse(settings: TierSettings) -> dict[str, Any]:
    """Return what clients have to know of reuse at any position; see ServerDescription."""
    return {
        "reuse": "anywhere",
        "recompute_ratio": settings.recompute_ratio,
        "donors": "any" if settings.any_donors else "neighbours",
        "missing_donors": "later" if settings.donors_later else "compute",
        "recheck_share": 0.0,  # the server does it
    }


def _tier_settings(llm: AsyncLLM) -> TierSettings | None:
    config = llm.vllm_config
    if not has_tiers(config) or config.kv_transfer_config is None:
        return None
    return TierSettings.from_extra_config(config.kv_transfer_config.kv_connector_extra_config)


def _budget_of(llm: AsyncLLM) -> TierBudget:
    """Return what forgetting needs to know of the tiers: their folder."""
    settings = _tier_settings(llm)
    if settings is None:
        return TierBudget("halflife")
    return TierBudget(
        settings.policy,
        disk_bytes=settings.disk_bytes,
        disk_folder=Path(settings.disk_folder) if settings.disk_folder else None,
        disk_key=settings.disk_key,
        shared=settings.shared,
    )
