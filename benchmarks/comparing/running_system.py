"""Runs one system behind the chain of every LangChain tutorial, on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler

from comparing.questions import QuestionSet, build_store
from comparing.systems import RAGCACHE, Sizes, System
from comparing.workload import Request
from ragcache_cli.chains import langchain_chain
from ragcache_cli.corpus_warming import warm_corpus
from ragcache_cli.prompts import PromptForm
from ragcache_cli.timeline import hidden_share
from ragcache_engine import Document, EngineConfig, EngineError, RAGCacheEngine
from ragcache_integrations.answer_facts import report_of

WARM_UP = "Hello."
"""A question shorter than a block: it readies the engine and leaves nothing in the cache."""
CLEAR_TRIES = 200
MOST_REST_S = 120.0


class RunningSystem:
    """A system under comparison. `start` it, `prepare` a question set, `play` requests, `close` it."""

    def __init__(self, system: System, sizes: Sizes) -> None:
        self._system, self._sizes = system, sizes
        self._engine: RAGCacheEngine | None = None
        self._vllm: Any = None
        self._disk: Path | None = None
        self._chains: dict[tuple[int, bool], Any] = {}

    async def start(self) -> None:
        """Start the engine and let it answer once. Raises what the engine raises."""
        if self._system.kind == RAGCACHE:
            config = self._engine_config()
            self._engine = await asyncio.to_thread(RAGCacheEngine, config)
            await self._engine.agenerate(WARM_UP)
            return
        from comparing.stock_llm import StockLLM, start_stock

        self._vllm = start_stock(self._system.settings, self._sizes)
        async for _ in StockLLM(vllm=self._vllm).astream(WARM_UP):
            pass

    def _engine_config(self) -> EngineConfig:
        sizes = self._sizes
        settings: dict[str, Any] = dict(self._system.settings)
        own_arguments = settings.pop("vllm_args", {})
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
                "vllm_log": "show",
                "vllm_args": {**arguments, **own_arguments},
                **settings,
            }
        )

    def prepare(self, folder: str, top_k: int, form: Mapping[str, str]) -> None:
        """Use the questions and documents in this folder from now on. form: the fields of PromptForm."""
        self._set, self._form = QuestionSet.read(Path(folder)), PromptForm(**form)
        self._store, self._top_k = build_store(self._set), top_k
        if self._engine:
            from ragcache_integrations.langchain import RAGCacheLLM, RAGCacheRetriever

            self._retriever: Any = RAGCacheRetriever.from_vectorstore(
                self._store, engine=self._engine, k=top_k
            )
            self._llm: Any = RAGCacheLLM(engine=self._engine, temperature=0)
        else:
            from comparing.stock_llm import StockLLM

            self._retriever = self._store.as_retriever(search_kwargs={"k": top_k})
            self._llm = StockLLM(vllm=self._vllm)
        self._chains.clear()

    async def warm(self, questions: Sequence[int]) -> dict[str, Any]:
        """Prefill all documents that these questions find. Returns what it took, see record.Warming."""
        from ragcache_integrations.langchain.engine_retriever import engine_document
        from ragcache_integrations.langchain.neighbours import corpus_of

        assert self._engine
        _, rows = self._set.index.search(self._set.vectors[list(questions)], self._top_k)
        names = dict.fromkeys(self._set.rows[row] for found in rows for row in found if row >= 0)
        documents = [Document(name, self._set.documents[name]) for name in names]
        began_s, corpus = time.perf_counter(), corpus_of(self._store, engine_document)
        warmed = await asyncio.to_thread(warm_corpus, self._engine, documents, corpus, self._form)
        return {
            "documents": len(documents),
            "seconds": round(time.perf_counter() - began_s, 3),
            "prompt_tokens": warmed.prompt_tokens,
            "computed_tokens": warmed.computed_tokens,
        }

    async def play(
        self, requests: Sequence[tuple[int, float, int]], at_once: int | None, ignore_eos: bool
    ) -> list[dict[str, Any]]:
        """Ask all questions, each at its time, and return the measurements of each.

        requests: the fields of Request.
        at_once: how many requests are under way at a time; the next one starts when one has ended, and
        arrival times do not count. None: each request starts at its arrival time.
        ignore_eos: whether every answer has exactly its request's max_tokens; otherwise at most that
          many.
        """
        turnstile = asyncio.Semaphore(at_once or len(requests) or 1)
        began_s = time.perf_counter()

        async def one(request: Request) -> dict[str, Any]:
            await asyncio.sleep(began_s + request.at_s - time.perf_counter())
            async with turnstile:
                asked_s = began_s + request.at_s if at_once is None else time.perf_counter()
                return await self._ask(request, asked_s, ignore_eos)

        return list(await asyncio.gather(*(one(Request(*each)) for each in requests)))

    async def _ask(self, request: Request, asked_s: float, ignore_eos: bool) -> dict[str, Any]:
        chain = self.chain_for(request.max_tokens, ignore_eos=ignore_eos)
        heard, text, first_s, last_s = _UsageListener(), [], None, asked_s
        question = self._set.questions[request.question]
        async for piece in chain.astream(question, config={"callbacks": [heard]}):
            last_s = time.perf_counter()
            first_s = first_s or last_s
            text.append(piece)
        cost = heard.info["usage_metadata"]
        return {
            "question": request.question,
            "at_s": round(request.at_s, 4),
            "ttft_s": round((first_s or last_s) - asked_s, 5),
            "total_s": round(last_s - asked_s, 5),
            "search_s": round(heard.search_s, 5),
            "prompt": cost["input_tokens"],
            "output": cost["output_tokens"],
            "cached": [heard.info[f"cached_tokens_{tier}"] for tier in ("device", "host", "disk")],
            "borrowed": heard.info.get("borrowed_tokens", 0),
            "recomputed": heard.info.get("recomputed_tokens", 0),
            "speculation": heard.info.get("speculation", "none"),
            "hidden": round(_hidden(heard.info), 4),
            "text": "".join(text),
        }

    def chain_for(self, max_tokens: int, *, ignore_eos: bool) -> Any:
        """Return the chain over the prepared set whose answers have this length."""
        key = (max_tokens, ignore_eos)
        if key not in self._chains:
            llm = self._llm.bind(max_tokens=max_tokens, ignore_eos=ignore_eos)
            self._chains[key] = langchain_chain(self._retriever, llm, self._form)
        return self._chains[key]

    async def rest(self) -> None:
        """Wait until the engine has prepared what the latest questions left for idle time."""
        deadline = time.monotonic() + MOST_REST_S
        while self._engine and time.monotonic() < deadline:
            stats = await asyncio.to_thread(self._engine.stats)
            if not (stats.unprepared or stats.found_unprepared):
                return
            await asyncio.sleep(0.05)

    async def clear(self) -> None:
        """Empty every tier. Waits while cancelled requests and running copies still hold blocks.

        Raises RuntimeError if they still do after 10 seconds.
        """
        for _ in range(CLEAR_TRIES):
            if await self._try_to_clear():
                return
            await asyncio.sleep(0.05)
        raise RuntimeError("the cache could not be emptied, because requests hold blocks of it")

    async def _try_to_clear(self) -> bool:
        if not self._engine:
            offloads = bool(self._system.settings.get("offload"))
            return bool(await self._vllm.reset_prefix_cache(reset_connector=offloads))
        try:
            await asyncio.to_thread(self._engine.clear_cache)
        except EngineError:
            return False
        return True

    def read_counters(self) -> dict[str, Any]:
        """Return the engine's own counters; for stock vLLM only the bytes on disk."""
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
            "recomputed": stats.tiers.recomputed_blocks,
            "speculations": stats.speculation.started,
            "wasted_prefill_tokens": stats.speculation.wasted_prefill_tokens,
        }

    async def close(self) -> None:
        """End the engine with its processes, and delete its disk cache."""
        if self._engine:
            await asyncio.to_thread(self._engine.close)
        if self._vllm:
            self._vllm.shutdown(timeout=30.0)
        if self._disk:
            import shutil

            shutil.rmtree(self._disk, ignore_errors=True)


def _hidden(info: Mapping[str, Any]) -> float:
    """Return the share of the search that was hidden by prefill; 0 for a system without speculation."""
    if "speculation" not in info:
        return 0.0
    return hidden_share(report_of(info["speculation"], info["speculation_timeline"]))


class _UsageListener(AsyncCallbackHandler):
    """Records how long the retriever took, and what the answer cost."""

    def __init__(self) -> None:
        self.search_s, self._began_s = 0.0, 0.0
        self.info: dict[str, Any] = {}

    async def on_retriever_start(self, *_: Any, **__: Any) -> None:
        self._began_s = time.perf_counter()

    async def on_retriever_end(self, *_: Any, **__: Any) -> None:
        self.search_s = time.perf_counter() - self._began_s

    async def on_llm_end(self, response: Any, **_: Any) -> None:
        self.info = response.generations[0][0].generation_info or {}
