"""The Backend that is a plain vLLM server, without RAGCache: OpenAI's API, and what vLLM adds to it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ragcache_engine.backends.server.connection import Connection, read_error
from ragcache_engine.chat import CallReader, ToolReader
from ragcache_engine.checks import require_salt
from ragcache_engine.errors import (
    BadRequest,
    EmptyPrompt,
    GenerationFailed,
    NoChatTemplate,
    PromptTooLong,
    RAGCacheError,
    RefusedMessages,
    ServerLacks,
    ServerLost,
    UnsupportedGuide,
)
from ragcache_engine.guide import Guide
from ragcache_engine.protocols import BackendRequest, Conversation, Delta, ReasoningReader
from ragcache_engine.tiers.borrowing.plan import WhyExact
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.kept import KeepOrder, Kept
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot
from ragcache_engine.values import (
    CachedTokens,
    FinishReason,
    ModelLimits,
    SamplingOptions,
    TokenizedPrompt,
    TokenLogprob,
)

logger = logging.getLogger(__name__)

MISSING = (
    "documents are not kept apart and have no tiers, forget and clear_cache raise ServerLacks, tool "
    "calls are read as JSON between <tool_call> tags, reasoning stays in the answers, and nobody knows "
    "what was cached unless the server runs with --enable-prompt-tokens-details"
)
"""What a plain vLLM server lacks, for the warning when an engine connects to one."""

SAME_NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "ignore_eos",
    "skip_special_tokens",
    "add_special_tokens",
)
"""The options that vLLM's API calls as we do."""


class VLLMServerBackend:
    """Asks a plain vLLM server what the engine asks, as far as it can. model: the name it serves."""

    reads_text = True
    borrows = False  # the server does, if it was started so

    def __init__(self, connection: Connection, model: str, limits: ModelLimits) -> None:
        self._connection = connection
        self._model = model
        self._limits = limits

    async def start(self) -> ModelLimits:
        logger.warning("%s is a plain vLLM server: %s", self._connection.url, MISSING)
        await self._connection.open()
        return self._limits

    def tokenize(self, text: str, add_special_tokens: bool = True) -> TokenizedPrompt:
        """Tokenise a prompt. vLLM's server does not tell which characters a token stands for."""
        if not text:
            return TokenizedPrompt(text, ())
        body = {"model": self._model, "prompt": text, "add_special_tokens": add_special_tokens}
        said = self._connection.call("POST", "/tokenize", body)
        return TokenizedPrompt(text, tuple(said["tokens"]))

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Write tokens as text. vLLM's server keeps the special ones."""
        body = {"model": self._model, "tokens": list(token_ids)}
        return str(self._connection.call("POST", "/detokenize", body)["prompt"])

    def check(self, options: SamplingOptions) -> None:
        """Leave it to the server, which refuses a guide before it starts the request."""

    def render(self, conversation: Conversation) -> str:
        """Write a conversation by way of its tokens: vLLM's server tells nothing else of its template.

        Raises RefusedMessages also if other tokens come of the text than the template wrote.
        """
        body = {
            "model": self._model,
            "messages": [dict(message) for message in conversation.messages],
            "add_generation_prompt": conversation.add_generation_prompt,
            "continue_final_message": conversation.continue_final_message,
            "chat_template_kwargs": dict(conversation.template_args),
        }
        if conversation.tools:
            body["tools"] = [dict(tool) for tool in conversation.tools]
        if conversation.template is not None:
            body["chat_template"] = conversation.template
        try:
            tokens = self._connection.call("POST", "/tokenize", body)["tokens"]
        except (BadRequest, GenerationFailed) as error:
            raise _refused_conversation(error) from error
        text = self.detokenize(tokens)
        if list(self.tokenize(text, add_special_tokens=False).token_ids) != list(tokens):
            raise RefusedMessages(
                "the server's chat template writes tokens that no text stands for; write the prompt "
                "yourself, or start the server with `ragcache serve`"
            )
        return text

    def tool_reader(self, tools: Sequence[Mapping[str, Any]]) -> ToolReader:
        return CallReader()

    def reasoning_reader(self, request: BackendRequest) -> ReasoningReader | None:
        """Return None: of a completion, vLLM's server tells no reasoning apart."""
        return None

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        body = self._write_body(request)
        if request.options.max_tokens is None:
            body["max_tokens"] = await self._count_room(request)
        last: Delta | None = None
        async with aclosing(self._connection.stream("/v1/completions", body)) as events:
            try:
                async for said in events:
                    if "error" in said:
                        raise read_error(_read_status(said["error"]), json.dumps(said), {})
                    if not said and request.options.guide:
                        continue  # vLLM checks a guide only after it has said that all is well
                    # The first one, of nothing, says that it was taken.
                    delta = _read_delta(said, last, request.options.logprobs or 0)
                    if last is None and delta.finish_reason is None:
                        yield delta
                    else:
                        last = delta  # the usage follows behind the last token
            except BadRequest as error:
                raise _refused_prompt(error, request.options) from error
        if last is None:
            raise ServerLost("the server ended the answer without saying why: ask again")
        yield last

    def _write_body(self, request: BackendRequest) -> dict[str, Any]:
        options = request.options
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": request.prompt.text,
            "max_tokens": options.max_tokens,
            "stop": list(options.stop),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **{name: getattr(options, name) for name in SAME_NAMES},
        }
        if options.logprobs is not None:
            body["logprobs"] = options.logprobs
        if options.guide:
            body["structured_outputs"] = _write_guide(options.guide)
        if request.tenant is not None:
            require_salt(request.tenant)
            body["cache_salt"] = request.tenant
        return body

    async def _count_room(self, request: BackendRequest) -> int:
        """Return how many tokens an answer may have at most: without a number, vLLM's API gives 16."""
        body = {
            "model": self._model,
            "prompt": request.prompt.text,
            "add_special_tokens": request.options.add_special_tokens,
        }
        said = await self._connection.acall("POST", "/tokenize", body)
        room = self._limits.context_tokens - int(said["count"])
        if room < 1:
            raise _too_long(f"the prompt has {said['count']} tokens")
        return room

    def now(self) -> float:
        return time.monotonic()

    async def clear_cache(self) -> bool:
        raise _lacking("clear its cache")

    async def forget(self, document_ids: Sequence[str]) -> None:
        raise _lacking("forget documents")

    def adopted(self, request_id: str) -> None:
        """Ignore it: the server does not know guesses from other requests."""

    def counters(self) -> Counters:
        return Counters()

    async def keep(self, requests: Sequence[BackendRequest], order: KeepOrder) -> Sequence[Kept]:
        raise _lacking("keep documents from eviction")

    async def release(self, documents: Sequence[tuple[str, ...]], tenant: str | None) -> None:
        raise _lacking("keep documents from eviction")

    async def kept(self) -> Sequence[Kept]:
        raise _lacking("keep documents from eviction")

    async def touch_if_cached(self, requests: Sequence[BackendRequest]) -> list[bool]:
        return [False] * len(requests)

    async def snapshot(
        self, documents: int, *, with_bloom_filter: bool = False
    ) -> TreeSnapshot | None:
        """Return None: the tree belongs to the server, and `ragcache dashboard URL` shows it."""
        return None

    async def close(self) -> None:
        await self._connection.close()


def _write_guide(guide: Guide) -> dict[str, Any]:
    form: Any = list(guide.form) if guide.kind.value == "choice" else guide.form[0]
    return {guide.kind.value: guide.schema if guide.kind.value == "json" else form}


def _read_delta(said: Mapping[str, Any], last: Delta | None, most_logprobs: int = 0) -> Delta:
    """Read a chunk of a stream. last: the answer's last delta, which waits for its usage."""
    choice = (said.get("choices") or [{}])[0]
    text, reason = choice.get("text") or "", choice.get("finish_reason")
    if reason not in (None, "stop", "length"):
        raise GenerationFailed(f"the server ended the answer with {reason!r}; ask again")
    ended = FinishReason(reason) if reason else last.finish_reason if last else None
    usage = said.get("usage") or {}
    details = usage.get("prompt_tokens_details")
    return Delta(
        (last.text if last else "") + text,
        (*(last.token_ids if last else ()), *(choice.get("token_ids") or ())),
        CachedTokens(device=details.get("cached_tokens") or 0) if details else None,
        ended,
        why_exact=WhyExact.PLAIN_SERVER if ended else None,
        prompt_tokens=usage.get("prompt_tokens"),
        logprobs=(
            *(last.logprobs if last else ()),
            *_read_logprobs(choice.get("logprobs") or {}, most_logprobs),
        ),
    )


def _read_logprobs(said: Mapping[str, Any], most: int) -> Iterator[TokenLogprob]:
    """Read how likely each token of a chunk was, from the form of OpenAI's completions."""
    tokens, numbers, tops = (
        said.get(name) or () for name in ("tokens", "token_logprobs", "top_logprobs")
    )
    for token, number, top in zip(tokens, numbers, tops, strict=True):
        likeliest = sorted((top or {}).items(), key=lambda one: -one[1])
        yield TokenLogprob(
            token, number, tuple(likeliest[:most])
        )  # the token itself may be one more


def _read_status(said: Any) -> int:
    """Return the HTTP status of an error that came inside a stream."""
    code = said.get("code") if isinstance(said, Mapping) else None
    return code if isinstance(code, int) else 500


def _refused_prompt(error: BadRequest, options: SamplingOptions) -> RAGCacheError:
    """Return our error for a request that vLLM's server refused."""
    told = str(error)
    if "context length" in told or "max_model_len" in told:
        return _too_long(told)
    if "must be provided and non-empty" in told:
        return EmptyPrompt("the prompt is empty: check what your prompt template was filled with")
    if options.guide:
        return UnsupportedGuide(
            f"the server cannot hold an answer to this {options.guide.kind.value} guide: {told}"
        )
    return error


def _too_long(told: str) -> PromptTooLong:
    return PromptTooLong(
        f"{told}; retrieve fewer or shorter documents, ask for a shorter answer, or start the server "
        f"with a larger --max-model-len"
    )


def _refused_conversation(error: RAGCacheError) -> RAGCacheError:
    if "chat template" in str(error) and "not" in str(error):
        return NoChatTemplate(f"the server's model has no chat template: {error}")
    return RefusedMessages(f"the server's chat template does not take this conversation: {error}")


def _lacking(what: str) -> ServerLacks:
    return ServerLacks(f"a plain vLLM server cannot {what}: start it with `ragcache serve`")
