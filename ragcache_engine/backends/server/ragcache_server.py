"""The Backend that is a RAGCache server, started by `ragcache serve`."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from ragcache_engine.backends.server.connection import Connection, read_error
from ragcache_engine.chat import (
    CallReader,
    ToolAnswer,
    ToolAnswerPart,
    ToolCall,
    ToolCallPart,
    ToolReader,
)
from ragcache_engine.errors import CannotKeep, ServerLost
from ragcache_engine.protocols import BackendRequest, Conversation, Delta, ReasoningReader
from ragcache_engine.serving.messages import (
    MOST_ADOPTED,
    PREFIX,
    DetokenizeBody,
    ForgetBody,
    GenerateBody,
    RenderBody,
    ServerDescription,
    TokenizeBody,
    ToolCallsBody,
    delta_from_json,
)
from ragcache_engine.tenants import tenant_of
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.kept import KeepOrder, Kept
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot
from ragcache_engine.values import ModelLimits, SamplingOptions, TokenizedPrompt

KEEPS_ITSELF = "a server's documents are kept by its operator: see docs/guides/keeping.md"


class RAGCacheServerBackend:
    """Asks a server whatever the engine asks. told: what the server said of itself."""

    reads_text = True

    def __init__(self, connection: Connection, told: ServerDescription) -> None:
        self._connection = connection
        self._told = told
        self.borrows = bool(told.reuse)
        self._session = uuid4().hex  # tells this client's requests from those of others
        self._adopted: list[str] = []
        self._counters = Counters()

    async def start(self) -> ModelLimits:
        await self._connection.open()
        return self._told.limits

    def tokenize(self, text: str, add_special_tokens: bool = True) -> TokenizedPrompt:
        body = TokenizeBody(text=text, add_special_tokens=add_special_tokens)
        said = self._ask("/tokenize", body)
        return TokenizedPrompt(
            text, tuple(said["token_ids"]), [(start, end) for start, end in said["offsets"]]
        )

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        body = DetokenizeBody(token_ids=list(token_ids), skip_special_tokens=skip_special_tokens)
        return str(self._ask("/detokenize", body)["text"])

    def check(self, options: SamplingOptions) -> None:
        """Leave it to the server, which refuses a guide before it starts the request."""

    def render(self, conversation: Conversation) -> str:
        return str(self._ask("/render", RenderBody.of(conversation))["text"])

    def tool_reader(self, tools: Sequence[Mapping[str, Any]]) -> ToolReader:
        if self._told.tool_parser is None:
            return CallReader()
        return _ServerReader(self._connection, [dict(tool) for tool in tools])

    def reasoning_reader(self, request: BackendRequest) -> ReasoningReader | None:
        """Return None: the server itself tells the reasoning apart."""
        return None

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        adopted, self._adopted = self._adopted[:MOST_ADOPTED], self._adopted[MOST_ADOPTED:]
        body = GenerateBody.of(request, self._name(request.request_id), adopted)
        last: Delta | None = None
        # Without what is as ever, which an older server may not know.
        sent = body.model_dump(exclude_defaults=True)
        events = self._connection.stream(f"{PREFIX}/generate", sent)
        async with aclosing(events):
            async for said in events:
                if "error" in said:
                    raise read_error(500, json.dumps(said), {})
                if not said:  # what follows tells more
                    continue
                delta = delta_from_json(said)
                if delta.finish_reason is None:
                    yield delta
                    continue
                if "counters" in said:
                    self._counters = Counters.from_dict(said["counters"])
                last = delta  # read to the end of the stream, so that its connection serves again
        if last is None:
            raise ServerLost("the server ended the answer without saying why: ask again")
        yield last

    def now(self) -> float:
        return time.monotonic()

    async def clear_cache(self) -> bool:
        said = await self._connection.acall("POST", f"{PREFIX}/clear", {}, is_quick=False)
        return bool(said["cleared"])

    async def forget(self, document_ids: Sequence[str]) -> None:
        tenants = {one: tenant_of(one) for one in document_ids}
        body = ForgetBody(
            document_ids=[one for one, tenant in tenants.items() if tenant is None],
            tenants=[tenant for tenant in tenants.values() if tenant is not None],
        )
        path = f"{PREFIX}/forget"
        await self._connection.acall("POST", path, body.model_dump(), is_quick=False)

    def adopted(self, request_id: str) -> None:
        # The next request tells the server. Until then, no decision depends on the adoption.
        self._adopted.append(self._name(request_id))

    def counters(self) -> Counters:
        return self._counters

    async def keep(self, requests: Sequence[BackendRequest], order: KeepOrder) -> Sequence[Kept]:
        raise CannotKeep(KEEPS_ITSELF)

    async def release(self, documents: Sequence[tuple[str, ...]], tenant: str | None) -> None:
        raise CannotKeep(KEEPS_ITSELF)

    async def kept(self) -> Sequence[Kept]:
        raise CannotKeep(KEEPS_ITSELF)

    async def touch_if_cached(self, requests: Sequence[BackendRequest]) -> list[bool]:
        return [False] * len(requests)

    async def snapshot(
        self, documents: int, *, with_bloom_filter: bool = False
    ) -> TreeSnapshot | None:
        """Return None: the tree belongs to the server, and `ragcache dashboard URL` shows it."""
        return None

    async def close(self) -> None:
        await self._connection.close()

    def _name(self, request_id: str) -> str:
        return f"{self._session}/{request_id}"

    def _ask(self, path: str, body: Any) -> Any:
        return self._connection.call("POST", f"{PREFIX}{path}", body.model_dump())


@dataclass(slots=True)
class _ServerReader:
    """Lets the server read the calls in an answer, with vLLM's parser for the model.

    A parser reads the server's tokens, so a streamed answer is read when it is whole.
    """

    connection: Connection
    tools: list[dict[str, Any]]
    _texts: list[str] = field(default_factory=list)

    def read(self, text: str, token_ids: Sequence[int]) -> ToolAnswerPart:
        self._texts.append(text)
        return ToolAnswerPart()

    def end(self) -> ToolAnswerPart:
        answer = self.whole("".join(self._texts))
        parts = [
            ToolCallPart(at, call.id, call.name, call.arguments)
            for at, call in enumerate(answer.calls)
        ]
        return ToolAnswerPart(answer.text, tuple(parts))

    def whole(self, text: str) -> ToolAnswer:
        body = ToolCallsBody(tools=self.tools, text=text)
        said = self.connection.call("POST", f"{PREFIX}/tool_calls", body.model_dump())
        return ToolAnswer(said["text"], tuple(ToolCall(*call) for call in said["calls"]))
