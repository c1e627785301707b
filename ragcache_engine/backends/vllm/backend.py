"""The Backend that runs a model in vLLM's asynchronous engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, starmap
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any, cast

import msgspec
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.exceptions import VLLMClientError, VLLMError
from vllm.inputs import TextPrompt, TokensPrompt, tokens_input
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.renderers.params import TokenizeParams
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from ragcache_engine.backends.vllm import shared_memory
from ragcache_engine.backends.vllm.arguments import build_vllm_config, kv_token_bytes
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.backends.vllm.chat import render_conversation
from ragcache_engine.backends.vllm.collection import (
    collect_closed_engine,
    exclude_imports_from_collection,
)
from ragcache_engine.backends.vllm.core_executor import reserving_no_core_for_connector
from ragcache_engine.backends.vllm.guides import require_servable, to_structured_outputs
from ragcache_engine.backends.vllm.log import EngineLog, ShownLog
from ragcache_engine.backends.vllm.main_guard import require_guarded_main, spawning_processes
from ragcache_engine.backends.vllm.memory_advice import (
    MemorySizes,
    free_host_bytes,
    tells_of_memory,
    weights_bytes,
)
from ragcache_engine.backends.vllm.tiers.settings import TierSettings
from ragcache_engine.chat import CallReader, ToolReader
from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.errors import (
    CannotKeep,
    ConfigError,
    EngineDied,
    EngineError,
    EngineStartFailed,
    GenerationFailed,
    InvalidArgument,
)
from ragcache_engine.guide import Guide
from ragcache_engine.protocols import BackendRequest, Conversation, Delta, ReasoningReader
from ragcache_engine.tenants import tenant_of
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.disk.folder import forget_documents
from ragcache_engine.tiers.disk.naming import PLAIN
from ragcache_engine.tiers.disk.tombstones import leave_tombstones
from ragcache_engine.tiers.kept import KeepOrder, Kept, KeptAnswer, NoRoomToKeep
from ragcache_engine.tiers.shared.forgotten import ForgottenElsewhere
from ragcache_engine.tiers.shared.opening import open_store
from ragcache_engine.tiers.shared.store import SharedStore, StoreAway
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot
from ragcache_engine.tiers.wire import FinishMessage, LookedUp, RequestMessage
from ragcache_engine.values import (
    CachedTokens,
    FinishReason,
    ModelLimits,
    SamplingOptions,
    TokenizedPrompt,
    TokenLogprob,
)

if TYPE_CHECKING:
    from ragcache_engine.backends.vllm.reasoning import ReasoningParsers

logger = logging.getLogger(__name__)

MOST_GUIDES = 256
"""How many accepted guides to remember, so that they need no second check."""

FORGOTTEN_AT_ONCE = 4
"""How many calls of `forget` work on the folder of the disk cache at a time. A disk may hang."""

TOKENIZED_AT_ONCE = max(2, min(8, os.cpu_count() or 1))
"""How many texts are tokenised at a time. vLLM copies its tokenizer for each, and keeps the copies, which
take tens of MiB."""

DEATH_CHECK_S = 0.5
"""How often to look whether vLLM's process still lives, while it is asked something besides requests."""

PROCESS_ENDED = "vLLM's process ended by itself, often because it ran out of memory; then "

SHUTDOWN_S = 30.0
"""How long vLLM's processes may take to end. They need 4 to 5 s; on a busy machine, vLLM's own limit of
5 s would kill them."""


class VLLMBackend:
    """Runs a model in vLLM's own processes. `start` starts them and `close` ends them.

    model, device_cache_bytes, vllm_args, tool_parser: as in EngineConfig.
    budget: the sizes and settings of the slower tiers. log: keeps vLLM's log, and the backend closes it;
      None: vLLM logs as it does by itself.
    Raises UnguardedMain, ModelNotFound, ConfigError.
    """

    reads_text = False
    borrows = True

    def __init__(
        self,
        model: str,
        device_cache_bytes: int | None,
        budget: TierBudget,
        vllm_args: Mapping[str, Any],
        *,
        log: EngineLog | None = None,
        tool_parser: str | None = None,
    ) -> None:
        require_guarded_main()
        if tool_parser is not None:
            from ragcache_engine.backends.vllm.tool_parsers import require_parser

            require_parser(tool_parser)
        self._tool_parser = tool_parser
        self._model = model
        self._device_cache_bytes = device_cache_bytes
        self._budget = budget
        self._log: EngineLog = log or ShownLog()
        self._vllm_args = dict(vllm_args)
        self._llm: AsyncLLM | None = None
        self._reasoning_parsers: ReasoningParsers | None = None
        self._tokenizing = BoundedSemaphore(TOKENIZED_AT_ONCE)
        self._has_tiers = False
        self._remedy = "lower device_cache, host_cache or max_model_len"
        self._is_borrowing = False
        self._engine_id: str | None = None
        self._disk_threads = DaemonThreads(FORGOTTEN_AT_ONCE, "ragcache-forgetting")
        # Opened when something is forgotten.
        self._opening_shared = Lock()
        self._shared: tuple[SharedStore, ForgottenElsewhere] | None = None
        self._counters = Counters()
        self._upkeep_numbers = count()
        self._adopted: list[str] = []
        self._servable_guides: dict[Guide, None] = {}  # the oldest first

    async def start(self) -> ModelLimits:
        self._log.open()
        config = build_vllm_config(
            self._model,
            self._device_cache_bytes,
            self._budget,
            {**self._log.arguments(), **self._vllm_args},
        )
        self._has_tiers = has_tiers(config)
        sizes = self._measure(config)
        self._remedy = sizes.describe_remedy()
        if shortage := sizes.describe_shortage(free_host_bytes()):
            logger.warning("Memory may run out: %s", shortage)
        exclude_imports_from_collection()
        if self._has_tiers and config.kv_transfer_config:
            self._engine_id = config.kv_transfer_config.engine_id
        try:
            with (
                spawning_processes(),
                reserving_no_core_for_connector(config),
                self._log.starting(self._model, config),
            ):
                llm = AsyncLLM.from_vllm_config(
                    config, usage_context=UsageContext.ENGINE_CONTEXT, disable_log_stats=True
                )
        except Exception as error:
            told = f"{error}\n{self._log.describe_end()}"
            remedy = f"Memory ran out: {self._remedy}.\n" if tells_of_memory(told) else ""
            raise EngineStartFailed(
                f"vLLM did not start {self._model}: {told}\n{remedy}"
                "`ragcache doctor` checks the machine."
            ) from error
        self.attach(llm)
        return self._describe_limits(config)

    def use_running(self, llm: AsyncLLM) -> ModelLimits:
        """Work on an engine that somebody else has started, as vLLM's server has, and will close."""
        self._has_tiers = has_tiers(llm.vllm_config)
        self._remedy = self._measure(llm.vllm_config).describe_remedy()
        self.attach(llm)
        return self._describe_limits(llm.vllm_config)

    def attach(self, llm: AsyncLLM) -> None:
        """Use this engine of vLLM from now on to tokenize, render and generate."""
        self._llm = llm
        if self._has_tiers and self._budget.disk_bytes:
            # Now, as vLLM's own process does: the key may be another one when something is forgotten.
            with contextlib.suppress(ConfigError, OSError):
                self._budget.open_keys()
        self._tokenize_params = _with_offsets(llm.renderer.default_cmpl_tok_params)
        self._chat_tokenize_params = _with_offsets(llm.renderer.default_chat_tok_params)

    def _describe_limits(self, config: VllmConfig) -> ModelLimits:
        """Return how much the started model can take."""
        settings = self._tier_settings(config)
        self._is_borrowing = settings is not None and settings.recompute_ratio is not None
        if config.structured_outputs_config.reasoning_parser:
            # As the parsers of tool calls do, this import loads half of vLLM's server.
            from ragcache_engine.backends.vllm.reasoning import ReasoningParsers

            self._reasoning_parsers = ReasoningParsers(config, self._require_llm().get_tokenizer())
        cache = config.cache_config
        return ModelLimits(
            context_tokens=config.model_config.max_model_len,
            block_tokens=cache.block_size,
            device_blocks=cache.num_gpu_blocks or 0,
            step_tokens=self._provisional_step_tokens(config),
            host_blocks=self._host_blocks(config),
        )

    def _measure(self, config: VllmConfig) -> MemorySizes:
        """Return what the engine takes of memory."""
        settings, cache = self._tier_settings(config), config.cache_config
        return MemorySizes(
            weights_bytes(config.model_config.model),
            cache.kv_cache_memory_bytes,
            settings.host_bytes if settings else 0,
            config.model_config.max_model_len,
            is_cpu=current_platform.is_cpu(),
            device_share=cache.gpu_memory_utilization,
        )

    def _host_blocks(self, config: VllmConfig) -> int:
        """Count the blocks that the host tier holds; 0 without one."""
        settings, token_bytes = self._tier_settings(config), kv_token_bytes(config)
        if settings is None or token_bytes is None:
            return 0
        return settings.host_bytes // (token_bytes * config.cache_config.block_size)

    def _provisional_step_tokens(self, config: VllmConfig) -> int:
        """Return the most tokens of a step that computes something provisional."""
        settings = self._tier_settings(config)
        most = config.scheduler_config.max_num_batched_tokens
        return min(most, (settings and settings.provisional_step_tokens) or most)

    def _tier_settings(self, config: VllmConfig) -> TierSettings | None:
        """Return the settings of the tiers; None if vLLM runs without tiers."""
        transfer = config.kv_transfer_config
        if not self._has_tiers or transfer is None:
            return None
        return TierSettings.from_extra_config(transfer.kv_connector_extra_config)

    def _require_llm(self) -> AsyncLLM:
        """Return vLLM's engine. Raises EngineDied if it is not running."""
        if self._llm is None:
            raise EngineDied("the model's process is not running; make a new RAGCacheEngine")
        return self._llm

    def _death(self) -> EngineDied:
        """Return the error for a process that ended by itself."""
        return EngineDied(f"{PROCESS_ENDED}{self._remedy}. {self._log.describe_end()}")

    def tokenize(self, text: str, add_special_tokens: bool = True) -> TokenizedPrompt:
        """Tokenize a prompt as vLLM does, with the range of characters that each token stands for.

        add_special_tokens: True for a completion's prompt; False for a chat's, which has them already.
        """
        if not text:
            return TokenizedPrompt(text, ())
        renderer = self._require_llm().renderer
        params = self._tokenize_params if add_special_tokens else self._chat_tokenize_params
        with self._tokenizing:
            (tokens,) = renderer.tokenize_prompts([TextPrompt(prompt=text)], params)
        prompt = cast("TokensPrompt", tokens)  # a text always becomes this kind of prompt
        return TokenizedPrompt(
            text, prompt["prompt_token_ids"], prompt.get("prompt_token_offsets") or ()
        )

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        tokenizer = self._require_llm().get_tokenizer()
        with self._tokenizing:
            return tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def check(self, options: SamplingOptions) -> None:
        if options.guide is None or options.guide in self._servable_guides:
            return
        require_servable(options, self._require_llm())
        self._servable_guides[options.guide] = None
        if len(self._servable_guides) > MOST_GUIDES:
            self._servable_guides.pop(next(iter(self._servable_guides)), None)

    def render(self, conversation: Conversation) -> str:
        return render_conversation(conversation, self._require_llm().renderer)

    def tool_reader(self, tools: Sequence[Mapping[str, Any]]) -> ToolReader:
        if self._tool_parser is None:
            return CallReader()
        # This import loads half of vLLM's server, which most engines never need.
        from ragcache_engine.backends.vllm.tool_parsers import ParserReader

        return ParserReader(self._tool_parser, self._require_llm().get_tokenizer(), tools)

    def reasoning_reader(self, request: BackendRequest) -> ReasoningReader | None:
        if self._reasoning_parsers is None or request.options.template_args is None:
            return None
        return self._reasoning_parsers.make_reader(request)

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        params = to_sampling_params(request.options)
        if self._has_tiers:
            adopted, self._adopted = self._adopted, []
            message = replace(self._describe(request), adopted=adopted, is_trusted=True)
            # Never empty: the request's id is always among them.
            params.extra_args = {
                "kv_transfer_params": {**message.to_dict(), "request": request.request_id}
            }
        parsers = self._reasoning_parsers
        arguments = {} if parsers is None else parsers.arguments(request.options)
        require_readable(params, request.tenant, arguments)
        outputs = self._require_llm().generate(
            tokens_input(
                list(request.tokens.token_ids),
                prompt=request.prompt.text,
                cache_salt=request.tenant,
            ),
            params,
            request.request_id,
            **arguments,
        )
        told: dict[str, Any] | None = None
        account: FinishMessage | None = None
        try:
            async for output in outputs:
                # Where a stop string may end the answer, the same message comes with each token.
                if output.kv_transfer_params and output.kv_transfer_params != told:
                    told, account = output.kv_transfer_params, self._take_message(output)
                delta = _to_delta(output, account, is_exact=not self._is_borrowing)
                if (most := request.options.logprobs) is not None:
                    delta = replace(delta, logprobs=_read_logprobs(output.outputs[0], most))
                yield delta
        # Frames of vLLM's traceback refer to its engine, which must go, and to the error itself.
        except EngineDeadError as error:
            raise self._death() from error.with_traceback(None)
        except VLLMClientError as error:
            raise InvalidArgument(f"vLLM does not take this request: {error}") from error
        except VLLMError as error:
            raise GenerationFailed(
                f"vLLM could not finish the request: {error}"
            ) from error.with_traceback(None)
        finally:
            await outputs.aclose()

    def _describe(self, request: BackendRequest) -> RequestMessage:
        """Return the message that tells the scheduler about the request."""
        segments = [(segment.end, segment.document_id) for segment in request.segments]
        while segments and segments[-1][1] is None:
            segments.pop()  # leave out the text after the last document
        return RequestMessage(
            segments,
            guess=request.request_id if request.is_guess else None,
            is_provisional=request.is_provisional,
            is_exact=request.is_exact,
            recompute_ratio=request.recompute_ratio,
            starts=request.text_starts if self._is_borrowing else (),
            contexts=request.contexts,
            makes_donors=request.makes_donors,
            withdrawn=request.withdrawn,
        )

    def now(self) -> float:
        return time.monotonic()

    async def clear_cache(self) -> bool:
        llm = self._require_llm()
        try:
            return await _reset_cache(llm, with_tiers=self._has_tiers)
        except EngineDeadError as error:
            raise self._death() from error.with_traceback(None)

    async def forget(self, document_ids: Sequence[str]) -> None:
        llm, failure = self._require_llm(), None
        tombstones: dict[str, int] = {}
        if self._has_tiers and self._budget.disk_bytes:
            try:
                # First of all, so that no engine that shares the folder adds a file from now on.
                tombstones = await self._disk_threads.run(
                    partial(self._leave_tombstones, document_ids)
                )
                if self._budget.shared:
                    tombstones |= await self._disk_threads.run(
                        partial(self._forget_shared, document_ids)
                    )
            except (OSError, ConfigError, StoreAway) as error:
                failure = error
        try:
            if not (self._has_tiers and await self._tell_schedulers(llm, document_ids, tombstones)):
                await _reset_own_cache(llm)
        except EngineDeadError as error:
            raise EngineDied(
                "vLLM's process ended while documents were to be forgotten: forget them again"
            ) from error.with_traceback(None)
        if self._has_tiers and self._budget.disk_bytes:
            # The scheduler does not know the files of earlier processes and of other engines. Nobody
            # reads them any more: they are older than the tombstones.
            try:
                await self._disk_threads.run(partial(self._forget_files, document_ids))
            except (OSError, ConfigError) as error:
                failure = failure or error
        if failure:
            raise EngineError(
                f"this engine forgot the documents, but could not tell other engines that use "
                f"{self._budget.folder()}"
                + (f" or {self._budget.shared}" if self._budget.shared else "")
                + f": {failure}; mend that (make it writable), and forget them again"
            ) from failure

    def _leave_tombstones(self, document_ids: Sequence[str]) -> dict[str, int]:
        keys, folder = self._budget.open_keys(), self._budget.folder()
        naming = keys.naming if keys else PLAIN
        return leave_tombstones(folder, map(naming.mark, document_ids))

    def _forget_shared(self, document_ids: Sequence[str]) -> dict[str, int]:
        """Tell the engines of other hosts, and remove the blocks from what they share.

        Returns the times of the tombstones that stand in the folder then.
        """
        assert self._budget.shared is not None
        keys = self._budget.open_keys()
        with self._opening_shared:
            if self._shared is None:
                store = open_store(self._budget.shared)
                self._shared = store, ForgottenElsewhere(self._budget.folder(), store, keys)
            _, forgotten = self._shared
        mark = (keys.naming if keys else PLAIN).mark
        tenants = [mark(one) for one in document_ids if tenant_of(one) is not None]
        return forgotten.forget([*map(mark, document_ids)], tenants)

    def _forget_files(self, document_ids: Sequence[str]) -> None:
        keys, folder = self._budget.open_keys(), self._budget.folder()
        forget_documents(folder, document_ids, keys)

    async def _tell_schedulers(
        self, llm: AsyncLLM, document_ids: Sequence[str], tombstones: Mapping[str, int]
    ) -> bool:
        """Make the schedulers of all data parallel ranks forget; return False if they have no tiers."""
        message = RequestMessage(
            forget=document_ids,
            is_trusted=True,
            tombstones=tombstones,
        )
        ranks = llm.vllm_config.parallel_config.data_parallel_size
        answers = await asyncio.gather(
            *(
                self._tell_scheduler(llm, message, rank if ranks > 1 else None)
                for rank in range(ranks)
            )
        )
        return all(answer is not None for answer in answers)

    async def snapshot(
        self, documents: int, *, with_bloom_filter: bool = False
    ) -> TreeSnapshot | None:
        """Ask the scheduler, the one of the first data parallel rank if there are several."""
        if not self._has_tiers:
            return None
        llm = self._require_llm()
        message = RequestMessage(
            snapshot=documents, with_bloom_filter=with_bloom_filter, is_trusted=True
        )
        ranks = llm.vllm_config.parallel_config.data_parallel_size
        try:
            answer = await self._tell_scheduler(llm, message, 0 if ranks > 1 else None)
        except EngineDeadError as error:
            raise self._death() from error.with_traceback(None)
        return answer.tree if answer else None

    async def touch_if_cached(self, requests: Sequence[BackendRequest]) -> list[bool]:
        """Ask the scheduler. With several data parallel ranks nobody knows which one will be asked."""
        llm = self._require_llm()
        if not self._has_tiers or llm.vllm_config.parallel_config.data_parallel_size > 1:
            return [False] * len(requests)
        message = RequestMessage(looked_up=self._look_up(requests), is_trusted=True)
        try:
            answer = await self._tell_scheduler(llm, message, None)
        except EngineDeadError as error:
            raise self._death() from error.with_traceback(None)
        return list(answer.held) if answer and answer.held else [False] * len(requests)

    def _look_up(self, requests: Sequence[BackendRequest]) -> list[LookedUp]:
        return [LookedUp(one.tokens.token_ids, one.tenant, self._describe(one)) for one in requests]

    async def keep(self, requests: Sequence[BackendRequest], order: KeepOrder) -> Sequence[Kept]:
        message = RequestMessage(looked_up=self._look_up(requests), keep=order)
        answer = await self._ask_to_keep(message)
        if answer.no_room:
            raise NoRoomToKeep(order.tier, *answer.no_room)
        return answer.kept

    async def release(self, documents: Sequence[tuple[str, ...]], tenant: str | None) -> None:
        await self._ask_to_keep(RequestMessage(release=[(one, tenant) for one in documents]))

    async def kept(self) -> Sequence[Kept]:
        return (await self._ask_to_keep(RequestMessage(lists_kept=True))).kept

    async def _ask_to_keep(self, message: RequestMessage) -> KeptAnswer:
        llm = self._require_llm()
        if llm.vllm_config.parallel_config.data_parallel_size > 1:
            raise CannotKeep(
                "with several data parallel ranks nobody knows which one will be asked for a document, "
                "so none is kept: use one rank for each engine"
            )
        answer = None
        if self._has_tiers:
            try:
                answer = await self._tell_scheduler(llm, replace(message, is_trusted=True), None)
            except EngineDeadError as error:
                raise self._death() from error.with_traceback(None)
        if answer is None or answer.keeping is None:
            raise CannotKeep(
                "vLLM runs without RAGCache's tiers here, and its own cache keeps nothing"
            )
        if answer.keeping.has_failed:
            raise EngineError(
                "what was asked of kept documents failed: see vLLM's log, and report it"
            )
        return answer.keeping

    async def _tell_scheduler(
        self, llm: AsyncLLM, message: RequestMessage, rank: int | None
    ) -> FinishMessage | None:
        """Send a message in a request of one token; return the answer, None from a scheduler without
        tiers.
        """
        params = SamplingParams(max_tokens=1, detokenize=False)
        params.extra_args = {"kv_transfer_params": message.to_dict()}
        name = f"ragcache-upkeep-{next(self._upkeep_numbers)}"
        answer: FinishMessage | None = None
        async for output in llm.generate(tokens_input([0]), params, name, data_parallel_rank=rank):
            answer = self._take_message(output) or answer
        return answer

    def adopted(self, request_id: str) -> None:
        if self._has_tiers:
            # The next request tells the scheduler. Until then, no decision depends on the adoption.
            self._adopted.append(request_id)

    def counters(self) -> Counters:
        return self._counters

    def _take_message(self, output: RequestOutput) -> FinishMessage | None:
        """Read the scheduler's message at the end of a request, if there is one; keep its counters."""
        message = FinishMessage.from_dict(output.kv_transfer_params)
        if message:
            self._counters = message.counters
        return message

    async def close(self) -> None:
        llm, self._llm = self._llm, None
        if llm:
            llm.shutdown(timeout=SHUTDOWN_S)
            multiprocessing.active_children()  # reaps processes that died before
            self._reasoning_parsers = None
            del llm
            collect_closed_engine()
        if self._engine_id:
            # In case vLLM's processes were killed while they started.
            shared_memory.remove(shared_memory.name_memory(self._engine_id))
        shared, self._shared = self._shared, None  # the backend may start again
        if shared:
            shared[0].close()
        self._log.close()


def has_tiers(config: VllmConfig) -> bool:
    """Return whether vLLM runs with our tiers."""
    transfer = config.kv_transfer_config
    return transfer is not None and transfer.kv_connector == "TierConnector"


async def _reset_cache(llm: AsyncLLM, *, with_tiers: bool) -> bool:
    """Empty vLLM's own cache, and the tiers; return False while requests run. Raises EngineDeadError."""
    clearing = asyncio.ensure_future(llm.reset_prefix_cache(reset_connector=with_tiers))
    try:
        # vLLM never ends a call that its process received, or would have received, before it died.
        while not clearing.done() and not llm.errored:
            await asyncio.wait({clearing}, timeout=DEATH_CHECK_S)
        if not clearing.done():
            raise EngineDeadError
        return clearing.result()
    finally:
        clearing.cancel()


async def _reset_own_cache(llm: AsyncLLM) -> None:
    if not await _reset_cache(llm, with_tiers=False):
        raise GenerationFailed(
            "vLLM's own cache forgets nothing while requests run; wait for them to end"
        )


def to_sampling_params(options: SamplingOptions) -> SamplingParams:
    """Translate our sampling options into vLLM's."""
    return SamplingParams(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
        stop=list(options.stop),
        ignore_eos=options.ignore_eos,
        skip_special_tokens=options.skip_special_tokens,
        structured_outputs=to_structured_outputs(options.guide) if options.guide else None,
        logprobs=options.logprobs,
        output_kind=RequestOutputKind.DELTA,
    )


def require_readable(
    params: SamplingParams, tenant: str | None, arguments: Mapping[str, Any]
) -> None:
    """Raise GenerationFailed for a request that vLLM's process could not read.

    vLLM decodes each message by its declared types, in the one thread that reads all messages. An error
    ends this thread, and the process lives on without ever answering again. The engine's doors refuse
    such values; this looks once more, so that a value they overlook fails one request and not all.
    """
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
        msgspec.convert(tenant, str | None)
        msgspec.msgpack.encode(arguments)
        (tenant or "").encode()
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise GenerationFailed(
            f"vLLM's process could not read this request: {error}; please report this"
        ) from error


def _with_offsets(params: TokenizeParams) -> TokenizeParams:
    """Return the parameters for tokenizing with character offsets and without a limit.

    The engine checks the length itself, with an error that names it.
    """
    return replace(params, max_total_tokens=None, return_token_offsets=True)


def _to_delta(output: RequestOutput, message: FinishMessage | None, *, is_exact: bool) -> Delta:
    """Translate a part of vLLM's answer. Raises GenerationFailed if vLLM gave up the request.

    message: the scheduler's, as far as one has come. is_exact: whether no request borrows.
    """
    completion = output.outputs[0]
    if completion.finish_reason not in (None, "stop", "length"):
        raise GenerationFailed(
            f"vLLM ended the request with {completion.finish_reason!r}; ask again"
        )
    return Delta(
        text=completion.text,
        token_ids=tuple(completion.token_ids),
        cached=_count_cached_tokens(output, message, is_exact=is_exact),
        finish_reason=FinishReason(completion.finish_reason) if completion.finish_reason else None,
        reuse=message.reuse if message else None,
        why_exact=message.why_exact if message else None,
        sources=message.sources if message else None,
    )


def _read_logprobs(completion: CompletionOutput, most: int) -> tuple[TokenLogprob, ...]:
    """Translate how likely each new token was. most: of so many tokens in its place, too."""

    def read(token_id: int, known: Mapping[int, Logprob]) -> TokenLogprob:
        drawn = known[token_id]  # it may be one more than the likeliest
        likeliest = sorted(known.values(), key=lambda one: -one.logprob)[:most]
        top = tuple((one.decoded_token or "", one.logprob) for one in likeliest)
        return TokenLogprob(drawn.decoded_token or "", drawn.logprob, top)

    told = zip(completion.token_ids, completion.logprobs or (), strict=False)
    return tuple(starmap(read, told))


def _count_cached_tokens(
    output: RequestOutput, message: FinishMessage | None, *, is_exact: bool
) -> CachedTokens | None:
    """Count the request's cached tokens by tier; None if nobody told which of them were borrowed.

    Until the message has come, all count as the device's.
    """
    if message is None and output.finished and not is_exact:
        return None
    if message is None or message.tokens is None:
        return CachedTokens(device=output.num_cached_tokens or 0)
    return CachedTokens(**message.tokens)
