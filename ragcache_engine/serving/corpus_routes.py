"""The paths below /ragcache/corpora: documents that a client registers, to be recognised in any prompt.

    PUT    /ragcache/corpora/NAME                  register the documents of the body's lines
    GET    /ragcache/corpora                       what each corpus holds
    GET    /ragcache/corpora/NAME                  its documents: ids and digests
    DELETE /ragcache/corpora/NAME                  remove all its documents, and what is stored of them
    POST   /ragcache/corpora/NAME/remove           remove the documents {"ids": [...]}
    POST   /ragcache/corpora/NAME/warm             prepare them all, or {"ids": [...]}, now, and keep them
                                                   with {"keep": {"tier": "disk", "for_s": 86400}}
    GET    /ragcache/corpora/NAME/kept             which of them are kept
    POST   /ragcache/corpora/NAME/release          keep them all, or {"ids": [...]}, no longer
    GET    /ragcache/corpora/NAME/documents/ID     one document
    DELETE /ragcache/corpora/NAME/documents/ID     remove one

A tenant's key sees its own corpora alone. What callers without a tenant register is everybody's; where
there are operators, only they change it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive

from ragcache_engine.checks import require_salt, require_short_text, require_text
from ragcache_engine.corpora.document import Change, Registered, require_corpus_name
from ragcache_engine.corpora.learned import CORPUS as LEARNED
from ragcache_engine.corpora.registered import Corpora, ListedDocument
from ragcache_engine.errors import (
    BadRequest,
    ConfigError,
    OperatorsOnly,
    RequestTooLarge,
    RequestTooSlow,
)
from ragcache_engine.serving.corpus_keeping import (
    list_kept,
    make_keep_order,
    release_documents,
)
from ragcache_engine.serving.corpus_warming import CorpusWarming
from ragcache_engine.serving.keys import Caller
from ragcache_engine.serving.messages import (
    CORPORA,
    LINES,
    CorpusLine,
    ReleaseBody,
    RemoveBody,
    WarmBody,
    error_to_json,
)
from ragcache_engine.serving.routes import Served, log_unforeseen, parse_body, status_of

LONGEST_LINE_BYTES = 4 << 20
"""How long a line of a body may be: a long document, and what is told of it."""

LINE_S = 60.0
"""How long a line may take to come. Until then its request has room that another one could use."""

LINES_AT_ONCE, BYTES_AT_ONCE = 64, 1 << 20
"""So many lines, or those of so many bytes, are registered in one go."""

WRITTEN_AT_ONCE = 256
"""How many documents are listed before other requests have their turn."""


class CorpusRoutes:
    """Answers requests. A mistake in one becomes an answer with the name of its error."""

    async def push(
        self, path: str, caller: Caller, receive: Receive, served: Served
    ) -> Response | None:
        """Register documents as they come. Returns the answer; None if the client left.

        All lines before one that is wrong are registered; so are those of a client that left.
        """
        try:
            corpus = require_corpus_name(path.removeprefix(f"{CORPORA}/"))
            registering = _Registering(corpus, caller.tenant, served.corpora)
            is_whole = await _register(read_lines(receive), registering, served)
        except Exception as error:
            return _refusal(error)
        return JSONResponse(registering.counts) if is_whole else None

    async def answer(
        self, method: str, path: str, caller: Caller, body: bytes, served: Served
    ) -> Response:
        """Return the answer to any other request."""
        try:
            return await self._answer(method, path.removeprefix(CORPORA), caller, body, served)
        except Exception as error:
            return _refusal(error)

    async def _answer(
        self, method: str, rest: str, caller: Caller, body: bytes, served: Served
    ) -> Response:
        owner, corpora, run = caller.tenant, served.corpora, served.tokenizers.run
        name, _, below = rest.removeprefix("/").partition("/")
        if not name and method == "GET":
            told = await run(partial(corpora.summaries, owner))
            return JSONResponse({name: asdict(summary) for name, summary in told.items()})
        require_corpus_name(name)
        document_id = below.removeprefix("documents/")
        is_one = document_id != below
        match method, below:
            case "GET", "":
                documents = await run(partial(corpora.documents, owner, name))
                return StreamingResponse(_list_documents(documents), media_type=LINES)
            case "DELETE", "":
                return await self._remove(owner, partial(corpora.drop, owner, name), served)
            case "POST", "remove":
                ids = parse_body(RemoveBody, body).ids
                return await self._remove(owner, partial(corpora.remove, owner, name, ids), served)
            case "POST", "warm":
                said = parse_body(WarmBody, body or b"{}")
                tenant = caller.tenant_for(said.cache_salt)
                require_salt(tenant)
                order = None if said.keep is None else make_keep_order(said.keep, owner, served)
                make = partial(CorpusWarming, owner, tenant, name, said.ids, served, order)
                warming = await run(make)
                return StreamingResponse(_write_lines(warming.lines()), media_type=LINES)
            case "GET", "kept":
                return JSONResponse({"kept": await list_kept(owner, name, served)})
            case "POST", "release":
                some = parse_body(ReleaseBody, body or b"{}").ids
                released = await release_documents(owner, name, some, served)
                return JSONResponse({"released": released})
            case "GET", _ if is_one:
                if name == LEARNED and owner is None:
                    raise OperatorsOnly(
                        "what was learned from prompts of callers without a tenant is shown to nobody: "
                        "they are not one person's"
                    )
                found = await run(partial(corpora.document, owner, name, document_id))
                return JSONResponse(
                    {"id": found.id, "text": found.text, "metadata": dict(found.metadata)}
                )
            case "DELETE", _ if is_one:
                await run(partial(corpora.document, owner, name, document_id))
                remove = partial(corpora.remove, owner, name, [document_id])
                return await self._remove(owner, remove, served)
        return JSONResponse({"error": {"message": f"there is no {method} {CORPORA}{rest}"}}, 404)

    async def _remove(
        self, owner: str | None, remove: Callable[[], int], served: Served
    ) -> Response:
        """Remove documents, and let nothing stay stored of them, or be learned again from before."""
        removed = await served.tokenizers.run(remove)
        if served.learned is not None:
            await served.tokenizers.run(partial(served.learned.forget_prompts, owner))
        await served.forget_owed()
        return JSONResponse({"removed": removed})


class _Registering:
    """Registers lines. counts: how many documents were new, were changed and stood there already."""

    def __init__(self, corpus: str, owner: str | None, corpora: Corpora) -> None:
        self._corpus, self._owner, self._corpora = corpus, owner, corpora
        self._line = 0
        self.counts = Counter({change.value: 0 for change in Change})

    def put_all(self, lines: Iterable[bytes]) -> None:
        """Register these lines. Raises, with the number of the line, one of the kinds of BadRequest."""
        for line in lines:
            self._line += 1
            if not line.strip():
                continue
            try:
                self._put(parse_body(CorpusLine, line))
            except BadRequest as error:
                raise type(error)(
                    f"line {self._line}: {error} (the {self.counts.total():,} documents before it are "
                    f"registered)"
                ) from error

    def _put(self, said: CorpusLine) -> None:
        require_short_text(said.id, "a document's id")
        require_text(said.text, "a document's text")
        document = Registered(said.id, said.text, said.metadata, said.vector)
        self.counts[self._corpora.put(self._owner, self._corpus, document).value] += 1


async def _register(
    lines: AsyncGenerator[bytes | None, None], registering: _Registering, served: Served
) -> bool:
    """Register lines as they come. Returns whether all have come, and the client has not left."""
    waiting: list[bytes] = []
    size_bytes, is_whole = 0, True

    async def put() -> None:
        nonlocal waiting, size_bytes
        some, waiting, size_bytes = waiting, [], 0
        await served.tokenizers.run(partial(registering.put_all, some))

    try:
        async with aclosing(lines) as coming:
            async for line in coming:
                if line is None:
                    is_whole = False
                    break
                waiting.append(line)
                size_bytes += len(line)
                if len(waiting) >= LINES_AT_ONCE or size_bytes >= BYTES_AT_ONCE:
                    await put()
        await put()
    except BaseException:
        served.begin_to_forget_owed()
        raise
    await served.forget_owed()
    return is_whole


def read_corpora(folder: Path, corpora: Corpora) -> None:
    """Register the files NAME.jsonl of a folder as everybody's.

    Raises ConfigError for a folder that is not there, OSError, or, with the file's name, one of the kinds
    of BadRequest.
    """
    if not folder.is_dir():
        raise ConfigError(f"the documents of --corpus are not in {folder}: start the server again")
    for path in sorted(folder.glob("*.jsonl")):
        try:
            with path.open("rb") as lines:
                _Registering(require_corpus_name(path.stem), None, corpora).put_all(lines)
        except BadRequest as error:
            raise type(error)(f"{path}: {error}") from error


async def read_lines(receive: Receive) -> AsyncGenerator[bytes | None, None]:
    """Yield the lines of a request's body as they come, and None in the end if the client left.

    Raises RequestTooLarge for a line that is too long, RequestTooSlow for one that does not come.
    """
    begun = bytearray()
    while True:
        lines: list[bytes] = []
        has_more = True
        try:
            async with asyncio.timeout(LINE_S):
                while has_more and not lines:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        yield None
                        return
                    *lines, rest = message.get("body", b"").split(b"\n")
                    if lines:
                        lines[0] = bytes(begun) + lines[0]
                        begun.clear()
                    begun += rest
                    has_more = message.get("more_body", False)
                    _require_short([*lines, begun])
        except TimeoutError:
            raise RequestTooSlow(
                f"no line came for {LINE_S:.0f} s: send the documents without pauses, or in several "
                f"requests"
            ) from None
        for line in lines:
            yield line
        if not has_more:
            if begun:
                yield bytes(begun)
            return


def _require_short(lines: Sequence[bytes | bytearray]) -> None:
    if any(len(line) > LONGEST_LINE_BYTES for line in lines):
        raise RequestTooLarge(
            f"a line has more than {LONGEST_LINE_BYTES:,} bytes: send a document a line, and long ones "
            f"in parts, as your chain retrieves them"
        )


async def _write_lines(lines: AsyncGenerator[dict[str, Any], None]) -> AsyncIterator[bytes]:
    """Write objects as lines; an error that comes is the last one."""
    try:
        async with aclosing(lines) as coming:
            async for line in coming:
                yield json.dumps(line).encode() + b"\n"
    except Exception as error:
        log_unforeseen(error)
        yield json.dumps(error_to_json(error)).encode() + b"\n"


async def _list_documents(documents: Sequence[ListedDocument]) -> AsyncIterator[bytes]:
    for number, one in enumerate(documents, 1):
        yield json.dumps(one._asdict()).encode() + b"\n"
        if number % WRITTEN_AT_ONCE == 0:
            await asyncio.sleep(0)


def _refusal(error: Exception) -> JSONResponse:
    log_unforeseen(error)
    said: dict[str, Any] = error_to_json(error)
    return JSONResponse(said, status_of(error))
