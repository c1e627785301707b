"""A backend without a model: the same contract as vLLM's, in the caller's process, on a virtual clock.

The same cache manager as in production decides over simulated device memory, host slots and files. So
tests of a chain see the cache hits, evictions and loads that vLLM would give, and repeatable times,
within milliseconds. A plain function, `reply`, makes the answer from the prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from ragcache_engine.backends.memory.replies import THINK_TAGS, echo, keep_to_guide
from ragcache_engine.backends.memory.words import WordTokenizer, split_words
from ragcache_engine.chat import CallReader, ToolReader
from ragcache_engine.chat.calls import overlap_length
from ragcache_engine.chat.plain_template import write_conversation
from ragcache_engine.errors import (
    EngineClosed,
    EngineDied,
    GenerationFailed,
    RefusedMessages,
)
from ragcache_engine.knowledge import DEFAULT_POLICY, CostProfile, policy_of_tiers
from ragcache_engine.protocols import BackendRequest, Conversation, Delta, ReasoningReader
from ragcache_engine.simulation.block_keys import KeyChain
from ragcache_engine.simulation.borrowed_prompts import describe_donor, split_keys
from ragcache_engine.simulation.clock import VirtualClock
from ragcache_engine.simulation.copy_lane import DISK_BYTES_PER_S, HOST_BYTES_PER_S
from ragcache_engine.simulation.device import SimulatedDevice
from ragcache_engine.simulation.loans import DonorPrompt, Loan
from ragcache_engine.simulation.request import SimulatedRequest, describe_with_keys
from ragcache_engine.simulation.scheduler import PrefillTime, Scheduler
from ragcache_engine.simulation.sizes import NOMINAL_TOKEN_BYTES, TierSizes
from ragcache_engine.tiers.borrowing.donor import Donor
from ragcache_engine.tiers.borrowing.exact_or_borrow import plan_what_is_held
from ragcache_engine.tiers.borrowing.plan import (
    MADE_DONORS,
    BorrowPlan,
    Lenders,
    Room,
    WhyExact,
    count_system_tokens,
    find_spans,
    plan_borrowing,
)
from ragcache_engine.tiers.borrowing.served import ServedDocuments
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.kept import KeepOrder, Kept
from ragcache_engine.tiers.node_record import Key
from ragcache_engine.tiers.prompts import Prompt, SegmentEnd
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot
from ragcache_engine.values import (
    CachedTokens,
    FinishReason,
    ModelLimits,
    SamplingOptions,
    TokenizedPrompt,
    TokenLogprob,
)


def linear_prefill(cached: int, computed: int) -> float:
    """Return prefill seconds: 0.1 ms a computed token, 10 ns for each pair in attention."""
    return 1e-4 * computed + 1e-8 * computed * (cached + computed / 2)


class Stall(Exception):
    """A fault raises this to say that the step makes no progress."""


@dataclass(slots=True, eq=False)
class _Answering:
    """One request with its answer's words, the queue for them, and how many are in it so far.

    why_exact: why it borrows nothing, if the backend borrows at all.
    """

    asked: BackendRequest
    prompt_tokens: int
    most_tokens: int | None
    words: list[str]
    request: SimulatedRequest
    chain: KeyChain
    why_exact: WhyExact | None
    deltas: asyncio.Queue[Delta | Exception] = field(default_factory=asyncio.Queue)
    said: int = 0


class MemoryBackend:
    """A backend without a model. All times are seconds on its own clock, which starts at 0.

    reply: makes the answer's text from the prompt's text.
    context_tokens: the most tokens of prompt and answer together; never more than the device holds.
    device_blocks, host_blocks, disk_blocks: how many blocks of block_tokens tokens each tier holds; 0
      for no host or no disk. A disk needs host blocks. The disk lies in this process's memory: closing
      the backend empties it, and disk_cache_dir and shared_cache
      have no effect.
    step_tokens: the most prompt tokens that a step computes, for provisional and other requests.
    prefill_s: returns T(cached, computed), the seconds of each chunk in a step. decode_s: the seconds
      that a step takes in addition if it computes tokens of answers.
    fault: called before each step with the step's number, from 0. It may raise GenerationFailed (all
      unfinished requests fail), EngineDied (they fail, and the backend is gone until it is started
      again) or Stall (the step does nothing).
    host_quota_blocks, disk_quota_blocks: how many of them one tenant's documents may take; None: any.
    policy, reorder_window, cache_depth: as in EngineConfig.
    recompute_ratio: the share of borrowed documents to compute anew, as in EngineConfig with
      reuse="anywhere"; None borrows nothing. Answers are made up from the prompt either way.
    any_donors: whether documents may be borrowed from what served prompts left, with donors="any".
    donors_later: whether documents whose donors are missing are computed where they stand, with
      missing_donors="later".
    cost_profile: the cost of computing as the cache manager sees it, when it decides between loading
      and computing; None for the default formula, which is `linear_prefill`.
    token_bytes: bytes of one token's key-value tensors. host_bytes_per_s, disk_bytes_per_s: the
      bandwidth of each direction between device and host, and between host and disk.
    aborted: how many requests callers ended before their answer was complete.
    With a reasoning_parser of any name, what a reply has between <think> and </think> is its reasoning.
    """

    reads_text = False
    borrows = True

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
        host_blocks: int = 0,
        disk_blocks: int = 0,
        host_quota_blocks: int | None = None,
        disk_quota_blocks: int | None = None,
        policy: str = DEFAULT_POLICY,
        reorder_window: int = 32,
        cache_depth: int | None = None,
        recompute_ratio: float | None = None,
        any_donors: bool = False,
        donors_later: bool = False,
        cost_profile: CostProfile | None = None,
        token_bytes: int = NOMINAL_TOKEN_BYTES,
        host_bytes_per_s: float = HOST_BYTES_PER_S,
        disk_bytes_per_s: float = DISK_BYTES_PER_S,
    ) -> None:
        self._reply = reply
        self._sizes = TierSizes(
            block_tokens,
            device_blocks,
            host_blocks,
            disk_blocks,
            token_bytes,
            host_quota_blocks,
            disk_quota_blocks,
        )
        self._limits = ModelLimits(
            min(context_tokens, self._sizes.device_tokens),
            block_tokens,
            device_blocks,
            step_tokens,
            host_blocks,
        )
        self._prefill_s = prefill_s
        self._decode_s = decode_s
        self._fault = fault
        self._policy = policy
        self._reorder_window = reorder_window
        self._cache_depth = cache_depth
        self._recompute_ratio = recompute_ratio
        self.borrows = recompute_ratio is not None
        self._served = ServedDocuments(block_tokens) if any_donors else None
        self._donors_later = donors_later
        self._cost_profile = cost_profile
        self._host_bytes_per_s = host_bytes_per_s
        self._disk_bytes_per_s = disk_bytes_per_s
        self._clock = VirtualClock()
        self.now = self._clock.now
        self._words = WordTokenizer()
        self._steps = 0
        self._numbers = count()
        self._scheduler = self._empty_scheduler()
        self._prefilled_before = 0  # by the schedulers before the last close()
        self._counters = Counters()
        self._answering: dict[SimulatedRequest, _Answering] = {}
        self._work = asyncio.Event()
        self._stepper: asyncio.Task[None] | None = None
        self._death: EngineDied | None = None
        self._closed = False
        self.aborted = 0

    def _empty_scheduler(self) -> Scheduler:
        device = SimulatedDevice(
            self._sizes,
            policy_of_tiers(self._policy),
            self._clock,
            protect=self._reorder_window,
            profile=self._cost_profile,
            host_bytes_per_s=self._host_bytes_per_s,
            disk_bytes_per_s=self._disk_bytes_per_s,
        )
        return Scheduler(
            device,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
            step_tokens=self._limits.step_tokens,
            reorder_window=self._reorder_window,
        )

    async def start(self) -> ModelLimits:
        self._closed, self._death = False, None
        self._stepper = asyncio.create_task(self._run(), name="memory-backend")
        return self._limits

    @property
    def running(self) -> int:
        """How many requests wait or run now."""
        return len(self._answering)

    @property
    def cached_blocks(self) -> int:
        """How many different blocks can be found on the device now."""
        return self._scheduler.device.pool.cached_count

    @property
    def prefilled_tokens(self) -> int:
        """How many prompt tokens were computed so far."""
        return self._prefilled_before + self._scheduler.prefilled_tokens

    def tokenize(self, text: str, add_special_tokens: bool = True) -> TokenizedPrompt:
        return self._words.tokenize(text)

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._words.detokenize(token_ids)

    def check(self, options: SamplingOptions) -> None:
        """Raise UnsupportedGuide for a guide that this backend cannot make up a text for."""
        if options.guide:
            keep_to_guide("", options.guide)

    def render(self, conversation: Conversation) -> str:
        if conversation.template is not None:
            raise RefusedMessages(
                "the memory backend writes conversations in a form of its own: leave chat_template "
                "out, or use backend='vllm'"
            )
        return write_conversation(
            conversation.messages,
            conversation.tools,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
        )

    def tool_reader(self, tools: Sequence[Mapping[str, Any]]) -> ToolReader:
        return CallReader()

    def reasoning_reader(self, request: BackendRequest) -> ReasoningReader | None:
        return None if request.options.template_args is None else TaggedReasoning()

    # -- answering -----------------------------------------------------------------------------

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        self._require_alive()
        if self._closed:
            raise EngineClosed("the memory backend is closed: start a new engine")
        answering = self._begin(request)
        try:
            while True:
                delta = await answering.deltas.get()
                if isinstance(delta, Exception):
                    raise delta
                yield delta
                if delta.finish_reason:
                    return
        finally:
            if answering.request in self._answering:
                self._end(answering, completed=False)
                self.aborted += 1

    def _require_alive(self) -> None:
        if self._death:
            raise self._death

    def _begin(self, request: BackendRequest) -> _Answering:
        segments = _end_documents(request)
        prompt, chain = self._describe_prompt(request, segments)
        plan = self._plan_borrowing(request, segments, chain)
        loan: Loan | None = None
        if isinstance(plan, BorrowPlan):
            prompt = prompt.before(plan.exact_blocks)
            chain, loan = self._borrow(request, plan)
        simulated = SimulatedRequest(
            f"{request.request_id} {next(self._numbers)}",
            prompt,
            chain.keys,
            len(request.tokens),
            guess=request.request_id if request.is_guess else None,
            loan=loan,
            withdrawn=request.withdrawn,
        )
        answering = _Answering(
            request,
            len(request.tokens),
            request.options.max_tokens,
            self._answer(request),
            simulated,
            chain,
            plan if isinstance(plan, WhyExact) else None,
        )
        self._scheduler.add(simulated)
        self._answering[simulated] = answering
        self._work.set()
        return answering

    def _describe_prompt(
        self, request: BackendRequest, segments: Sequence[SegmentEnd]
    ) -> tuple[Prompt, KeyChain]:
        return describe_with_keys(
            request.tokens.token_ids,
            segments,
            prompt_tokens=len(request.tokens),
            tenant=request.tenant,
            block_tokens=self._limits.block_tokens,
            depth=self._cache_depth,
            has_disk=self._sizes.disk_blocks > 0,
        )

    def _plan_borrowing(
        self, request: BackendRequest, segments: Sequence[SegmentEnd], chain: KeyChain
    ) -> BorrowPlan | WhyExact | None:
        """Plan what a request borrows, or say why it borrows nothing; None if the backend never does."""
        if self._recompute_ratio is None:
            return None
        if request.is_exact:
            return WhyExact.ASKED
        ratio = request.recompute_ratio
        tokens = request.tokens.token_ids
        plan_with = partial(
            plan_borrowing,
            tokens,
            segments,
            Room(
                self._limits.block_tokens, self._limits.context_tokens, self._limits.device_blocks
            ),
            contexts=request.contexts,
            ratio=self._recompute_ratio if ratio is None else ratio,
            starts=request.text_starts,
            answer_tokens=request.options.max_tokens,
        )
        if request.makes_donors or not self._donors_later:
            return plan_with(lenders=self._choose_served(request, segments, chain))
        return plan_what_is_held(
            plan_with,
            lambda donor: self._describe_donor(request, donor).keys,
            chain.keys,
            len(tokens),
            block_tokens=self._limits.block_tokens,
            holds=self._scheduler.device.manager.holds,
        )

    def _choose_served(
        self, request: BackendRequest, segments: Sequence[SegmentEnd], chain: KeyChain
    ) -> Lenders:
        """Return which documents are exact, and the donors that served prompts left for others."""
        tokens = request.tokens.token_ids
        spans = find_spans(segments, len(tokens), request.text_starts)
        if self._served is None or not spans:
            return MADE_DONORS
        return self._served.choose(
            request.tenant,
            tokens,
            spans,
            count_system_tokens(segments),
            is_exact=lambda end: self._holds(chain.keys[: end // self._limits.block_tokens]),
            is_held=lambda donor: self._holds(self._describe_donor(request, donor).keys),
        )

    def _holds(self, keys: Iterable[Key]) -> bool:
        return all(map(self._scheduler.device.manager.holds, keys))

    def _describe_donor(self, request: BackendRequest, donor: Donor) -> DonorPrompt:
        return describe_donor(
            donor,
            tenant=request.tenant,
            block_tokens=self._limits.block_tokens,
            has_disk=self._sizes.disk_blocks > 0,
        )

    def _borrow(self, request: BackendRequest, plan: BorrowPlan) -> tuple[KeyChain, Loan]:
        chain = split_keys(
            request.tokens.token_ids,
            plan,
            tenant=request.tenant,
            block_tokens=self._limits.block_tokens,
        )
        return chain, Loan(plan, tuple(self._describe_donor(request, one) for one in plan.donors))

    def _note_served(self, answering: _Answering) -> None:
        """Note that a request was answered, so that later ones can borrow its documents."""
        if self._served is None:
            return
        if self._scheduler.device.manager.is_withdrawn(answering.request.name):
            return  # nothing of a forgotten document is kept
        request, loan = answering.asked, answering.request.loan
        if loan is not None:
            self._served.add_plan(request.tenant, loan.plan)
        else:
            tokens = request.tokens.token_ids
            segments = _end_documents(request)
            spans = find_spans(segments, len(tokens), request.text_starts)
            self._served.add(request.tenant, tokens, spans, count_system_tokens(segments))

    def _answer(self, request: BackendRequest) -> list[str]:
        """Return the answer's words, up to the first stop string."""
        prompt = self.detokenize(request.tokens.token_ids)
        text = self._reply(request.prompt.text)
        if request.options.guide:
            thought = ""
            if request.options.template_args is not None and text.startswith(THINK_TAGS[0]):
                thought, _, text = text.partition(THINK_TAGS[1])
                thought += THINK_TAGS[1]
            text = thought + keep_to_guide(text, request.options.guide)
        # The retry of an interrupted answer has the tokens so far in its prompt: give it the rest.
        if prompt.startswith(request.prompt.text):
            text = text.removeprefix(prompt[len(request.prompt.text) :])
        for stop in request.options.stop:
            text = text.split(stop, 1)[0]
        return split_words(text)

    async def _run(self) -> None:
        while True:
            if not self._answering and not self._scheduler.has_work:
                self._work.clear()
                await self._work.wait()
            self._steps += 1
            try:
                if self._fault:
                    self._fault(self._steps - 1)
                for request in self._scheduler.step():
                    self._say(self._answering[request])
            except Stall:
                pass
            except EngineDied as death:
                self._death = death
                self._fail_all(death)
                return
            except GenerationFailed as failure:
                self._fail_all(failure)
            await asyncio.sleep(0)  # between steps, callers read their tokens and may abort

    def _say(self, answering: _Answering) -> None:
        """Hand out the answer's next word."""
        room = self._limits.context_tokens - answering.prompt_tokens
        most = min(room, answering.most_tokens) if answering.most_tokens is not None else room
        word = answering.words[answering.said] if answering.said < len(answering.words) else ""
        answering.said += 1
        reason: FinishReason | None = None
        if answering.said >= len(answering.words):
            reason = FinishReason.STOP
        elif answering.said >= most:
            reason = FinishReason.LENGTH
        token_ids = (self._words.token_id(word),) if word else ()
        cached: CachedTokens | None = None
        sources = self._scheduler.device.sources(answering.request) if reason else None
        if reason:
            cached = CachedTokens(**(self._end(answering, completed=True) or {}))
        elif answering.said == 1:
            # As with vLLM, the tiers are known only when the request ends.
            cached = CachedTokens(device=answering.request.cached_tokens or 0)
        if not reason:
            answering.chain.extend(token_ids)
            answering.request.tokens += len(token_ids)
        delta = Delta(
            word, token_ids, cached, reason, sources=sources, logprobs=_certain(answering, word)
        )
        if reason:
            delta = replace(delta, reuse=answering.request.reuse, why_exact=answering.why_exact)
        answering.deltas.put_nowait(delta)

    def _end(self, answering: _Answering, *, completed: bool) -> dict[str, int] | None:
        """End a request; return its cached prompt tokens by tier, None if it never ran."""
        del self._answering[answering.request]
        if completed:
            self._note_served(answering)
        tokens = self._scheduler.end(answering.request, completed=completed)
        self._counters = self._scheduler.device.counters
        return tokens

    def _fail_all(self, error: Exception) -> None:
        for answering in list(self._answering.values()):
            self._end(answering, completed=False)
            answering.deltas.put_nowait(error)

    # -- time ------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass outside the model, as during a search. Only one thread may call this."""
        self._clock.pass_outside(seconds)

    # -- the cache -------------------------------------------------------------------------------

    async def clear_cache(self) -> bool:
        """Empty device and host; the simulated disk keeps its files, as in production."""
        self._require_alive()
        return not self._answering and self._scheduler.device.clear()

    async def forget(self, document_ids: Sequence[str]) -> None:
        self._require_alive()
        self._scheduler.device.forget(document_ids)
        if self._served is not None:
            self._served.forget(document_ids)

    def adopted(self, request_id: str) -> None:
        self._scheduler.device.adopt(request_id)

    async def touch_if_cached(self, requests: Sequence[BackendRequest]) -> list[bool]:
        self._require_alive()
        manager = self._scheduler.device.manager
        return [
            manager.touch_if_cached(self._prompts_to_keep(one), is_guess=one.is_guess)
            for one in requests
        ]

    async def keep(self, requests: Sequence[BackendRequest], order: KeepOrder) -> Sequence[Kept]:
        self._let_copies_end()
        wanted = {
            (order.set_of(one.document_ids), one.tenant): self._prompts_to_keep(one)
            for one in requests
        }
        kept = self._scheduler.device.manager.keep_documents(
            order, [(documents, tenant, prompts) for (documents, tenant), prompts in wanted.items()]
        )
        of_each = dict(zip(wanted, kept, strict=True))
        return [of_each[order.set_of(one.document_ids), one.tenant] for one in requests]

    async def release(self, documents: Sequence[tuple[str, ...]], tenant: str | None) -> None:
        self._require_alive()
        for one in documents:
            self._scheduler.device.manager.release_documents(one, tenant)

    async def kept(self) -> Sequence[Kept]:
        self._let_copies_end()
        return self._scheduler.device.manager.kept_documents()

    def _let_copies_end(self) -> None:
        """Let time pass until no copy is under way, where no request lets it pass."""
        self._require_alive()
        if not self._answering:
            self._scheduler.device.finish_copies()

    def _prompts_to_keep(self, request: BackendRequest) -> list[Prompt]:
        """Return what a request would leave in the cache: its prompt, or the donors it borrows from."""
        segments = _end_documents(request)
        prompt, chain = self._describe_prompt(request, segments)
        plan = self._plan_borrowing(request, segments, chain)
        if isinstance(plan, BorrowPlan):
            return [self._describe_donor(request, donor).prompt for donor in plan.donors]
        return [prompt]

    def counters(self) -> Counters:
        return self._counters

    async def snapshot(
        self, documents: int, *, with_bloom_filter: bool = False
    ) -> TreeSnapshot | None:
        self._require_alive()
        waiting, running = self._scheduler.queue_lengths
        return self._scheduler.device.manager.snapshot(
            documents, waiting=waiting, running=running, with_bloom_filter=with_bloom_filter
        )

    async def close(self) -> None:
        self._closed = True
        if self._stepper:
            self._stepper.cancel()
            await asyncio.gather(self._stepper, return_exceptions=True)
            self._stepper = None
        self._fail_all(EngineClosed("the engine was closed while this request ran"))
        self._prefilled_before += self._scheduler.prefilled_tokens
        self._scheduler = self._empty_scheduler()


@dataclass(slots=True)
class TaggedReasoning:
    """Tells what stands between THINK_TAGS apart from the text, and counts the words of it."""

    _is_inside: bool = False
    _held: str = ""  # may be the beginning of the next tag
    _reasoning: list[str] = field(default_factory=list)

    def read(self, delta: Delta) -> Delta:
        parts: tuple[list[str], list[str]] = ([], [])  # of the text, of the reasoning
        text = self._held + delta.text
        while (at := text.find(THINK_TAGS[self._is_inside])) >= 0:
            parts[self._is_inside].append(text[:at])
            text = text[at + len(THINK_TAGS[self._is_inside]) :]
            self._is_inside = not self._is_inside
        overlap = overlap_length(text, THINK_TAGS[self._is_inside])
        ready = len(text) if delta.finish_reason else len(text) - overlap
        parts[self._is_inside].append(text[:ready])
        self._held = text[ready:]
        self._reasoning += parts[True]
        count = len(split_words("".join(self._reasoning))) if delta.finish_reason else 0
        said, thought = map("".join, parts)
        return replace(delta, text=said, reasoning=thought, reasoning_tokens=count)


def _end_documents(request: BackendRequest) -> list[SegmentEnd]:
    """Return the ends of a prompt's runs, up to the last document."""
    segments = [(segment.end, segment.document_id) for segment in request.segments]
    while segments and segments[-1][1] is None:
        segments.pop()  # the question belongs to no document
    return segments


def _certain(answering: _Answering, word: str) -> tuple[TokenLogprob, ...]:
    """Return what a request asks to know of a word: no other was possible."""
    most = answering.asked.options.logprobs
    if most is None or not word:
        return ()
    return (TokenLogprob(word, 0.0, ((word, 0.0),)[:most]),)
