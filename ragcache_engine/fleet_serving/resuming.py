"""What of an answer has been sent, and what of a further attempt is new.

A replica may die in the middle of an answer. Another one then generates the answer anew, and what was
sent already is left out. So the reader gets every character once, in order. The two attempts must agree:
greedy answers do in float32, and drawn ones if they have a seed, which the ingress gives them. Where they
differ, as rounding in bfloat16 can make them, the answer cannot be continued, and the reader is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from ragcache_engine.errors import AnswersDiffer

GROWING = ("text", "content", "reasoning", "reasoning_content", "arguments", "tokens", "token_ids")
"""Fields whose values over all events are one text, or one list."""

CONSTANT = ("id", "created", "system_fingerprint")
"""Fields that each attempt writes anew, and that are one for the whole answer."""

NAMES = ("role", "name", "type")
"""Fields that a reader may put together from all events, so that none may come twice."""

FRAME = (*CONSTANT, "object", "model", "index")
"""Fields that every event has; one with nothing else says nothing."""


class SentAnswer:
    """Follows one answer through all attempts at it."""

    def __init__(self) -> None:
        self._sent: dict[tuple[Any, ...], list[Any]] = {}  # characters, or the values of a list
        self._seen: dict[tuple[Any, ...], int] = {}
        self._once: set[tuple[Any, ...]] = set()
        self._constant: dict[tuple[Any, ...], Any] = {}
        self._is_first = True

    def begin_again(self) -> None:
        """Begin another attempt, from the answer's beginning."""
        self._is_first = False
        self._seen.clear()

    def take(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Return what of an event the reader has not got yet; None if that is nothing.

        Raises AnswersDiffer.
        """
        kept = deepcopy(event)
        is_new = self._cut(kept, ())
        return kept if is_new or self._is_first else None

    def _cut(self, here: dict[str, Any], where: tuple[Any, ...]) -> bool:
        """Take out of an object what was sent; return whether something is left."""
        is_new = False
        for name, value in list(here.items()):
            place = (*where, name)
            if name in GROWING and isinstance(value, str | list):
                here[name] = self._cut_growing(place, value)
                if len(here[name]) < len(value) and here.get("logprobs"):
                    raise AnswersDiffer(
                        "the replica was lost in the middle of this answer, and answers with logprobs "
                        "cannot be continued: ask again"
                    )
                is_new |= bool(here[name])
            elif name in CONSTANT:
                here[name] = self._constant.setdefault(place, value)
            elif isinstance(value, dict):
                is_new |= self._cut(value, place)
            elif (
                isinstance(value, list) and value and all(isinstance(each, dict) for each in value)
            ):
                for at, each in enumerate(value):
                    is_new |= self._cut(each, (*place, each.get("index", at)))
            elif value is not None and name not in FRAME:
                is_new |= self._note(place, here, name)
        return is_new

    def _cut_growing(self, place: tuple[Any, ...], value: Any) -> Any:
        """Return what of a piece lies behind what was sent."""
        start = self._seen.get(place, 0)
        self._seen[place] = start + len(value)
        sent = self._sent.setdefault(place, [])
        overlap = sent[start : start + len(value)]
        if list(value[: len(overlap)]) != overlap:
            raise AnswersDiffer(
                "the replica was lost in the middle of this answer, and another one answers differently: "
                "ask again (float32 and temperature 0 make answers repeatable)"
            )
        new = value[len(overlap) :]
        sent.extend(new)
        return new

    def _note(self, place: tuple[Any, ...], here: dict[str, Any], name: str) -> bool:
        """Return whether a field is new in the answer."""
        if self._is_first or place not in self._once:
            self._once.add(place)
            return True
        if name in NAMES:
            del here[name]
        return False


class EventReader:
    """Cuts the body of an answer into server-sent events."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._end = b""

    def feed(self, part: bytes) -> Iterator[bytes]:
        """Yield the events that are whole now, without the empty line behind them."""
        self._parts.append(part)
        latest = self._end + part
        self._end = latest[-3:]  # the beginning of an empty line, in either way of writing it
        if b"\n\n" in latest.replace(b"\r\n", b"\n"):
            *events, rest = b"".join(self._parts).replace(b"\r\n", b"\n").split(b"\n\n")
            self._parts = [rest]
            yield from (event for event in events if event)
