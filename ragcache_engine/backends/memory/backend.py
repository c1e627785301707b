"""An engine without a model: the same contract as vLLM's, in the caller's process, on a virtual clock.

It schedules as vLLM does (a queue, steps of at most `step_tokens` prompt tokens, continuous batching,
prefix caching in whole blocks, aborts after the running step), and each step moves a clock that only
it moves. So tests of a chain see real cache hits and repeatable times within milliseconds, without
a model. Its answers are made by `reply`, a plain function of the prompt.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from ragcache_engine.chat import CallReader, ToolReader
from ragcache_engine.chat.plain_template import TAG, written
from ragcache_engine.chat.schema_samples import instance
from ragcache_engine.errors import (
    EngineClosed,
    EngineDied,
    GenerationFailed,
    RefusedMessages,
    UnsupportedGuide,
)
from ragcache_engine.guide import Guide, GuideKind
from ragcache_engine.protocols import BackendRequest, Conversation, Delta
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.values import (
    CachedTokens,
    FinishReason,
    ModelLimits,
    SamplingOptions,
    TokenizedPrompt,
)

_WORD = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")

PrefillTime = Callable[[int, int], float]
"""Seconds to prefill `computed` tokens behind `cached` ones: T(cached, computed)."""


def echo(prompt: str) -> str:
    """The default reply: the prompt's last line that says something."""
    said = (line.strip() for line in prompt.splitlines() if not TAG.fullmatch(line))
    lines = [line for line in said if line]
    return f"You asked: {lines[-1]}" if lines else "You asked nothing."


def linear_prefill(cached: int, computed: int) -> float:
    """0.1 ms a token and 10 ns for each pair that attends: about a small model on a CPU."""
    return 1e-4 * computed + 1e-8 * computed * (cached + computed / 2)


def guided(reply: str, guide: Guide) -> str:
    """The reply if it keeps to the guide, else something that does.

    Of a schema only that the reply is JSON is looked at: whoever made it up knows the rest.
    Raises UnsupportedGuide where there is neither.
    """
    match guide.kind:
        case GuideKind.JSON:
            return reply if _is_json(reply) else json.dumps(instance(guide.schema))
        case GuideKind.CHOICE:
            return next((text for text in guide.form if text in reply), guide.form[0])
    raise UnsupportedGuide(
        f"the memory backend has no model that could keep to a {guide.kind.value}: use a guide of "
        f"kind json or choice, or backend='vllm'"
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class Stall(Exception):
    """Raised by a fault: this step makes no progress."""


@dataclass(slots=True, eq=False)
class _Running:
    """One request inside the fake: what is prefilled, what is still to be said."""

    request: BackendRequest
    answer: list[str]
    deltas: asyncio.Queue[Delta | Exception] = field(default_factory=asyncio.Queue)
    cached: int = 0
    prefilled: int = 0
    said: int = 0

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt)


class MemoryBackend:
    """The fake. All times are seconds on its own clock, which starts at 0.

    reply: makes the answer's text from the prompt's.
    prefill_s: T(cached, computed); decode_s: seconds a decoding step adds.
    fault: called with the number of the step about to run. It may raise GenerationFailed (the step's
      requests fail), EngineDied (the whole backend is gone until it is started again) or Stall (the
      step does nothing).
    prefilled_tokens: prompt tokens computed so far. aborted: requests that ended unfinished.
    """

    def __init__(
        self,
        reply: Callable[[str], str] = echo,
        *,
        context_tokens: int = 8192,
        block_tokens: int = 16,
        device_blocks: int = 1024,
        step_tokens: int = 512,
        prefill_s: PrefillTime = linear_prefill,
        decode_s: float = 0.01,
        fault: Callable[[int], None] | None = None,
    ) -> None:
        self._reply = reply
        self._limits = ModelLimits(context_tokens, block_tokens, device_blocks, step_tokens)
        self._step_tokens = step_tokens
        self._prefill_s = prefill_s
        self._decode_s = decode_s
        self._fault = fault
        self._clock_s = 0.0
        self._waited_s = 0.0
        self._steps = 0
        self._words: dict[int, str] = {}
        # Cached blocks by their chained hash, least recently used first, with the documents that
        # they were computed from.
        self._blocks: OrderedDict[int, frozenset[str]] = OrderedDict()
        self._waiting: list[_Running] = []
        self._work = asyncio.Event()
        self._stepper: asyncio.Task[None] | None = None
        self._death: EngineDied | None = None
        self._closed = False
        self.prefilled_tokens = 0
        self.aborted = 0

    async def start(self) -> ModelLimits:
        self._closed, self._death = False, None
        self._stepper = asyncio.create_task(self._run(), name="memory-backend")
        return self._limits

    @property
    def running(self) -> int:
        """Requests that hold memory now."""
        return len(self._waiting)

    @property
    def cached_blocks(self) -> int:
        return len(self._blocks)

    def tokenize(self, text: str, add_special_tokens: bool = True) -> TokenizedPrompt:
        matches = list(_WORD.finditer(text))
        ids = [self._learn(match.group()) for match in matches]
        return TokenizedPrompt(text, ids, [match.span() for match in matches])

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(self._words[token_id] for token_id in token_ids)

    def check(self, options: SamplingOptions) -> None:
        """What no model writes, `guided` must be able to make up. Raises UnsupportedGuide."""
        if options.guide:
            guided("", options.guide)

    def render(self, conversation: Conversation) -> str:
        if conversation.template is not None:
            raise RefusedMessages(
                "the memory backend writes conversations in a form of its own: leave chat_template "
                "out, or use backend='vllm'"
            )
        return written(
            conversation.messages,
            conversation.tools,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
        )

    def tool_reader(self, tools: Sequence[Mapping[str, Any]]) -> ToolReader:
        return CallReader()

    def _learn(self, word: str) -> int:
        token_id = crc32(word.encode())
        self._words[token_id] = word
        return token_id

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        if self._death:
            raise self._death
        if self._closed:
            raise EngineClosed("the memory backend is closed: start a new engine")
        running = _Running(request, self._answer(request))
        self._waiting.append(running)
        self._work.set()
        try:
            while True:
                delta = await running.deltas.get()
                if isinstance(delta, Exception):
                    raise delta
                yield delta
                if delta.finish_reason:
                    return
        finally:
            if running in self._waiting:
                self._waiting.remove(running)
                self.aborted += 1

    def _answer(self, request: BackendRequest) -> list[str]:
        """The answer's tokens, as far as they may be said."""
        prompt = self.detokenize(request.prompt.token_ids)
        text = self._reply(request.prompt.text)
        if request.options.guide:
            text = guided(text, request.options.guide)
        # A prompt that goes on where an interrupted answer stopped gets the rest of that answer.
        if prompt.startswith(request.prompt.text):
            text = text.removeprefix(prompt[len(request.prompt.text) :])
        for stop in request.options.stop:
            text = text.split(stop, 1)[0]
        return [match.group() for match in _WORD.finditer(text)]

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                self._work.clear()
                await self._work.wait()
            self._steps += 1
            try:
                if self._fault:
                    self._fault(self._steps - 1)
                self._step()
            except Stall:
                pass
            except EngineDied as death:
                self._death = death
                self._fail_all(death)
                return
            except GenerationFailed as failure:
                self._fail_all(failure)
            await asyncio.sleep(0)  # callers read their tokens, and may abort, between steps

    def _step(self) -> None:
        """Prefill up to the token budget, first come first served; decode one token of the rest."""
        budget, elapsed_s, decodes = self._step_tokens, 0.0, False
        for running in list(self._waiting):
            if running.prefilled < running.prompt_tokens:
                if budget <= 0:
                    continue
                if running.prefilled == 0:
                    running.cached = running.prefilled = self._cached_tokens(running.request)
                chunk = min(budget, running.prompt_tokens - running.prefilled)
                elapsed_s += self._prefill_s(running.prefilled, chunk)
                running.prefilled += chunk
                self.prefilled_tokens += chunk
                budget -= chunk
                self._keep_blocks(running)
                if running.prefilled < running.prompt_tokens:
                    continue
            decodes = decodes or running.said > 0
            self._say(running)
        self._clock_s += elapsed_s + (self._decode_s if decodes else 0.0)

    def _say(self, running: _Running) -> None:
        options, context = running.request.options, self._limits.context_tokens
        room = context - running.prompt_tokens
        most = min(room, options.max_tokens) if options.max_tokens is not None else room
        word = running.answer[running.said] if running.said < len(running.answer) else ""
        running.said += 1
        reason: FinishReason | None = None
        if running.said >= len(running.answer):
            reason = FinishReason.STOP
        elif running.said >= most:
            reason = FinishReason.LENGTH
        cached = CachedTokens(device=running.cached) if running.said == 1 else None
        running.deltas.put_nowait(Delta(word, (self._learn(word),) if word else (), cached, reason))
        if reason:
            self._waiting.remove(running)

    def _block_hashes(self, token_ids: Sequence[int], tenant: str | None) -> list[int]:
        hashes, parent, size = [], hash(tenant), self._limits.block_tokens
        for start in range(0, len(token_ids) - size + 1, size):
            parent = hash((parent, tuple(token_ids[start : start + size])))
            hashes.append(parent)
        return hashes

    def _cached_tokens(self, request: BackendRequest) -> int:
        """Leading tokens whose blocks are cached. As in vLLM, the last token is always computed."""
        hits = 0
        for block in self._block_hashes(request.prompt.token_ids[:-1], request.tenant):
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            hits += 1
        return hits * self._limits.block_tokens

    def _keep_blocks(self, running: _Running) -> None:
        request, size = running.request, self._limits.block_tokens
        token_ids = request.prompt.token_ids[: running.prefilled]
        for number, block in enumerate(self._block_hashes(token_ids, request.tenant)):
            self._blocks[block] = frozenset(
                segment.document_id
                for segment in request.segments
                if segment.document_id is not None and segment.start < (number + 1) * size
            )
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._limits.device_blocks:
            self._blocks.popitem(last=False)

    def _fail_all(self, error: Exception) -> None:
        for running in self._waiting:
            running.deltas.put_nowait(error)
        self._waiting.clear()

    def now(self) -> float:
        return self._clock_s + self._waited_s

    def advance(self, seconds: float) -> None:
        """Let time pass outside the model, as in a search. From any one thread."""
        self._waited_s += seconds

    async def clear_cache(self) -> bool:
        if self._waiting:
            return False
        self._blocks.clear()
        return True

    async def forget(self, document_ids: Sequence[str]) -> None:
        forgotten = frozenset(document_ids)
        for block in [block for block, known in self._blocks.items() if known & forgotten]:
            del self._blocks[block]

    def adopted(self, request_id: str) -> None:
        pass  # least recently used blocks leave, whoever used them

    def counters(self) -> Counters:
        return Counters()

    async def close(self) -> None:
        self._closed = True
        if self._stepper:
            self._stepper.cancel()
            await asyncio.gather(self._stepper, return_exceptions=True)
            self._stepper = None
        self._fail_all(EngineClosed("the engine was closed while this request ran"))
        self._blocks.clear()
