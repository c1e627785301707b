"""What routing knows of a request: its tenant, its system text and its documents, or else its text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ragcache_engine.checks import LONGEST_ID
from ragcache_engine.fleet.path import RoutingPath, path_of_parts, path_of_text
from ragcache_engine.prompt import Span
from ragcache_engine.tiers.wire import FIELD

NOTHING = path_of_text(None, "")

FindDocuments: TypeAlias = Callable[[str], Sequence[Span]]


@dataclass(frozen=True, slots=True)
class Routable:
    """A request as routing sees it; the fields are those of FleetRequest."""

    path: RoutingPath = NOTHING
    prompt: str = ""
    documents: tuple[tuple[bytes, str], ...] = ()


def read_routable(
    said: Mapping[str, Any], tenant: str | None, find: FindDocuments | None = None
) -> Routable:
    """Read a request's body. A body that makes no sense is somebody else's to refuse.

    tenant: that of the caller's key, or None. Only then does the body's own count alone. find: returns
      the registered documents in a text, for a body that names none; None where none are registered.
    """
    named = said.get("tenant", said.get("cache_salt"))
    whose = "\0".join([tenant or "", named if isinstance(named, str) else ""])
    prompt = said.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, list):
        text = " ".join(map(str, prompt[:8192]))
        return Routable(path_of_text(whose, text), text)
    if isinstance(prompt, str):
        return _of_prompt(whose, prompt, _documents_of(said) or _find(find, prompt))
    text = _text_of_conversation(said)
    return _of_prompt(whose, text, _find(find, text))


def _find(find: FindDocuments | None, text: str) -> list[list[Any]]:
    """Return the registered documents in a text, as a body would name them."""
    spans = find(text) if find else ()
    return [[span.start, span.end, span.document_id] for span in spans]


def _of_prompt(whose: str, prompt: str, documents: Sequence[Any]) -> Routable:
    spans: list[tuple[int, int, str]] = []
    reached = 0  # a document that begins before is none: the server refuses such a body
    for one in documents:
        match one:
            case [int(start), int(end), str(name)] if (
                reached <= start < end <= len(prompt) and len(name) <= LONGEST_ID
            ):
                spans.append((start, end, name))
                reached = end
    if not spans:
        return Routable(path_of_text(whose, prompt), prompt)
    # What stands between two documents belongs to the one behind it: the text decides, not the name.
    begin = spans[0][0]
    parts, reached = [], begin
    for _, end, _ in spans:
        parts.append((prompt[reached:end], end - reached))
        reached = end
    path = path_of_parts(whose, (prompt[:begin], begin), parts)
    named = zip(path.keys[1:], (name for _, _, name in spans), strict=False)
    return Routable(path, prompt, tuple(named))


def _documents_of(said: Mapping[str, Any]) -> Sequence[Any]:
    """Return the documents that a body names by characters: in our own form, or in OpenAI's."""
    ours = said.get("documents")
    if ours is None:
        transfer = said.get("kv_transfer_params")
        field = transfer.get(FIELD) if isinstance(transfer, dict) else None
        ours = field.get("documents") if isinstance(field, dict) else None
    return ours if isinstance(ours, list) else ()


CONVERSATION = ("instructions", "system", "messages", "input")
"""The fields of OpenAI's and Anthropic's bodies that write a conversation, in the order of its prompt."""


def _text_of_conversation(said: Mapping[str, Any]) -> str:
    """Return what a conversation begins with, as far as it decides which tensors are shared."""
    return "\0".join(text for name in CONVERSATION for text in _texts_of(said.get(name)))


def _texts_of(content: Any) -> Iterator[str]:
    """Yield the texts of a message's content, of messages, or of a text; of other parts their JSON."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            yield from _texts_of(part)
    elif isinstance(content, dict):
        inner = [content[name] for name in ("text", "content", "output") if content.get(name)]
        if not inner and "role" not in content:
            yield json.dumps(content, sort_keys=True, default=str)
        for one in inner:
            yield from _texts_of(one)
