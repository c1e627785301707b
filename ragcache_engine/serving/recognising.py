"""Recognises registered documents in the prompts of clients that know nothing of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from ragcache_engine.errors import BadRequest
from ragcache_engine.prompt import token_segments
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.serving.routes import MOST_NAMED_DOCUMENTS, Served
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.values import ONE_TOKEN

logger = logging.getLogger(__name__)


async def recognise(
    said: Mapping[str, Any], owner: str | None, tenant: str | None, served: Served
) -> BackendRequest | None:
    """Return the prompt of a body as a request with its registered documents; None if it has none.

    said: the body of one of OpenAI's requests. Of a completion only a prompt that is one text is read.
    owner: whose registered documents are looked for, beside everybody's. tenant: of the request.
    """
    if not served.corpora.has_some_for(owner):
        return None
    text, token_ids, special = said.get("prompt"), None, said.get("add_special_tokens", True)
    if isinstance(text, list) and len(text) == 1:
        (text,) = text
    if "messages" in said:
        if served.write_chat is None:
            return None
        try:
            # The server behind the doors writes the prompt again. It takes what it needs out of what it
            # is given, so this is a copy.
            text, token_ids = await served.write_chat(said)
        except BadRequest:
            return None  # that server says better why
        special = False
    if not isinstance(text, str):
        return None
    find = partial(_find, text, bool(special), owner, tenant, served)
    found = await served.tokenizers.run(find)
    if found and token_ids is not None and [*found.tokens.token_ids] != [*token_ids]:
        # Seen with templates whose text other tokens stand for than the tokenizer makes of it.
        logger.info("documents of a conversation were not recognised: its tokens are other ones")
        return None
    return found


def _find(
    text: str, special: bool, owner: str | None, tenant: str | None, served: Served
) -> BackendRequest | None:
    spans = served.corpora.find(owner, text)[:MOST_NAMED_DOCUMENTS]
    if not spans:
        return None
    tokens = served.backend.tokenize(text, special)
    segments = token_segments(tokens, spans)
    options = replace(ONE_TOKEN, add_special_tokens=special)
    contexts: dict[str, Context] = {}
    for span in spans if served.reuse else ():
        if (near := served.corpora.neighbour(span.document_id)) is not None:
            own = text[span.start : span.end]
            contexts[span.document_id] = served.contexts.find(served.backend.tokenize, own, near)
    return BackendRequest(
        f"recognised-{uuid4().hex}", tokens, segments, options, tenant, contexts=contexts
    )
