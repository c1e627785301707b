"""Asks RAGCache and stock vLLM the same prompts."""

from __future__ import annotations

import random
import re
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SamplingOptions

TIERS = ("device", "host", "disk")
SYSTEM_WORDS, QUESTION_WORDS = 40, 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text and the documents in it, by name."""

    text: str
    documents: dict[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    """What an answer was and cost.

    cached: prompt tokens by the tier that had them. margins: by how much vLLM liked each token better
      than the next best one, in log-probability; empty if that was not asked for.
    """

    token_ids: tuple[int, ...]
    text: str
    ttft_s: float
    prompt_tokens: int
    cached: dict[str, int] = field(default_factory=dict)
    borrowed: int = 0
    recomputed: int = 0
    margins: tuple[float, ...] = ()

    @property
    def cached_tokens(self) -> int:
        return sum(self.cached.values())


@cache
def vocabulary() -> tuple[str, ...]:
    """Words that most tokenizers have as one token: those of Python's own documentation."""
    from pydoc_data.topics import topics

    return tuple(sorted(set(re.findall(r"\b[a-z]{3,6}\b", " ".join(topics.values())))))


def words(seed: str, count: int) -> str:
    """Return so many words, always the same for a seed; about as many tokens or a few more."""
    return " ".join(random.Random(seed).choices(vocabulary(), k=count))


def prompt_of(documents: dict[str, str], question: str) -> Prompt:
    """Return a prompt with these documents behind a system text, and a question of a few words."""
    text = "\n\n".join(
        [words("system", SYSTEM_WORDS), *documents.values(), words(question, QUESTION_WORDS)]
    )
    return Prompt(text, documents)


class OurEngine:
    """RAGCache, asked as its users ask it."""

    def __init__(self, **settings: Any) -> None:
        config = EngineConfig(backend="vllm", speculation="off", vllm_log="show", **settings)
        self.engine = RAGCacheEngine(config)

    async def ask(self, prompt: Prompt, tokens: int, **how: Any) -> Reply:
        documents = [Document(name, text) for name, text in prompt.documents.items()]
        options = SamplingOptions(max_tokens=tokens, ignore_eos=True)
        ids: list[int] = []
        began, ttft_s, text, usage = time.perf_counter(), 0.0, "", None
        async with aclosing(self.engine.astream(prompt.text, documents, options, **how)) as pieces:
            async for piece in pieces:
                if piece.token_ids and not ids:
                    ttft_s = time.perf_counter() - began
                ids += piece.token_ids
                text += piece.text
                usage = piece.usage or usage
        assert usage is not None
        return Reply(
            tuple(ids),
            text,
            ttft_s,
            usage.prompt_tokens,
            {tier: getattr(usage.cached, tier) for tier in TIERS},
            usage.borrowed.total,
            usage.recomputed_tokens,
        )

    def close(self) -> None:
        self.engine.close()


class StockEngine:
    """vLLM's own asynchronous engine. Make it on the event loop that asks it."""

    def __init__(self, **arguments: Any) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        self.config = AsyncEngineArgs(**arguments).create_engine_config(UsageContext.LLM_CLASS)
        self.llm = AsyncLLM.from_vllm_config(self.config, disable_log_stats=True)
        self._asked = 0

    async def ask(self, prompt: Prompt, tokens: int, *, margins: bool = False) -> Reply:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0,
            max_tokens=tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
            logprobs=2 if margins else None,
        )
        self._asked += 1
        ids: list[int] = []
        liked: list[float] = []
        began, ttft_s, text, last = time.perf_counter(), 0.0, "", None
        async with aclosing(self.llm.generate(prompt.text, params, str(self._asked))) as outputs:
            async for output in outputs:
                if output.outputs[0].token_ids and not ids:
                    ttft_s = time.perf_counter() - began
                ids += output.outputs[0].token_ids
                text += output.outputs[0].text
                for of_token in output.outputs[0].logprobs or ():
                    best, second = sorted((one.logprob for one in of_token.values()), reverse=True)[
                        :2
                    ]
                    liked.append(round(best - second, 4))
                last = output
        assert last is not None
        cached = {"device": last.num_cached_tokens or 0}
        prompt_tokens = len(last.prompt_token_ids or ())
        return Reply(tuple(ids), text, ttft_s, prompt_tokens, cached, margins=tuple(liked))

    def close(self) -> None:
        self.llm.shutdown()


Engine = OurEngine | StockEngine
