"""The paths below /ragcache: what a client asks of a backend, one path for each of its methods."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.responses import JSONResponse, Response, StreamingResponse

from ragcache_engine.anywhere.beginnings import Beginnings
from ragcache_engine.chat import check_messages, check_template_args, check_tools
from ragcache_engine.checks import (
    require_short_prompt,
    require_short_text,
    require_tenant,
    require_text,
    shown,
)
from ragcache_engine.corpora.learned import LearnedDocuments
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.errors import (
    BadRequest,
    ConfigError,
    CorpusTooLarge,
    EmptyPrompt,
    InvalidArgument,
    KeyRefused,
    OperatorsOnly,
    PromptTooLong,
    RAGCacheError,
    RefusedMessages,
    RequestTimedOut,
    RequestTooLarge,
    RequestTooSlow,
    RetrievalError,
    ServerBusy,
    UnknownDocument,
    UnsupportedGuide,
)
from ragcache_engine.prompt import Span, token_segments
from ragcache_engine.protocols import Backend, BackendRequest, Conversation
from ragcache_engine.serving.keys import Caller
from ragcache_engine.serving.known_contexts import KnownContexts
from ragcache_engine.serving.messages import (
    ALIVE_S,
    PREFIX,
    DetokenizeBody,
    ForgetBody,
    GenerateBody,
    RenderBody,
    ServerDescription,
    TokenizeBody,
    ToolCallsBody,
    TreeBody,
    delta_to_json,
    error_to_json,
    options_from_json,
)
from ragcache_engine.tenants import forget_id
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.values import Document, ModelLimits, SamplingOptions
from ragcache_engine.visible import LONGEST_SHOWN, describe_failure, visible

logger = logging.getLogger(__name__)

_STATUS: list[tuple[type[Exception], int]] = [
    (RequestTooLarge, 413),
    (RequestTooSlow, 408),
    (CorpusTooLarge, 413),
    (UnknownDocument, 404),
    (OperatorsOnly, 403),
    (KeyRefused, 401),
    (ServerBusy, 429),
    (BadRequest, 400),
    (RetrievalError, 400),
    (ConfigError, 400),
]

MOST_NAMED_DOCUMENTS = 1000
"""How many documents a prompt may have. Where a block lies on disk, all before it stand in its file."""

LONGEST_TEXT = 1 << 20
"""Of texts with so many characters a server counts the tokens, even if they are too long for a prompt."""

RENDER_S = 10.0
"""How long a chat template may write. Templates are programs, and some take long for what few expect.
So are guides, and the parsers of tool calls."""

AT_ONCE = 2
"""How many chat templates write at a time, how many guides are checked, how many answers parsed."""

TOKENIZED_AT_ONCE = 8
"""How many texts are tokenised at a time."""

UPKEEP_S = 120.0
"""How long forgetting and clearing may take, as on a disk that does not answer."""

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")


def _never() -> bool:
    return False


def _any_body(path: str, body: bytes) -> None:
    return None


async def _ignore(request: BackendRequest) -> None:
    return None


class WrittenPrompt(NamedTuple):
    """A prompt as the server behind the doors writes it. token_ids: None if they are the text's own."""

    text: str
    token_ids: Sequence[int] | None


WriteChat: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[WrittenPrompt]]
"""Writes the prompt of a conversation from the path of a request and its body."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a server serves. backend: started, and used on the server's own event loop.

    models, tool_parser, reasoning_parser: as in ServerDescription.
    chat_template: the Jinja text for conversations; None: the model's own. reuse: as in
      ServerDescription.
    is_switched_off: returns whether rechecked answers were so unlike that nothing is to be borrowed.
    occupied: what to enter while a request runs that does not ask this backend, such as one of OpenAI's.
    require_readable: raises InvalidArgument for the path and the body of one of OpenAI's requests if the
      server behind the doors would fail at it.
    tokenizers: the threads that texts are tokenised in. vLLM's server needs its loop's own.
    contexts: remembers behind what the documents of the latest prompts are stored.
    corpora: the documents that clients registered. learned: registers others that recur; None: nothing
      does.
    write_chat: returns the prompt that the server behind the doors makes of a conversation: of a chat
      request, a response or Anthropic's messages. Raises anything if it makes none.
    beginnings: how the latest prompts with registered documents began. warming: the tenants for whom
      documents are being warmed.
    note_prompt: is called with each of those that was answered.
    forgets_documents: whether the backend stores tensors by document. One that does not would have to
      clear everybody's cache to forget one.
    kept_share: which part of the host tier, and of the disk tier, may be kept from eviction. kept_tiers:
      which of them there are.
    """

    backend: Backend
    limits: ModelLimits
    models: tuple[str, ...]
    tool_parser: str | None = None
    chat_template: str | None = None
    reuse: Mapping[str, Any] = field(default_factory=dict)
    is_switched_off: Callable[[], bool] = _never
    occupied: Callable[[], AbstractContextManager[None]] = nullcontext
    require_readable: Callable[[str, bytes], None] = _any_body
    tokenizers: DaemonThreads = field(
        default_factory=lambda: DaemonThreads(TOKENIZED_AT_ONCE, "ragcache-server-tokenizing")
    )
    contexts: KnownContexts = field(default_factory=KnownContexts)
    reasoning_parser: str | None = None
    corpora: Corpora = field(default_factory=Corpora)
    learned: LearnedDocuments | None = None
    write_chat: WriteChat | None = None
    beginnings: Beginnings = field(default_factory=Beginnings)
    warming: set[str | None] = field(default_factory=set)
    note_prompt: Callable[[BackendRequest], Awaitable[None]] = _ignore
    forgets_documents: bool = True
    kept_share: float = 0.5
    kept_tiers: frozenset[str] = frozenset({"host", "disk"})
    forgetting: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: set[asyncio.Future[None]] = field(default_factory=set)

    async def forget(self, document_ids: Sequence[str]) -> None:
        """Forget documents. Raises RequestTimedOut."""
        self.contexts.forget(document_ids)
        self.beginnings.forget(document_ids)
        forgetting = self.backend.forget(document_ids)
        await _end_in_time(forgetting, UPKEEP_S, _too_late("forget these documents"))

    async def forget_all(self, document_ids: Sequence[str], tenants: Sequence[str]) -> None:
        """Forget documents, and tenants with all that they registered. Raises RequestTimedOut."""
        if tenants:
            await self.tokenizers.run(partial(self._drop_corpora, tenants))
        await self.forget([*document_ids, *map(forget_id, tenants)])
        if tenants:
            await self.forget_owed()

    def _drop_corpora(self, tenants: Sequence[str]) -> None:
        for tenant in tenants:
            if self.learned is not None:
                self.learned.forget_tenant(tenant)
            for name in self.corpora.summaries(tenant):
                self.corpora.drop(tenant, name)

    async def forget_owed(self) -> None:
        """Forget the registered documents that were removed or changed, all at once.

        What could not be forgotten stays owed, and is forgotten the next time. Raises RequestTimedOut.
        """
        async with self.forgetting:
            if owed := self.corpora.owed():
                if self.forgets_documents:
                    await self.forget([*owed])
                self.corpora.pay(owed)

    def begin_to_forget_owed(self) -> None:
        """Do so without anybody who waits for it, unless it is being done. A failure is logged."""
        if self.forgetting.locked() or not self.corpora.owed():
            return
        task = asyncio.ensure_future(self.forget_owed())
        self.tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Future[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("removed documents are forgotten later: %s", error)


Handler = Callable[[bytes, Caller, Served], Awaitable[Response]]


class Routes:
    """Answers requests. A mistake in one becomes an answer with the name of its error."""

    def __init__(self) -> None:
        self._renderers = DaemonThreads(AT_ONCE, "ragcache-server-rendering")
        self._checkers = DaemonThreads(AT_ONCE, "ragcache-checking")
        self._parsers = DaemonThreads(AT_ONCE, "ragcache-parsing")
        self._handlers: dict[tuple[str, str], Handler] = {
            ("GET", "/server"): _describe,
            ("GET", "/counters"): _count,
            ("POST", "/generate"): self._generate,
            ("POST", "/tokenize"): _tokenize,
            ("POST", "/detokenize"): _detokenize,
            ("POST", "/render"): self._render,
            ("POST", "/tool_calls"): self._read_tool_calls,
            ("POST", "/forget"): _forget,
            ("POST", "/clear"): _clear,
            ("POST", "/tree"): _show_tree,
        }

    async def answer(
        self, method: str, path: str, caller: Caller, body: bytes, served: Served
    ) -> Response:
        """Return the answer to a request. path: with its PREFIX."""
        handler = self._handlers.get((method, path.removeprefix(PREFIX)))
        if handler is None:
            return JSONResponse({"error": {"message": f"there is no {method} {path}"}}, 404)
        try:
            return await handler(body, caller, served)
        except Exception as error:
            log_unforeseen(error)
            return JSONResponse(error_to_json(error), status_of(error))

    async def _render(self, body: bytes, caller: Caller, served: Served) -> Response:
        conversation = _read_conversation(parse_body(RenderBody, body), caller, served)
        refusal = RefusedMessages(
            f"the chat template did not write this conversation within {RENDER_S:.0f} s: send fewer "
            f"messages, or ask again when fewer others do"
        )
        render = partial(served.backend.render, conversation)
        text = await _end_in_time(self._renderers.run(render), RENDER_S, refusal)
        return JSONResponse({"text": text})

    async def _generate(self, body: bytes, caller: Caller, served: Served) -> Response:
        said = parse_body(GenerateBody, body)
        options = options_from_json(said.options)
        if options.guide:
            refusal = UnsupportedGuide(
                f"the guide was not checked within {RENDER_S:.0f} s: send a smaller one, or ask again "
                f"when fewer others do"
            )
            check = partial(served.backend.check, options)
            await _end_in_time(self._checkers.run(check), RENDER_S, refusal)
        request = await served.tokenizers.run(partial(_prepare, said, options, caller, served))
        for name in said.adopted:
            served.backend.adopted(_name_request(name, caller))
        events = _write_events(request, caller, served)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _read_tool_calls(self, body: bytes, caller: Caller, served: Served) -> Response:
        said = parse_body(ToolCallsBody, body)
        require_short_prompt(len(said.text), served.limits.context_tokens)
        reader = served.backend.tool_reader(check_tools(said.tools))
        refusal = InvalidArgument(
            f"the parser did not read this text within {RENDER_S:.0f} s: send a shorter one, or ask "
            f"again when fewer others do"
        )
        parse = partial(reader.whole, said.text)
        answer = await _end_in_time(self._parsers.run(parse), RENDER_S, refusal)
        calls = [[call.id, call.name, call.arguments] for call in answer.calls]
        return JSONResponse({"text": answer.text, "calls": calls})


async def _end_in_time(work: Awaitable[T], limit_s: float, error: Exception) -> T:
    """Wait for work that has so much time. Raises this error once it is over."""
    try:
        async with asyncio.timeout(limit_s) as wait:
            return await work
    except TimeoutError:
        if not wait.expired():
            raise
        raise error from None


def status_of(error: Exception) -> int:
    """Return the HTTP status that goes with an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def log_unforeseen(error: Exception) -> None:
    """Log an error that the client is not told of. Call this where it was caught."""
    if not isinstance(error, RAGCacheError):
        logger.error("a request failed; please report this\n%s", describe_failure(error))


def require_few_documents(documents: int) -> None:
    """Raise InvalidArgument for more documents than a prompt may have."""
    if documents > MOST_NAMED_DOCUMENTS:
        raise InvalidArgument(
            f"the prompt names {documents:,} documents, and a server takes {MOST_NAMED_DOCUMENTS:,}: "
            f"retrieve fewer, or name several as one"
        )


def require_countable(characters: int, served: Served) -> None:
    """Raise PromptTooLong for a text of so many characters that a server does not count its tokens."""
    if characters > LONGEST_TEXT:
        require_short_prompt(characters, served.limits.context_tokens)


def read_spans(said: Any, prompt: str) -> list[Span]:
    """Read the documents of a prompt: [[start, end, id], ...]. Raises InvalidArgument."""
    spans: list[Span] = []
    reached = 0
    require_few_documents(len(said) if isinstance(said, list) else 1)
    for one in said if isinstance(said, list) else [said]:
        match one:
            case [int(start), int(end), str(name)] if reached <= start < end <= len(prompt):
                spans.append(Span(start, end, require_short_text(name, "a document's id")))
                reached = end
            case _:
                raise InvalidArgument(
                    f"a document is [first character, character behind its last, id], inside the "
                    f"prompt's {len(prompt)} characters and behind the document before it; got "
                    f"{shown(one)}"
                )
    return spans


async def _describe(body: bytes, caller: Caller, served: Served) -> Response:
    told = ServerDescription(
        served.models,
        served.limits,
        served.tool_parser,
        caller.tenant,
        caller.is_operator,
        served.reuse,
        reasoning_parser=served.reasoning_parser,
    )
    return JSONResponse(told.to_json())


async def _count(body: bytes, caller: Caller, served: Served) -> Response:
    caller.require_operator("read the counters of all tenants")
    return JSONResponse(served.backend.counters().as_dict())


def _name_request(name: str, caller: Caller) -> str:
    """Return the server's own name for a request: no tenant's is another's."""
    return f"{caller.tenant or ''}/{name}"


def _prepare(
    said: GenerateBody, options: SamplingOptions, caller: Caller, served: Served
) -> BackendRequest:
    """Check and tokenise a prompt. Raises one of the kinds of BadRequest."""
    require_text(said.prompt, "a prompt")
    spans = read_spans([list(document) for document in said.documents], said.prompt)
    room = served.limits.context_tokens
    require_short_prompt(len(said.prompt), room)
    tokens = served.backend.tokenize(said.prompt, options.add_special_tokens)
    if not len(tokens):
        raise EmptyPrompt("the prompt is empty: check what your prompt template was filled with")
    if len(tokens) >= room:
        raise PromptTooLong(
            f"the prompt has {len(tokens)} tokens, and the model's context of {room} leaves no room "
            f"for an answer; retrieve fewer or shorter documents, or start the server with a larger "
            f"--max-model-len"
        )
    return BackendRequest(
        _name_request(said.request, caller),
        tokens,
        token_segments(tokens, spans),
        options,
        caller.tenant_for(_read_tenant(said.tenant)),
        is_guess=said.guess,
        is_provisional=said.provisional,
        is_exact=said.exact,
        recompute_ratio=said.recompute_ratio,
        contexts=_read_contexts(said, spans, served),
        makes_donors=said.makes_donors,
        withdrawn=_require_texts(said.withdrawn),
    )


def _read_contexts(said: GenerateBody, spans: Sequence[Span], served: Served) -> dict[str, Context]:
    """Read behind which neighbours the documents of a prompt are stored.

    Raises InvalidArgument; PromptTooLong for more text than the model's context has room for.
    """
    contexts = {}
    told = (said.neighbours.get(span.document_id, ("", "")) for span in spans)
    require_short_prompt(sum(len(text) for _, text in told), served.limits.context_tokens)
    for span in spans:
        if span.document_id not in said.neighbours:
            continue
        name, text = said.neighbours[span.document_id]
        neighbour = Document(require_short_text(name, "a document's id"), text)
        if not served.reuse or said.exact:
            continue
        own = said.prompt[span.start : span.end]
        contexts[span.document_id] = served.contexts.find(served.backend.tokenize, own, neighbour)
    return contexts


def _read_tenant(said: str | None) -> str | None:
    return require_tenant(said if said is None else require_short_text(said, "tenant"))


async def _write_events(
    request: BackendRequest, caller: Caller, served: Served
) -> AsyncGenerator[str, None]:
    """Yield the events of an answer. Closing it, as when the reader leaves, ends the generation."""
    yield _event({"prompt_tokens": len(request.tokens)})
    generated = served.backend.generate(request)
    try:
        reader = served.backend.reasoning_reader(request)
        async with aclosing(with_signs_of_life(generated)) as deltas:
            async for delta in deltas:
                if delta is None:
                    # The comment for whoever stands between, the event for the engine that asks: its
                    # reader of events never sees a comment.
                    yield ": still waiting\n\n" + _event({"text": ""})
                    continue
                if reader is not None:
                    delta = reader.read(delta)
                counters = served.backend.counters() if caller.is_operator else None
                yield _event(delta_to_json(delta, counters))
    except Exception as error:
        log_unforeseen(error)
        yield _event(error_to_json(error))


async def with_signs_of_life(
    generated: AsyncGenerator[T, None], every_s: float | None = None
) -> AsyncGenerator[T | None, None]:
    """Yield what is generated, and None wherever nothing has come for so many seconds.

    every_s: None: ALIVE_S.
    """
    every_s = ALIVE_S if every_s is None else every_s
    async with aclosing(generated) as items:
        coming: asyncio.Future[T] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(items))
                await asyncio.wait({coming}, timeout=every_s)
                if not coming.done():
                    yield None
                    continue
                done, coming = coming, None
                try:
                    item = done.result()
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)


def _event(said: dict[str, Any]) -> str:
    return f"data: {json.dumps(said, separators=(',', ':'))}\n\n"


async def _tokenize(body: bytes, caller: Caller, served: Served) -> Response:
    said = parse_body(TokenizeBody, body)
    require_text(said.text, "a prompt")
    require_countable(len(said.text), served)
    tokens = await served.tokenizers.run(
        partial(served.backend.tokenize, said.text, said.add_special_tokens)
    )
    return JSONResponse(
        {"token_ids": list(tokens.token_ids), "offsets": [list(each) for each in tokens.offsets]}
    )


async def _detokenize(body: bytes, caller: Caller, served: Served) -> Response:
    said = parse_body(DetokenizeBody, body)
    if len(said.token_ids) > served.limits.context_tokens:
        raise InvalidArgument(
            f"an answer has {served.limits.context_tokens:,} tokens at most, got {len(said.token_ids):,}"
        )
    try:
        text = await served.tokenizers.run(
            partial(served.backend.detokenize, said.token_ids, said.skip_special_tokens)
        )
    except (LookupError, ArithmeticError, TypeError, ValueError) as error:
        # Tokenizers do not agree on how they refuse a number that they do not know.
        raise InvalidArgument("token_ids has a number that is no token of the model's") from error
    return JSONResponse({"text": text})


def _read_conversation(said: RenderBody, caller: Caller, served: Served) -> Conversation:
    """Check a conversation. Raises OperatorsOnly, or one of the kinds of BadRequest."""
    if said.template is not None and not caller.is_operator:
        raise OperatorsOnly(
            "only an operator may bring a chat template, which is a program: start the server with "
            "--chat-template"
        )
    room = served.limits.context_tokens
    if len(said.messages) >= room:
        raise PromptTooLong(
            f"the conversation has {len(said.messages)} messages, and the model's context has room for "
            f"{room} tokens: send fewer messages"
        )
    return replace(
        said.conversation(),
        messages=check_messages(said.messages),
        tools=check_tools(said.tools),
        template=said.template or served.chat_template,
        template_args=check_template_args(said.template_args),
    )


async def _forget(body: bytes, caller: Caller, served: Served) -> Response:
    caller.require_operator("make the server forget documents")
    said = parse_body(ForgetBody, body)
    if not said.model_fields_set:
        raise InvalidArgument("say what to forget: document_ids, tenants, or both")
    tenants = [require_tenant(require_short_text(one, "tenant")) for one in said.tenants]
    ids = _require_texts(said.document_ids)
    await served.forget_all(ids, [one for one in tenants if one is not None])
    return JSONResponse({})


async def _clear(body: bytes, caller: Caller, served: Served) -> Response:
    caller.require_operator("clear the server's cache")
    clearing = served.backend.clear_cache()
    cleared = await _end_in_time(clearing, UPKEEP_S, _too_late("clear its cache"))
    return JSONResponse({"cleared": cleared})


def _too_late(asked: str) -> RequestTimedOut:
    return RequestTimedOut(
        f"the server did not {asked} within {UPKEEP_S:.0f} s, so some of it may not be done: see "
        f"whether its disk answers, and ask again"
    )


async def _show_tree(body: bytes, caller: Caller, served: Served) -> Response:
    caller.require_operator("see the documents and requests of all tenants")
    said = parse_body(TreeBody, body)
    tree = await served.backend.snapshot(said.documents, with_bloom_filter=said.with_bloom_filter)
    return JSONResponse({"tree": tree and tree.to_dict()})


def parse_body(kind: type[B], body: bytes) -> B:
    """Read a body. Raises InvalidArgument."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise InvalidArgument(f"{visible(where, most=LONGEST_SHOWN)}: {first['msg']}") from error


def _require_texts(names: Sequence[str]) -> list[str]:
    return [require_short_text(name, "a document's id") for name in names]
