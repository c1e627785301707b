"""One system behind the chain of every LangChain tutorial, asked on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler

from ragcache_cli.bench.corpus_files import Kept, store_of
from ragcache_cli.bench.systems import RAGCACHE, Sizes, System
from ragcache_cli.bench.workload import Request
from ragcache_cli.chains import langchain_chain
from ragcache_cli.errors import BenchFailed
from ragcache_cli.timeline import hidden_share
from ragcache_engine import EngineConfig, EngineError, RAGCacheEngine
from ragcache_integrations.timeline import report_of

WARM_UP = "Hello."
"""Shorter than a block: it readies the engine and leaves nothing in the cache."""


CLEAR_TRIES = 200


class Served:
    """A system that is up. Make it, `prepare` a question set, `play` requests, `close` it."""

    def __init__(self, system: System, sizes: Sizes) -> None:
        self._system, self._sizes = system, sizes
        self._engine: RAGCacheEngine | None = None
        self._vllm: Any = None
        self._disk: Path | None = None
        self._chains: dict[tuple[int, bool], Any] = {}

    async def start(self) -> None:
        """Raises what the engine raises."""
        if self._system.kind == RAGCACHE:
            config = self._engine_config()
            self._engine = await asyncio.to_thread(RAGCacheEngine, config)
            await self._engine.agenerate(WARM_UP)
            return
        from ragcache_cli.bench.stock_llm import StockLLM, started

        self._vllm = started(self._system.settings, self._sizes)
        async for _ in StockLLM(vllm=self._vllm).astream(WARM_UP):
            pass

    def _engine_config(self) -> EngineConfig:
        sizes = self._sizes
        settings: dict[str, Any] = dict(self._system.settings)
        if self._system.has_disk:
            self._disk = Path(mkdtemp(prefix="ragcache-bench-"))
            settings |= {"disk_cache": sizes.disk_bytes, "disk_cache_dir": self._disk}
        arguments = {
            "max_model_len": sizes.context_tokens,
            "max_num_seqs": sizes.at_once,
            "dtype": sizes.dtype,
        }
        return EngineConfig.model_validate(
            {
                "model": sizes.model,
                "backend": sizes.backend,
                "device_cache": sizes.device_bytes,
                "host_cache": sizes.host_bytes,
                "vllm_args": {**arguments, **sizes.vllm_args},
                **settings,
            }
        )

    def prepare(self, folder: Path, top_k: int) -> None:
        """From now on, questions are those of the set kept in this folder."""
        self._kept = Kept.read(folder)
        store = store_of(self._kept)
        if self._engine:
            from ragcache_integrations.langchain import RAGCacheLLM, RAGCacheRetriever

            self._retriever: Any = RAGCacheRetriever.from_vectorstore(
                store, engine=self._engine, k=top_k
            )
            self._llm: Any = RAGCacheLLM(engine=self._engine, temperature=0)
        else:
            from ragcache_cli.bench.stock_llm import StockLLM

            self._retriever = store.as_retriever(search_kwargs={"k": top_k})
            if self._system.settings.get("reorder"):
                from ragcache_cli.bench.contextpilot import reordering

                self._retriever |= reordering()
            self._llm = StockLLM(vllm=self._vllm)
        self._chains.clear()

    async def play(
        self, requests: Sequence[Request], at_once: int | None, *, ignore_eos: bool
    ) -> list[dict[str, Any]]:
        """Ask all of them, each at its time, and tell what each took.

        at_once: so many are under way at a time at most, each as soon as one before it has ended.
        ignore_eos: answers are exactly as long as the request says, else at most.
        """
        turnstile = asyncio.Semaphore(at_once or len(requests) or 1)
        began_s = time.perf_counter()

        async def one(request: Request) -> dict[str, Any]:
            await asyncio.sleep(began_s + request.at_s - time.perf_counter())
            async with turnstile:
                asked_s = began_s + request.at_s if at_once is None else time.perf_counter()
                return await self._ask(request, asked_s, ignore_eos)

        return list(await asyncio.gather(*map(one, requests)))

    async def _ask(self, request: Request, asked_s: float, ignore_eos: bool) -> dict[str, Any]:
        chain = self._chain(request.max_tokens, ignore_eos)
        seen, text, first_s, last_s = _Ears(), [], None, asked_s
        question = self._kept.questions[request.question]
        async for piece in chain.astream(question, config={"callbacks": [seen]}):
            last_s = time.perf_counter()
            first_s = first_s or last_s
            text.append(piece)
        cost = seen.info["usage_metadata"]
        details = cost["input_token_details"]
        return {
            "question": request.question,
            "at_s": round(request.at_s, 4),
            "ttft_s": round((first_s or last_s) - asked_s, 5),
            "total_s": round(last_s - asked_s, 5),
            "search_s": round(seen.search_s, 5),
            "prompt": cost["input_tokens"],
            "output": cost["output_tokens"],
            "cached": [details[f"cache_read_{tier}"] for tier in ("device", "host", "disk")],
            "speculation": seen.info.get("speculation", "none"),
            "hidden": round(_hidden(seen.info), 4),
            "text": "".join(text),
        }

    def _chain(self, max_tokens: int, ignore_eos: bool) -> Any:
        key = (max_tokens, ignore_eos)
        if key not in self._chains:
            llm = self._llm.bind(max_tokens=max_tokens, ignore_eos=ignore_eos)
            self._chains[key] = langchain_chain(self._retriever, llm, self._kept.form)
        return self._chains[key]

    async def clear(self) -> None:
        """Empty every tier. What was cancelled or is being copied may hold blocks a little longer.

        Raises BenchFailed if it still does after a while.
        """
        for _ in range(CLEAR_TRIES):
            if await self._cleared():
                return
            await asyncio.sleep(0.05)
        raise BenchFailed("the cache was not emptied, since requests hold blocks of it")

    async def _cleared(self) -> bool:
        if not self._engine:
            offloads = bool(self._system.settings.get("offload"))
            return bool(await self._vllm.reset_prefix_cache(reset_connector=offloads))
        try:
            await asyncio.to_thread(self._engine.clear_cache)
        except EngineError:
            return False
        return True

    def told(self) -> dict[str, Any]:
        """The engine's own counters; nothing for stock vLLM."""
        disk = (
            sum(f.stat().st_size for f in self._disk.rglob("*") if f.is_file()) if self._disk else 0
        )
        if not self._engine:
            return {"disk_bytes": disk}
        stats = self._engine.stats()
        return {
            "disk_bytes": disk,
            "scheduling_s": stats.tiers.scheduling_s,
            "scheduled": sum(stats.tiers.scheduling),
            "evicted": dict(stats.tiers.evicted),
            "loaded_bytes": stats.tiers.loaded_bytes,
            "stored_bytes": stats.tiers.stored_bytes,
            "recomputed": stats.tiers.recomputed,
            "speculations": stats.speculation.started,
            "wasted_prefill_tokens": stats.speculation.wasted_prefill_tokens,
        }

    async def close(self) -> None:
        if self._engine:
            await asyncio.to_thread(self._engine.close)
        if self._vllm:
            self._vllm.shutdown(timeout=30.0)
        if self._disk:
            import shutil

            shutil.rmtree(self._disk, ignore_errors=True)


def _hidden(info: Mapping[str, Any]) -> float:
    """The share of the search that was hidden; 0 for a system without speculation."""
    if "speculation" not in info:
        return 0.0
    return hidden_share(report_of(info["speculation"], info["speculation_timeline"]))


class _Ears(AsyncCallbackHandler):
    """Hears how long the retriever took, and what the answer cost."""

    def __init__(self) -> None:
        self.search_s, self._began_s = 0.0, 0.0
        self.info: dict[str, Any] = {}

    async def on_retriever_start(self, *_: Any, **__: Any) -> None:
        self._began_s = time.perf_counter()

    async def on_retriever_end(self, *_: Any, **__: Any) -> None:
        self.search_s = time.perf_counter() - self._began_s

    async def on_llm_end(self, response: Any, **_: Any) -> None:
        self.info = response.generations[0][0].generation_info or {}
