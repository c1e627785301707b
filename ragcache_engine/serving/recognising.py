"""Recognises registered documents in the prompts of clients that know nothing of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from ragcache_engine.checks import CHARACTERS_PER_TOKEN
from ragcache_engine.prompt import Span, token_segments
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.serving.routes import MOST_NAMED_DOCUMENTS, RENDER_S, Served, WrittenPrompt
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.values import ONE_TOKEN

logger = logging.getLogger(__name__)

OTHER_PROMPTS = ("suffix", "truncate_prompt_tokens")
"""Fields of a completion with which vLLM makes another prompt than its text."""

MOST_NEIGHBOURS, MOST_SEARCHES = 100, 8
"""For so many documents of a prompt neighbours are told, and for so many of them searched anew."""


async def recognise(
    path: str, said: Mapping[str, Any], owner: str | None, tenant: str | None, served: Served
) -> BackendRequest | None:
    """Return the prompt of a body as a request with its registered documents; None if it has none.

    said: the body of a request to this path, as vLLM's server gets it. Of a completion only a prompt that
      is one text is read, of a conversation only texts.
    owner: whose registered documents are looked for, beside everybody's. tenant: of the request.
    """
    if served.learned is None and not served.corpora.has_some_for(owner):
        return None
    is_completion = path == "/v1/completions"
    try:
        written = (
            _write_completion(said) if is_completion else await _write_chat(path, said, served)
        )
        longest = CHARACTERS_PER_TOKEN * served.limits.context_tokens
        if written is None or len(written.text) > longest:
            return None
        special = is_completion and said.get("add_special_tokens", True)
        return await served.tokenizers.run(partial(_find, written, special, owner, tenant, served))
    except Exception as error:  # vLLM's server says better what is wrong with a request
        logger.info("no documents were looked for in a request: %s", type(error).__name__)
        return None


def _write_completion(said: Mapping[str, Any]) -> WrittenPrompt | None:
    text = said.get("prompt")
    if isinstance(text, list) and len(text) == 1:
        (text,) = text
    is_plain = isinstance(said.get("add_special_tokens", True), bool)
    if not isinstance(text, str) or not is_plain or any(said.get(name) for name in OTHER_PROMPTS):
        return None
    return WrittenPrompt(text, None)


async def _write_chat(path: str, said: Mapping[str, Any], served: Served) -> WrittenPrompt | None:
    """Let the server behind the doors write a prompt; it writes it once more when it answers."""
    if served.write_chat is None or said.get("previous_response_id") is not None:
        return None  # only the server knows what came before
    messages = said["input"] if "input" in said else said["messages"]
    if not (isinstance(messages, str) or all(map(_is_text, messages))):
        return None
    async with asyncio.timeout(RENDER_S):  # templates are programs; the thread itself goes on
        return await served.write_chat(path, said)


TEXT_PARTS = {"text", "input_text", "output_text", "tool_use", "thinking"}
"""Kinds of parts of a message that put nothing but text into a prompt."""


def _is_text(message: Mapping[str, Any]) -> bool:
    """Return whether a message, or an item of a response's input, has no pictures, sounds or files."""
    content = message.get("content", message.get("output"))
    parts = content if isinstance(content, list) else ()
    return all(
        isinstance(part, str)
        or part.get("type") in TEXT_PARTS
        or (part.get("type") == "tool_result" and _is_text(part))
        for part in parts
    )


def _find(
    written: WrittenPrompt, special: bool, owner: str | None, tenant: str | None, served: Served
) -> BackendRequest | None:
    spans = served.corpora.find(owner, written.text)
    if served.learned is not None and served.learned.learn(owner, tenant, written.text, spans):
        spans = served.corpora.find(owner, written.text)
    spans = spans[:MOST_NAMED_DOCUMENTS]
    if not spans:
        return None
    tokens = served.backend.tokenize(written.text, special)
    if written.token_ids is not None and [*tokens.token_ids] != [*written.token_ids]:
        # Seen with templates whose text other tokens stand for than the tokenizer makes of it.
        logger.info("documents of a conversation were not recognised: its tokens are other ones")
        return None
    return BackendRequest(
        f"recognised-{uuid4().hex}",
        tokens,
        token_segments(tokens, spans),
        replace(ONE_TOKEN, add_special_tokens=special),
        tenant,
        contexts=_find_contexts(written.text, spans, served) if served.reuse else {},
        spans=spans,
    )


def _find_contexts(text: str, spans: Sequence[Span], served: Served) -> dict[str, Context]:
    """Return behind which neighbours the documents of a prompt are to be stored."""
    contexts: dict[str, Context] = {}
    room = CHARACTERS_PER_TOKEN * served.limits.context_tokens
    searches = 0
    for span in spans[:MOST_NEIGHBOURS]:
        searches += not served.corpora.knows_near(span.document_id)
        may_search = searches <= MOST_SEARCHES
        near = served.corpora.neighbour(span.document_id, may_search=may_search)
        room -= len(near.text) if near else 0
        if near is None or room < 0:
            continue
        own = text[span.start : span.end]
        contexts[span.document_id] = served.contexts.find(served.backend.tokenize, own, near)
    return contexts
