"""The tool calls in a model's answer, read from its text whole or as it comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from ragcache_engine.chat.tools import CLOSE, OPEN


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. arguments: JSON text as the model wrote it, which need not be sound."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """More of the call with this number. id and name come once; arguments are to be joined."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """An answer of a model that may call tools. text: what it says beside its calls."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolAnswerPart:
    """What a piece of such an answer turned out to be; often nothing yet."""

    text: str = ""
    calls: tuple[ToolCallPart, ...] = ()


class ToolReader(Protocol):
    """Reads one answer as it comes."""

    def read(self, text: str, token_ids: Sequence[int]) -> ToolAnswerPart:
        """Take the next piece."""

    def end(self) -> ToolAnswerPart:
        """No more pieces come; what was held back is told now."""

    def whole(self, text: str) -> ToolAnswer:
        """Read a whole answer at once. A reader reads one answer, in one of the two ways."""


def make_call_id() -> str:
    return f"call_{uuid4().hex[:24]}"


def join_parts(parts: Sequence[ToolAnswerPart]) -> ToolAnswer:
    """All parts of one answer together."""
    calls: dict[int, ToolCall] = {}
    for part in (call for answer in parts for call in answer.calls):
        known = calls.get(part.index) or ToolCall("", "", "")
        calls[part.index] = ToolCall(
            known.id or part.id or "",
            known.name or part.name or "",
            known.arguments + part.arguments,
        )
    return ToolAnswer("".join(part.text for part in parts), tuple(calls.values()))


@dataclass(slots=True)
class CallReader:
    """Reads calls written as JSON between <tool_call> tags, and whatever text is around them.

    What stands between tags and is no call is text.
    """

    _held: str = ""
    _calls: int = 0
    _is_after_call: bool = False
    _make_id: Callable[[], str] = field(default=make_call_id)

    def read(self, text: str, token_ids: Sequence[int] = ()) -> ToolAnswerPart:
        self._held += text
        part = self._take_complete_calls()
        return ToolAnswerPart(part.text + self._take_ready_text(), part.calls)

    def end(self) -> ToolAnswerPart:
        part = self._take_complete_calls()
        rest, self._held = self._held, ""
        before, tag, inside = rest.partition(OPEN)
        if tag and (calls := self._number_calls(inside)):  # its closing tag was cut off
            return ToolAnswerPart(part.text + before.removesuffix("\n"), (*part.calls, *calls))
        return ToolAnswerPart(part.text + rest, part.calls)

    def whole(self, text: str) -> ToolAnswer:
        return join_parts([self.read(text), self.end()])

    def _take_complete_calls(self) -> ToolAnswerPart:
        """All calls that are whole, and the text before them."""
        text, calls = "", list[ToolCallPart]()
        while (part := self._take_next_call()) is not None:
            text += part.text
            calls += part.calls
        return ToolAnswerPart(text, tuple(calls))

    def _take_next_call(self) -> ToolAnswerPart | None:
        """The text up to the next call, and the call; None if there is no whole one."""
        if self._held and self._is_after_call:  # line breaks around a call belong to its form
            self._held, self._is_after_call = self._held.removeprefix("\n"), False
        start = self._held.find(OPEN)
        end = self._held.find(CLOSE, start)
        if start < 0 or end < 0:
            return None
        inside = self._held[start + len(OPEN) : end]
        before, all_of_it = self._held[:start], self._held[: end + len(CLOSE)]
        self._held = self._held[end + len(CLOSE) :]
        calls = self._number_calls(inside)
        if not calls:
            return ToolAnswerPart(all_of_it)
        self._is_after_call = True
        return ToolAnswerPart(before.removesuffix("\n"), calls)

    def _take_ready_text(self) -> str:
        """What is held and cannot become part of a call."""
        start = self._held.find(OPEN)
        if start < 0:
            start = len(self._held) - _overlap_length(self._held, OPEN)
        start -= self._held[:start].endswith("\n")  # may be the one before a call
        ready, self._held = self._held[:start], self._held[start:]
        return ready

    def _number_calls(self, text: str) -> tuple[ToolCallPart, ...]:
        """The call between two tags, or several in a list; none if something else is there."""
        read = _parse_calls(text)
        first, self._calls = self._calls, self._calls + len(read)
        return tuple(
            ToolCallPart(number, self._make_id(), *call) for number, call in enumerate(read, first)
        )


@dataclass(slots=True)
class GuidedReader:
    """Reads an answer that was held to `call_guide`: one call, and no tags."""

    _held: str = ""
    _make_id: Callable[[], str] = field(default=make_call_id)

    def read(self, text: str, token_ids: Sequence[int] = ()) -> ToolAnswerPart:
        self._held += text
        return ToolAnswerPart()

    def end(self) -> ToolAnswerPart:
        held, self._held = self._held, ""
        call = _parse_call(held) or _parse_cut_call(held)
        if call is None:
            return ToolAnswerPart(held)
        return ToolAnswerPart("", (ToolCallPart(0, self._make_id(), *call),))

    def whole(self, text: str) -> ToolAnswer:
        return join_parts([self.read(text), self.end()])


def _parse_calls(text: str) -> list[tuple[str, str]]:
    """(name, arguments) of each call in a JSON list of them, or of the one alone; or none at all."""
    try:
        found = json.loads(text)
    except ValueError:
        return []
    read = [_name_and_arguments(call) for call in (found if isinstance(found, list) else [found])]
    calls = [call for call in read if call is not None]
    return calls if len(calls) == len(read) else []


def _parse_call(text: str) -> tuple[str, str] | None:
    """The same of a text that is one call."""
    calls = _parse_calls(text)
    return calls[0] if len(calls) == 1 else None


def _name_and_arguments(call: Any) -> tuple[str, str] | None:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return call["name"], arguments


def _parse_cut_call(text: str) -> tuple[str, str] | None:
    """The same of a call that max_tokens or a stop string cut off: its arguments as far as they go."""
    head, colon, rest = text.partition('"arguments"')
    call = _parse_call(head.rstrip().rstrip(",") + "}") if colon else None
    return (call[0], rest.lstrip().removeprefix(":").lstrip()) if call else None


def _overlap_length(text: str, tag: str) -> int:
    """How much of the text's end may be the beginning of the tag."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
