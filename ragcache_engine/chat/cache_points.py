"""Cache points: the places in a conversation up to which its prompt is to stay cached for a while."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ragcache_engine.checks import require_number
from ragcache_engine.errors import InvalidArgument

LONGEST_S = 30 * 86_400.0

MOST_POINTS = 4
"""So many cache points of a prompt count, the last ones, as with the vendors that have them."""

# Drawn anew by each process, so that no text that comes from elsewhere can hold a mark.
_NONCE = secrets.token_hex(8)
_MARK = re.compile(rf"\[cache point {_NONCE}:(\d+)\]")


class CachePoint(NamedTuple):
    """A place in a prompt: its number of characters, and for how many seconds they stay cached."""

    characters: int
    for_s: float


def cache_point(for_s: float = 300.0) -> str:
    """Return a text that marks a cache point in a message: what stands before it stays cached.

        >>> from ragcache_engine import EngineConfig, RAGCacheEngine, cache_point
        >>> rules = "Answer in one word. " * 9 + cache_point(for_s=3600)
        >>> with RAGCacheEngine(EngineConfig(backend="memory", host_cache="1GiB")) as engine:
        ...     prompt = engine.chat.prompt([{"role": "user", "content": rules}])
        >>> len(prompt.cache_points), "cache point" in prompt
        (1, False)

    `engine.chat.prompt` takes the mark out. It holds in this process alone. After the answer, the engine
    keeps the prompt up to there as `RAGCacheEngine.keep` does, in host memory or else on the disk; each
    further prompt begins the time anew. An engine without these tiers keeps nothing.
    for_s: for how many seconds at least, in whole ones. Raises InvalidArgument.
    """
    if not 1 <= require_number(for_s, "for_s") <= LONGEST_S:
        raise InvalidArgument(f"for_s is from 1 to {LONGEST_S:,.0f}, got {for_s}")
    return f"[cache point {_NONCE}:{for_s:.0f}]"


def without_marks(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return checked messages without marks."""
    return [
        {**one, "content": _without(one["content"])} if "content" in one else dict(one)
        for one in messages
    ]


def are_marked(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether checked messages hold marks."""
    return any(_is_marked(one.get("content")) for one in messages)


def find_points(prompt: str, render_marked: Callable[[], str]) -> tuple[CachePoint, ...]:
    """Return where the marks stand in a prompt that was written without them.

    render_marked: writes the prompt of the messages with their marks. A template that does not write each
    text as it is tells no places; then there are none.
    """
    marked = render_marked()
    if _MARK.sub("", marked) != prompt:
        return ()
    points, removed = [], 0
    for found in _MARK.finditer(marked):
        points.append(CachePoint(found.start() - removed, float(found[1])))
        removed += len(found[0])
    return tuple(points[-MOST_POINTS:])


def _without(content: Any) -> Any:
    if isinstance(content, str):
        return _MARK.sub("", content)
    if isinstance(content, list):
        return [{**part, "text": _MARK.sub("", part["text"])} for part in content]
    return content


def _is_marked(content: Any) -> bool:
    if isinstance(content, str):
        return _MARK.search(content) is not None
    return isinstance(content, list) and any(_MARK.search(part["text"]) for part in content)
